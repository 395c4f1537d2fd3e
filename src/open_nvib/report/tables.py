"""The tables of a report: the paper's, and what it did not print."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from open_nvib.report.measures import MAIN, NOT_MEASURED, TEXT_EXACT, Measure, mean_and_deviation, read_at, write_number
from open_nvib.report.results import Results, RowResults, SelectedNVAE

MARK = " ◂"  # after the title of the NVAE that figures of a single model show
_TWO_DECIMALS = Measure("", lambda _: None)  # how the paper's numbers are written, and rises of BLEU


@dataclass(frozen=True)
class Table:
    """Texts in lines and columns. The first column names the line; the others are numbers."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def main_table(results: Results, selected: SelectedNVAE | None) -> Table:
    """Make the paper's table with its printed values beside ours, and real text as the last line."""
    shown = [measure for measure in MAIN if measure is not TEXT_EXACT or _measured(results, [TEXT_EXACT])]
    marked = selected.row if selected else None
    return _table(results, results.rows, shown, seeds=True, real=True, printed=True, marked=marked)


def measured_table(
    results: Results, columns: Sequence[Measure], *, real: bool = False, printed: bool = False, needed: str = ""
) -> Table | None:
    """Make a table of the rows that have one of the columns, or the column `needed`; None if there are no such rows."""
    rows = _measured(results, [column for column in columns if needed in ("", column.title)])
    return _table(results, rows, columns, real=real, printed=printed) if rows else None


def training_table(results: Results) -> Table | None:
    """Make the table of how long each row was trained, and whether it was still improving; None if no cell tells."""
    lines = []
    for row in results.measured:
        optimiser, ends = row.evaluations[0].config.optimiser, [cell.train for cell in row.cells]
        rises = mean_and_deviation([end.rise for end in ends if end.rise is not None])
        minutes = [cell.seconds["train"] / 60 for cell in row.cells if cell.seconds.get("train", 0) > 1]
        time = write_number(statistics.fmean(minutes), 0) if minutes else NOT_MEASURED
        steps, rate = f"{max(end.step for end in ends):,}", f"{optimiser.learning_rate:g}"
        lines.append((row.title, steps, rate, _TWO_DECIMALS.write(rises), time))
    columns = ("model", "steps", "learning rate", "rise of BLEU", "minutes")
    return Table(columns, tuple(lines)) if any(line[3] != NOT_MEASURED for line in lines) else None


VALIDATION = (
    Measure("BLEU", read_at("bleu")),
    Measure("exact (%)", read_at("exact"), decimals=1, scale=100),
    Measure("PPL", read_at("perplexity"), decimals=3),
    Measure("cross-entropy (nats per token)", read_at("loss"), decimals=4),
    Measure("ν", read_at("kept"), decimals=3),
    Measure("L_G / nd", read_at("kl_gaussian"), decimals=4),
    Measure("L_D / n", read_at("kl_dirichlet"), decimals=4),
    Measure("α_0", read_at("alpha0")),
    Measure("mean σ", read_at("sigma"), decimals=3),
)
"""What `nvib train` measures."""


def validation_table(validation: Mapping[str, float | None]) -> Table | None:
    lines = [(each.title, each.write_one(value)) for each in VALIDATION if (value := each.read(validation)) is not None]
    return Table(("on validation data", "value"), tuple(lines)) if lines else None


def real_text(results: Results, measure: Measure) -> str:
    """Write the number of real text, the mean over all cells; empty if it was not measured."""
    found = results.real(measure)
    return measure.write_one(found.mean) if found else ""


def _measured(results: Results, columns: Sequence[Measure]) -> list[RowResults]:
    return [row for row in results.rows if any(row.values(column.read) for column in columns)]


def _table(
    results: Results,
    rows: Sequence[RowResults],
    columns: Sequence[Measure],
    *,
    seeds: bool = False,
    real: bool = False,
    printed: bool = False,
    marked: RowResults | None = None,
) -> Table:
    """Make a table of `rows`, with the number of seeds, real text and the paper's numbers if asked for and known."""
    in_paper = [column for column in columns if column.paper and printed and any(row.paper for row in rows)]
    titles = [f"{column.title} {column.direction}".strip() for column in columns]
    titles += [f"{column.title} {column.direction}".strip() + ", paper" for column in in_paper]
    lines = []
    for row in rows:
        numbers = [column.write(row.mean(column.read)) for column in columns]
        numbers += [_TWO_DECIMALS.write(getattr(row.paper, column.paper) if row.paper else None) for column in in_paper]
        there, planned = len(row.evaluations), len(row.plan.seeds)
        of_seeds = [str(there) if there == planned else f"{there} of {planned}"] if seeds else []
        lines.append((row.title + (MARK if row is marked else ""), *of_seeds, *numbers))
    if real and any(of_real_text := [real_text(results, column) for column in columns]):
        lines.append(("real text held out", *([""] if seeds else []), *of_real_text, *("" for _ in in_paper)))
    return Table(("model", *(["seeds"] if seeds else []), *titles), tuple(lines))
