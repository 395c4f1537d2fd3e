"""Cells grouped by the rows of an experiment, with mean and standard deviation over seeds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from open_nvib.report.cells import Cell, find, number, read_cells
from open_nvib.report.models import family_of, settings_of, short_settings
from open_nvib.report.paper import PAPER, PaperRow
from open_nvib.report.spread import Spread, spread
from open_nvib.store.files import InputError

CAUSAL, COPYING = "causal", "autoencoder"


@dataclass(frozen=True)
class RowPlan:
    """A row that is to be reported.

    Args:
        name: of the row, as in the results.
        seeds: those that the experiment wants.
        label: such as "NVAE λ′_G=0.01"; from the configuration if not given, or the name once more.
        paper: the row of the paper's table to print beside it, if the paper has one of that name.
    """

    name: str
    seeds: tuple[int, ...]
    label: str | None = None
    paper: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be reported: the part of an experiment that a report needs.

    Args:
        name: a short name.
        title: of the page.
        scale: a word for how large models and data are, such as "small"; may be empty.
        rows: in the order of the table.
    """

    name: str
    title: str
    scale: str
    rows: tuple[RowPlan, ...]


@dataclass(frozen=True, eq=False)
class Row:
    """A row with the cells that are there. `records` are their evaluations of one kind, seed by seed."""

    plan: RowPlan
    cells: tuple[Cell, ...]
    evaluation: str

    @property
    def name(self) -> str:
        return self.plan.name

    @cached_property
    def records(self) -> tuple[dict[str, Any], ...]:
        return tuple(record for cell in self.cells if (record := cell.evaluation(self.evaluation)))

    @property
    def paper(self) -> PaperRow | None:
        return PAPER.get(self.plan.paper or "")

    @cached_property
    def family(self) -> str:
        return family_of(self.name, self.plan.label, self.paper, self.config)

    @cached_property
    def settings(self) -> str:
        return settings_of(self.name, self.plan.label, self.paper, self.config)

    @property
    def title(self) -> str:
        return f"{self.family} {self.settings}".strip()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of its training runs, which differ in their seed alone."""
        found = find(self.records[0], "config") if self.records else None
        return found if isinstance(found, dict) else {}

    @property
    def block(self) -> str:
        """Rows of one block stand together, parted from others by a rule."""
        return str(self.paper.block) if self.paper else self.family

    def values(self, path: str) -> list[float]:
        """The number at a path of each record, where it is defined; see `find`."""
        return [value for record in self.records if (value := number(record, path)) is not None]

    def spread(self, path: str) -> Spread | None:
        return spread(self.values(path))


@dataclass(frozen=True, eq=False)
class Results:
    """All there is to report of an experiment.

    Args:
        plan: the experiment.
        evaluation: the evaluation of each cell that is reported, as "<split>-<scorer>".
        rows: in the order of the plan, those without a cell too.
        strays: results of rows or seeds that the plan does not have. They are not reported.
    """

    plan: Plan
    evaluation: str
    rows: tuple[Row, ...]
    strays: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def measured(self) -> tuple[Row, ...]:
        """Rows of which at least one cell is there."""
        return tuple(row for row in self.rows if row.records)

    @cached_property
    def short(self) -> dict[str, str]:
        """A few letters for each row that was measured, which tell it from others of its family."""
        settings = short_settings([(row.family, row.settings) for row in self.measured])
        return {row.name: text for row, text in zip(self.measured, settings, strict=True)}

    @property
    def missing(self) -> tuple[tuple[str, int], ...]:
        """Row and seed of each cell that is planned and not there."""
        there = {(cell.row, cell.seed) for cell in self.cells if cell.evaluation(self.evaluation)}
        planned = ((row.name, seed) for row in self.rows for seed in row.plan.seeds)
        return tuple(cell for cell in planned if cell not in there)

    @property
    def wanted(self) -> int:
        """How many cells the plan has."""
        return sum(len(row.plan.seeds) for row in self.rows)

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        return tuple(record for row in self.rows for record in row.records)

    @property
    def split(self) -> str:
        return self.evaluation.rsplit("-", 1)[0]

    @property
    def scorer(self) -> str:
        return self.evaluation.rsplit("-", 1)[-1]

    def copying(self) -> "Results | None":
        """The same cells scored by the sentence-copying scorer, where any was and this is not it already."""
        name = f"{self.split}-{COPYING}"
        if name == self.evaluation or not any(cell.evaluation(name) for cell in self.cells):
            return None
        return Results(self.plan, name, tuple(Row(row.plan, row.cells, name) for row in self.rows), self.strays)

    def first(self, path: str) -> Any:
        """What the first record that has it says at a path."""
        return next((value for record in self.records if (value := find(record, path)) is not None), None)

    def spread(self, path: str) -> Spread | None:
        """Over all cells: for what does not depend on the row, such as the perplexity of real text."""
        return spread([value for row in self.rows for value in row.values(path)])


def read_results(plan: Plan, folder: str | Path, *, evaluation: str | None = None) -> Results:
    """Read the cells of an experiment from `folder`; see `read_cells`. Without any, there is nothing to report."""
    folder = Path(folder).expanduser()
    cells = read_cells(folder)
    if not cells:
        raise InputError(f"{folder}: no results are there yet. Run `nvib experiment run` first, or give --cells.")
    return group(plan, cells, evaluation=evaluation)


def group(plan: Plan, cells: Sequence[Cell], *, evaluation: str | None = None) -> Results:
    """Cells under the rows of the plan, seeds in order."""
    name = evaluation or _usual(cells)
    planned = {(row.name, seed) for row in plan.rows for seed in row.seeds}
    strays = tuple(f"{cell.row} seed {cell.seed}" for cell in cells if (cell.row, cell.seed) not in planned)

    def of(row: RowPlan) -> tuple[Cell, ...]:
        own = (cell for cell in cells if cell.row == row.name and cell.seed in row.seeds)
        return tuple(sorted(own, key=lambda cell: cell.seed))

    return Results(plan, name, tuple(Row(row, of(row), name) for row in plan.rows), strays)


def _usual(cells: Iterable[Cell]) -> str:
    """The evaluation that most cells have, a causal one before others."""
    counts = Counter(name for cell in cells for name in cell.content["evaluations"])
    if not counts:
        return f"validation-{CAUSAL}"
    return max(counts, key=lambda name: (name.endswith(f"-{CAUSAL}"), counts[name], name == f"validation-{CAUSAL}"))
