"""How far an experiment is: a table of rows × seeds."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from open_nvib.experiments.experiment import Cell, Experiment, count
from open_nvib.experiments.state import CellState, is_alive, is_done, read_json, read_state
from open_nvib.report.cells import find
from open_nvib.text.using.run import LENGTHS, LOG

Name = Literal["done", "running", "interrupted", "failed", "waiting"]
NAMES: tuple[Name, ...] = ("done", "running", "interrupted", "failed", "waiting")


@dataclass(frozen=True)
class CellStatus:
    """How far a cell is.

    Args:
        row: its row.
        seed: its seed.
        state: done; running; interrupted, which `run` goes on with; failed; or waiting.
        phase: what it is doing, where it is running or interrupted.
        step: training steps that are logged.
        steps: training steps in all, where that is known.
        seconds: that training and evaluation have taken.
        reason: why it failed.
        host: where it runs.
    """

    row: str
    seed: int
    state: Name
    phase: str | None = None
    step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    reason: str | None = None
    host: str | None = None

    def __str__(self) -> str:
        time = "" if self.seconds is None else f" {duration(self.seconds)}"
        if self.state in ("running", "interrupted") and self.phase is not None:
            steps = "" if self.step is None else f" {self.step}/{self.steps or '?'}"
            return f"{self.state}: {self.phase}{steps if self.phase == 'train' else ''}{time}"
        return f"{self.state}{time}"


def status_of(cell: Cell) -> CellStatus:
    state = read_state(cell)
    if state is None:
        return CellStatus(cell.row, cell.seed, "waiting")
    name: Name = "interrupted"
    if state.state == "failed":
        name = "failed"
    elif is_done(cell, state):
        name = "done"
    elif is_alive(cell, state):
        name = "running"
    return CellStatus(
        row=cell.row,
        seed=cell.seed,
        state=name,
        phase=state.phase,
        step=_last_step(cell),
        steps=_steps(cell, state),
        seconds=round(sum(state.seconds.values()), 1),
        reason=state.reason,
        host=state.host if name == "running" else None,
    )


def _last_step(cell: Cell) -> int | None:
    try:
        lines = (cell.run / LOG).read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.endswith("}")]
    except (OSError, ValueError, RecursionError):
        return None
    steps = [entry.get("step") for entry in entries if isinstance(entry, dict)]
    return max((step for step in steps if isinstance(step, int)), default=None)


def _steps(cell: Cell, state: CellState) -> int | None:
    """Given, or told by the number of training sentences, which the run has noted."""
    optimiser = cell.train.optimiser
    if optimiser.steps is not None:
        return optimiser.steps
    lengths = find(read_json(cell.run / LENGTHS), "lengths")
    if not isinstance(lengths, list) or not all(isinstance(count, int) for count in lengths):
        return None
    return optimiser.steps_for(sum(lengths))


def show(experiment: Experiment, statuses: Sequence[CellStatus]) -> str:
    """The table, the failures with their reasons, and the totals."""
    seeds = sorted({status.seed for status in statuses})
    rows = list(dict.fromkeys(status.row for status in statuses))
    found = {(status.row, status.seed): str(status) for status in statuses}
    table = [["", *(f"seed {seed}" for seed in seeds)]]
    table += [[row, *(found.get((row, seed), "") for seed in seeds)] for row in rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table]
    for status in statuses:
        if status.state == "failed":
            lines.append(f"{status.row} seed {status.seed} failed: {status.reason}")
    totals = Counter(status.state for status in statuses)
    counts = ", ".join(f"{totals[name]} {name}" for name in NAMES if totals[name])
    lines.append(f"{experiment.name}: {count(len(statuses))} in {experiment.output}: {counts}")
    return "\n".join(lines)


def as_json(experiment: Experiment, statuses: Sequence[CellStatus]) -> dict[str, Any]:
    totals = Counter(status.state for status in statuses)
    return {
        "name": experiment.name,
        "output": str(experiment.output),
        "cells": [vars(status) for status in statuses],
        "totals": {name: totals[name] for name in NAMES},
    }


def duration(seconds: float) -> str:
    """Such as 1h02m, 3m07s or 12s."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
