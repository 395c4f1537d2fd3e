"""The tables of a report: the paper's, and what it did not print."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from open_nvib.report.best import Best
from open_nvib.report.document import Column, Line, Table, Value
from open_nvib.report.paper import PaperRow
from open_nvib.report.results import Results, Row
from open_nvib.report.spread import Spread, decimals_of_perplexity, spread, write

NOTHING = Value("–")
MODEL = Column("model", numeric=False)
PAPER_HEADING = "paper: other scale; F/R-PPL from another scorer"
PERPLEXITY = -1
"""In place of a number of decimals: as many as the size of a perplexity asks for."""


@dataclass(frozen=True)
class Measure:
    """A column of numbers: its title, where the number is in a record, how it is written.

    Args:
        title: of the column.
        path: where the number is; see `cells.find`.
        decimals: how many, or `PERPLEXITY`.
        scale: 100 for a share in percent.
        paper: the same in the paper's table, where it is printed.
        real: where the value of real text is, where there is one.
        deviates: False for what is the same in every seed.
    """

    title: str
    path: str
    decimals: int = 2
    scale: float = 1.0
    paper: Callable[[PaperRow], Spread | None] | None = None
    real: str | None = None
    deviates: bool = True

    def show(self, value: Spread | None) -> Value:
        if value is None:
            return NOTHING
        decimals = decimals_of_perplexity(value.mean) if self.decimals == PERPLEXITY else self.decimals
        deviation = "" if value.sd is None or not self.deviates else write(self.scale * value.sd, decimals)
        return Value(write(self.scale * value.mean, decimals), deviation)


MAIN = (
    Measure("ν", "reconstruction/*/kept", paper=lambda row: Spread(row.kept, None, 5)),
    Measure("BLEU ↑", "reconstruction/*/bleu", paper=lambda row: row.bleu),
    Measure("PPL ↓", "reconstruction/*/perplexity", PERPLEXITY, paper=lambda row: row.perplexity),
    Measure(
        "F-PPL ↓",
        "generation/forward_perplexity",
        PERPLEXITY,
        paper=lambda row: row.forward,
        real="generation/real_forward_perplexity",
    ),
    Measure(
        "R-PPL ↓",
        "generation/reverse_perplexity",
        PERPLEXITY,
        paper=lambda row: row.reverse,
        real="generation/real_reverse_perplexity",
    ),
)
SAMPLES = (
    *(
        Measure(f"distinct-{n} (%)", f"generation/distinct/{n}", 1, 100, real=f"generation/real_distinct/{n}")
        for n in range(1, 5)
    ),
    Measure("self-BLEU", "generation/self_bleu", 1, real="generation/real_self_bleu"),
    Measure("copied (%)", "generation/copied", 2, 100),
    Measure("empty (%)", "generation/empty", 2, 100),
)
LATENT = (
    Measure("L_D", "latent/kl_dirichlet"),
    Measure("L_G", "latent/kl_gaussian", 1),
    Measure("α_0", "latent/alpha0"),
    Measure("active units", "latent/active_units", 0),
    Measure("of", "latent/units", 0, deviates=False),
    Measure("mutual information", "latent/mutual_information"),
    Measure("IW-NLL", "latent/importance_nll", 1),
    Measure("IW-PPL", "latent/importance_perplexity", PERPLEXITY),
    Measure("ELBO", "latent/elbo", 1),
)
COPYING = MAIN[3:]


def measured(row: Row, measures: Sequence[Measure]) -> tuple[Value, ...]:
    return tuple(measure.show(row.spread(measure.path)) for measure in measures)


def main_table(results: Results, best: Best | None) -> Table:
    """The paper's table with its printed values beside ours, and real text as the last line."""
    compared = any(row.paper for row in results.rows)
    group = f"this report: {results.plan.scale or 'its own'} scale" if compared else ""
    columns = [MODEL, Column("seeds")]
    columns += [Column(measure.title, group) for measure in MAIN]
    columns += [Column(measure.title, PAPER_HEADING, muted=True) for measure in MAIN] if compared else []
    lines, block = [], None
    for row in results.rows:
        values = [_name(row), Value(_seeds(row)), *measured(row, MAIN)]
        values += [_printed(row, measure) for measure in MAIN] if compared else []
        marked = best is not None and best.row is row
        lines.append(Line(tuple(values), rule=block not in (None, row.block), marked=marked))
        block = row.block
    real = _real(results, MAIN, before=2, after=len(MAIN) if compared else 0)
    caption = "Reconstruction and generation" + (", in the layout of the paper’s table" if compared else "")
    if any(len(row.records) > 1 for row in results.rows):
        caption += ": mean and, where there are several seeds, ± sample standard deviation"
    return Table("table", f"{caption}.", tuple(columns), (*lines, *real))


def samples_table(results: Results) -> Table | None:
    caption = (
        "What samples are like, beside as many real sentences: the share of n-grams that are distinct, BLEU of samples "
        "against each other (lower is more diverse), and the shares that are copies of training sentences or empty."
    )
    return _table("samples", caption, results, SAMPLES, real=True)


def latent_table(results: Results) -> Table | None:
    caption = (
        "What the latent carries, in nats per sentence: the KL divergences L_D and L_G, the pseudo-count α_0, units "
        "that vary with the text, an estimate of the mutual information of text and latent, and the "
        "importance-weighted negative log-likelihood, with its perplexity per token."
    )
    return _table("latent", caption, results, LATENT)


def copying_table(results: Results) -> Table | None:
    """F-PPL and R-PPL by the sentence-copying scorer, which the published values imply."""
    caption = (
        "F-PPL and R-PPL by the sentence-copying scorer (`--scorer autoencoder`), which sees each sentence before it "
        "scores it. It is no language model; it is here for comparison with the published values only."
    )
    return _table("copying", caption, results, COPYING, real=True, compared=True)


def interpolation_table(results: Results) -> Table | None:
    rows = [row for row in results.rows if any(_course(row, place) for place in ("ends", "middle"))]
    if not rows:
        return None
    smooth = Measure("smoothness", "interpolation/smoothness", 3)
    show = Measure("", "", PERPLEXITY).show
    columns = ("PPL at the ends", "PPL between", "smoothness")
    lines = [
        Line(
            (_name(row), show(_course(row, "ends")), show(_course(row, "middle")), smooth.show(row.spread(smooth.path)))
        )
        for row in rows
    ]
    caption = (
        "Paths between pairs of texts: perplexity under the scorer at both ends and in between, and smoothness, which "
        "is 1 for a path that changes directly and evenly from one text to the other, and 0 for one that leads nowhere."
    )
    return Table("interpolation", caption, (MODEL, *map(Column, columns)), tuple(lines))


def _table(
    name: str,
    caption: str,
    results: Results,
    measures: Sequence[Measure],
    *,
    real: bool = False,
    compared: bool = False,
) -> Table | None:
    """Rows in which something was measured; None if there are none."""
    rows = [row for row in results.rows if any(row.values(measure.path) for measure in measures)]
    if not rows:
        return None
    compared = compared and any(row.paper for row in rows)
    columns = [MODEL]
    columns += [Column(measure.title, "this report" if compared else "") for measure in measures]
    columns += [Column(measure.title, "paper: other scale", muted=True) for measure in measures] if compared else []
    lines = []
    for row in rows:
        printed = [_printed(row, measure) for measure in measures] if compared else []
        lines.append(Line((_name(row), *measured(row, measures), *printed)))
    lines += _real(results, measures, before=1, after=len(measures) if compared else 0) if real else []
    return Table(name, caption, tuple(columns), tuple(lines))


def _name(row: Row) -> Value:
    return Value(row.family, detail=row.settings)


def _seeds(row: Row) -> str:
    there, wanted = len(row.records), len(row.plan.seeds)
    return str(there) if there == wanted else f"{there} of {wanted}"


def _printed(row: Row, measure: Measure) -> Value:
    found = measure.paper(row.paper) if row.paper and measure.paper else None
    if found is None:
        return NOTHING
    deviation = "" if found.sd is None else write(found.sd, 2)
    return Value(write(found.mean, 2), deviation)


def _real(results: Results, measures: Sequence[Measure], *, before: int, after: int) -> list[Line]:
    """A line for real text under the same scorer, where it was scored."""
    values = [measure.show(results.spread(measure.real) if measure.real else None) for measure in measures]
    if all(value == NOTHING for value in values):
        return []
    values = [Value(value.text) if value != NOTHING else Value("") for value in values]
    names = [Value("real text", detail="held out"), *[Value("")] * (before - 1)]
    return [Line((*names, *values, *[Value("")] * after), rule=True, aside=True)]


def _course(row: Row, part: str) -> Spread | None:
    """Mean perplexity of a path at its ends or between them, over seeds."""
    means = []
    for record in row.records:
        line = (record.get("interpolation") or {}).get("perplexity") or []
        chosen = [line[0], line[-1]] if part == "ends" and line else line[1:-1]
        if chosen and None not in chosen:
            means.append(sum(chosen) / len(chosen))
    return spread(means)
