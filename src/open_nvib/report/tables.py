"""The tables of a report: the paper's, and what it did not print."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from open_nvib.report import measures
from open_nvib.report.measures import MeanAndDeviation, Measure, mean_and_deviation, write_number
from open_nvib.report.paper import PaperRow
from open_nvib.report.results import Results, RowResults, SelectedNVAE

NOT_MEASURED = "–"
MARK = " ◂"
"""After the title of the NVAE that figures of a single model show."""


@dataclass(frozen=True)
class Table:
    """Texts in lines and columns. The first column names the line; the others are numbers."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Column:
    """A measure, and the same number in the paper's table if the paper prints it."""

    measure: Measure
    direction: str = ""
    paper: Callable[[PaperRow], MeanAndDeviation | None] = lambda _: None

    @property
    def title(self) -> str:
        return f"{self.measure.title} {self.direction}".strip()

    def ours(self, row: RowResults) -> str:
        return _with_deviation(self.measure.write(found)) if (found := row.mean(self.measure.read)) else NOT_MEASURED

    def printed(self, row: RowResults) -> str:
        """Write the paper's number with two decimals, as printed."""
        found = self.paper(row.paper) if row.paper else None
        return _with_two_decimals(found)

    def real(self, results: Results) -> str:
        """Write the number of real text, the mean over all cells; empty where it was not measured."""
        return self.measure.write(found)[0] if (found := results.real(self.measure)) else ""


SCORED = (
    Column(measures.FORWARD, "↓", lambda row: row.forward),
    Column(measures.REVERSE, "↓", lambda row: row.reverse),
)
"""The columns of F-PPL and R-PPL, which depend on the scorer."""
MAIN = (
    Column(measures.KEPT, paper=lambda row: MeanAndDeviation(row.kept, None, 5)),
    Column(measures.BLEU, "↑", lambda row: row.bleu),
    Column(measures.PERPLEXITY, "↓", lambda row: row.perplexity),
    *SCORED,
)


def main_table(results: Results, selected: SelectedNVAE | None) -> Table:
    """Make the paper's table with its printed values beside ours, and real text as the last line."""
    marked = selected.row if selected else None
    return _table(results, results.rows, MAIN, seeds=True, real=True, printed=True, marked=marked)


def training_table(results: Results) -> Table | None:
    """Make the table of how long each row was trained, and whether it was still improving; None if no cell tells."""
    lines = []
    for row in results.measured:
        optimiser, ends = row.evaluations[0].config.optimiser, [cell.train for cell in row.cells]
        rises = mean_and_deviation([end.rise for end in ends if end.rise is not None])
        minutes = [cell.seconds["train"] / 60 for cell in row.cells if cell.seconds.get("train", 0) > 1]
        time = write_number(statistics.fmean(minutes), 0) if minutes else NOT_MEASURED
        steps, rate = f"{max(end.step for end in ends):,}", f"{optimiser.learning_rate:g}"
        lines.append((row.title, steps, rate, _with_two_decimals(rises), time))
    columns = ("model", "steps", "learning rate", "rise of BLEU", "minutes")
    return Table(columns, tuple(lines)) if any(line[3] != NOT_MEASURED for line in lines) else None


def copying_table(results: Results) -> Table | None:
    """Make the table of F-PPL and R-PPL by the sentence-copying scorer, which the published values imply."""
    return _measured(results, SCORED, real=True, printed=True)


def samples_table(results: Results) -> Table | None:
    """Make the table of diversity, copies and empty samples, with real text as the last line."""
    return _measured(results, tuple(map(Column, measures.SAMPLES)), real=True)


def latent_table(results: Results) -> Table | None:
    """Make the table of what the latent carries."""
    return _measured(results, tuple(map(Column, measures.LATENT)))


def readings_table(results: Results) -> Table | None:
    """Make the table of NVAE rows by what is read of the latent: its mean, its points or a sample."""
    return _measured(results, tuple(map(Column, measures.READINGS)), needed=measures.READINGS[1:2])


def number_table(results: Results) -> Table | None:
    """Make the table of models with as many vectors as each text needs, and as two looks decide."""
    return _measured(results, tuple(map(Column, measures.NUMBER)))


def paths_table(results: Results) -> Table | None:
    """Make the table of paths between texts."""
    return _measured(results, tuple(map(Column, measures.PATHS)), needed=measures.PATHS[:2])


VALIDATION = {
    "bleu": ("BLEU", 2, 1.0),
    "exact": ("exact (%)", 1, 100.0),
    "perplexity": ("PPL", 3, 1.0),
    "loss": ("cross-entropy (nats per token)", 4, 1.0),
    "kept": ("ν", 3, 1.0),
    "kl_gaussian": ("L_G / nd", 4, 1.0),
    "kl_dirichlet": ("L_D / n", 4, 1.0),
    "alpha0": ("α_0", 2, 1.0),
    "sigma": ("mean σ", 3, 1.0),
}
"""Title, decimals and scale of what `nvib train` measures."""


def validation_table(validation: Mapping[str, float | None]) -> Table | None:
    """Make the table of what training measured on validation data."""
    lines = [
        (title, write_number(scale * value, decimals))
        for name, (title, decimals, scale) in VALIDATION.items()
        if (value := validation.get(name)) is not None
    ]
    return Table(("on validation data", "value"), tuple(lines)) if lines else None


def _measured(
    results: Results, columns: Sequence[Column], *, real=False, printed=False, needed: Sequence[Measure] = ()
) -> Table | None:
    """Make a table of the rows in which one of the `needed`, or of the columns, was measured; None without any."""
    reads = [measure.read for measure in needed or [column.measure for column in columns]]
    rows = [row for row in results.rows if any(row.values(read) for read in reads)]
    return _table(results, rows, columns, real=real, printed=printed) if rows else None


def _table(
    results: Results,
    rows: Sequence[RowResults],
    columns: Sequence[Column],
    *,
    seeds: bool = False,
    real: bool = False,
    printed: bool = False,
    marked: RowResults | None = None,
) -> Table:
    """Make a table of `rows`, with the number of seeds, real text and the paper's numbers where asked and known."""
    in_paper = columns if printed and any(row.paper for row in rows) else ()
    titles = [column.title for column in columns] + [f"{column.title}, paper" for column in in_paper]
    lines = []
    for row in rows:
        numbers = [column.ours(row) for column in columns] + [column.printed(row) for column in in_paper]
        lines.append((row.title + (MARK if row is marked else ""), *([_seeds(row)] if seeds else []), *numbers))
    if real and any(of_real_text := [column.real(results) for column in columns]):
        lines.append(("real text held out", *([""] if seeds else []), *of_real_text, *("" for _ in in_paper)))
    return Table(("model", *(["seeds"] if seeds else []), *titles), tuple(lines))


def _seeds(row: RowResults) -> str:
    there, planned = len(row.evaluations), len(row.plan.seeds)
    return str(there) if there == planned else f"{there} of {planned}"


def _with_two_decimals(found: MeanAndDeviation | None) -> str:
    if found is None:
        return NOT_MEASURED
    return _with_deviation((write_number(found.mean, 2), "" if found.sd is None else write_number(found.sd, 2)))


def _with_deviation(written: tuple[str, str]) -> str:
    mean, deviation = written
    return f"{mean} ± {deviation}" if deviation else mean
