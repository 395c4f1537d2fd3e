"""Results of an experiment: the cells of each row, its name, the paper's numbers, and which NVAE the figures show."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import msgspec

from open_nvib.experiments.experiment import Plan, RowPlan
from open_nvib.report.measures import BLEU, KEPT, REVERSE, MeanAndDeviation, Measure, Read, mean_and_deviation
from open_nvib.store.cells import CellResult, read_cells
from open_nvib.store.evaluations import COPYING, DEFAULT_NAME, Evaluation, is_causal, split_name
from open_nvib.store.files import InputError
from open_nvib.store.settings import Schedule, TrainConfig

FAMILIES = ("T", "VT", "VTP", "VTS", "NVAE")
KEEPS_FEW = 0.6  # a model that keeps at most this share of the vectors has learned to drop some
USEFUL_BLEU = 50.0
_NOT_IN_XML = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def one_line(text: str) -> str:
    """Put a text on one line, without what no page, figure or file can hold: control characters, lone surrogates."""
    return _NOT_IN_XML.sub("", re.sub(r"\s+", " ", text)).strip()


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table: its model, the two columns beside it, ν, and what was measured. T has no samples."""

    model: str
    settings: str
    kept: MeanAndDeviation
    bleu: MeanAndDeviation
    perplexity: MeanAndDeviation
    forward: MeanAndDeviation | None = None
    reverse: MeanAndDeviation | None = None


PAPER = msgspec.json.decode((files("open_nvib.report") / "paper.json").read_bytes(), type=dict[str, PaperRow])
"""The paper's table, `tab:generationReconstuction`: 405,000 sentences of Wikitext-103, 5 seeds; by file of configs/.

F-PPL and R-PPL near 1 cannot come from a causal language model, as English has no such entropy: do not compare them
with those of one.
"""


@dataclass(frozen=True, eq=False)
class RowResults:
    """The cells of a row, and one evaluation of each."""

    plan: RowPlan
    cells: tuple[CellResult, ...]  # those that exist, by seed
    evaluation: str  # the name of the one that is reported, such as "validation-causal"

    @property
    def name(self) -> str:
        return self.plan.name

    @cached_property
    def by_seed(self) -> dict[int, Evaluation]:
        found = {cell.seed: cell.evaluations.get(self.evaluation) for cell in self.cells}
        return {seed: evaluation for seed, evaluation in found.items() if evaluation}

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        return tuple(self.by_seed.values())

    @property
    def paper(self) -> PaperRow | None:
        return PAPER.get(self.plan.paper or "")

    @property
    def config(self) -> TrainConfig | None:
        """The configuration of its runs, which differ in their seed alone; None before there is a cell."""
        return self.evaluations[0].config if self.evaluations else None

    @cached_property
    def family(self) -> str:
        """T, VT, VTP, VTS or NVAE, by the configuration, else the label, the paper's row or the name."""
        guesses = (
            self.config.model.bottleneck if self.config else "",
            (self.plan.label or "").split(" ")[0],
            self.paper.model if self.paper else "",
            self.name.split("-")[0],
        )
        return next((guess.upper() for guess in guesses if guess.upper() in FAMILIES), one_line(self.name))

    @cached_property
    def settings(self) -> str:
        """The settings as the label says, else from the configuration, else as the paper prints them."""
        if self.plan.label and self.plan.label != self.name:
            return one_line(self.plan.label).removeprefix(self.family).strip()
        if self.config:
            return settings_in_symbols(self.family, self.config)
        return self.paper.settings if self.paper else "" if self.name.upper() == self.family else one_line(self.name)

    @property
    def title(self) -> str:
        return self.family if self.settings == self.family else f"{self.family} {self.settings}".strip()

    def values(self, read: Read) -> list[float]:
        """The number of each seed, where it was measured."""
        return [value for evaluation in self.evaluations if (value := read(evaluation)) is not None]

    def mean(self, read: Read) -> MeanAndDeviation | None:
        return mean_and_deviation(self.values(read))


@dataclass(frozen=True, eq=False)
class Results:
    """All there is to report of an experiment."""

    plan: Plan
    evaluation: str  # the name of the one that is reported, "<split>-<scorer>"
    rows: tuple[RowResults, ...]  # in the order of the plan, those without a cell too
    unplanned: tuple[str, ...] = ()  # cells of rows or seeds that the plan does not have, which are not reported

    @property
    def cells(self) -> tuple[CellResult, ...]:
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        return tuple(evaluation for row in self.rows for evaluation in row.evaluations)

    @property
    def measured(self) -> tuple[RowResults, ...]:
        """Rows of which at least one cell was evaluated."""
        return tuple(row for row in self.rows if row.evaluations)

    @property
    def planned(self) -> int:
        return sum(len(row.plan.seeds) for row in self.rows)

    @property
    def missing(self) -> tuple[tuple[str, int], ...]:
        """Row and seed of each cell that is planned and not evaluated."""
        return tuple((row.name, seed) for row in self.rows for seed in row.plan.seeds if seed not in row.by_seed)

    @property
    def split(self) -> str:
        return split_name(self.evaluation)[0]

    @property
    def scorer(self) -> str:
        return split_name(self.evaluation)[1]

    @cached_property
    def short_titles(self) -> dict[str, str]:
        """For each measured row, the settings in which it differs from others of its family."""
        settings = short_settings([(row.family, row.settings) for row in self.measured])
        return {row.name: text for row, text in zip(self.measured, settings, strict=True)}

    def copying(self) -> "Results | None":
        """The same cells under the sentence-copying scorer; None if this is it already or no cell has it."""
        name = f"{self.split}-{COPYING}"
        if name == self.evaluation or not any(name in cell.evaluations for cell in self.cells):
            return None
        rows = tuple(RowResults(row.plan, row.cells, name) for row in self.rows)
        return Results(self.plan, name, rows, self.unplanned)

    def real(self, measure: Measure) -> MeanAndDeviation | None:
        """Mean over all cells of the same number of real text; None where it was not measured."""
        if measure.real is None:
            return None
        return mean_and_deviation([value for row in self.rows for value in row.values(measure.real)])


def read_results(plan: Plan, folder: str | Path, *, evaluation: str | None = None) -> Results:
    """Read the cells of an experiment.

    Args:
        plan: the rows to report.
        folder: holds the results, as an experiment or an earlier report wrote them.
        evaluation: name of the evaluation to report; the causal one that most cells have if not given.
    """
    folder = Path(folder).expanduser()
    cells = read_cells(folder)
    if not cells:
        raise InputError(f"{folder}: no results are there yet. Run `nvib experiment run` first, or give --cells.")
    return group(plan, cells, evaluation=evaluation)


def group(plan: Plan, cells: Sequence[CellResult], *, evaluation: str | None = None) -> Results:
    """Put cells under the rows of the plan, seeds in order."""
    name = evaluation or _most_frequent(cells)
    found = {(cell.row, cell.seed): cell for cell in cells}
    rows = []
    for row in plan.rows:
        own = [(row.name, seed) for seed in sorted(row.seeds)]
        rows.append(RowResults(row, tuple(found.pop(place) for place in own if place in found), name))
    return Results(plan, name, tuple(rows), unplanned=tuple(f"{row} seed {seed}" for row, seed in found))


def _most_frequent(cells: Iterable[CellResult]) -> str:
    """Name of the evaluation that most cells have, a causal one before others."""
    counts = Counter(name for cell in cells for name in cell.evaluations)
    return max(counts, key=lambda name: (is_causal(name), counts[name], name == DEFAULT_NAME), default=DEFAULT_NAME)


def settings_in_symbols(family: str, config: TrainConfig) -> str:
    """Write the settings of a configuration in the paper's symbols."""
    parts = []
    if family != "T":
        parts.append(f"λ′_G={_value(config.loss.lambda_g)}")
    if family == "NVAE":
        parts += [f"λ′_D={_value(config.loss.lambda_d)}", f"Δ={_value(config.loss.delta)}"]
    if family == "VTP":
        parts.append(config.model.pooling)
    if family == "VTS":
        parts.append(f"S={config.model.stride:g}")
    return " ".join(parts)


def _value(value: float | Schedule) -> str:
    return f"{value.start:g}→{value.end:g}" if isinstance(value, Schedule) else f"{value:g}"


def short_settings(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Of rows (family, settings), keep the settings in which rows of a family differ, for labels in a figure.

    λ′_G=0.01 becomes G=0.01, which the caption explains.
    """
    result = []
    for family, settings in rows:
        shared = set.intersection(*(set(other.split()) for name, other in rows if name == family))
        words = [word for word in settings.split() if word not in shared]
        result.append(" ".join(words).replace("λ′_", ""))
    return result


@dataclass(frozen=True, eq=False)
class SelectedNVAE:
    """The NVAE that figures of a single model show."""

    row: RowResults
    reason: str  # its title, with why it was selected


def select_nvae(rows: Sequence[RowResults]) -> SelectedNVAE | None:
    """Select the NVAE that drops vectors and still reconstructs.

    Of rows with a BLEU of at least 50, the highest BLEU where at most 60 % of the vectors are kept. If there is none,
    the fewest vectors, to a percent, and the lowest R-PPL of those with as few. If there is none, the highest BLEU.
    """
    known = [
        (row, bleu.mean, kept.mean)
        for row in rows
        if row.family == "NVAE" and (bleu := row.mean(BLEU.read)) and (kept := row.mean(KEPT.read))
    ]
    if not known:
        return None
    useful = [entry for entry in known if entry[1] >= USEFUL_BLEU]
    few = [entry for entry in useful if entry[2] <= KEEPS_FEW]
    if few:
        row, bleu, kept = max(few, key=lambda entry: entry[1])
        why = f"has the highest BLEU of the NVAE rows that keep at most {KEEPS_FEW:.0%} of the vectors"
    elif useful:
        reverse = {row.name: mean.mean for row, _, _ in useful if (mean := row.mean(REVERSE.read))}
        row, bleu, kept = min(useful, key=lambda entry: (round(entry[2], 2), reverse.get(entry[0].name, math.inf)))
        why = (
            f"keeps fewest vectors with a BLEU of at least {USEFUL_BLEU:.0f}, with the lowest R-PPL of those with as "
            f"few, as no NVAE row with such a BLEU keeps at most {KEEPS_FEW:.0%}"
        )
    else:
        row, bleu, kept = max(known, key=lambda entry: entry[1])
        why = f"has the highest BLEU, as no NVAE row has a BLEU of {USEFUL_BLEU:.0f}"
    return SelectedNVAE(row, f"{row.title}, which {why} (BLEU {bleu:.1f}, ν = {kept:.2f})")
