"""`run_experiment`: run every cell that is not done, on an engine; `status_of`: see how far each cell is."""

import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from open_nvib.experiments.cell import Outcome, finished_result, is_alive, read_state, settings_conflict
from open_nvib.experiments.engines import Engine
from open_nvib.experiments.experiment import Cell, Experiment, Say, check_recipe, prepare_if_missing
from open_nvib.store.files import InputError, write_json
from open_nvib.store.runs import read_lengths, read_log, run_being_written

StatusName = Literal["done", "running", "interrupted", "failed", "waiting"]
STATUS_NAMES: tuple[StatusName, ...] = get_args(StatusName)


def run_experiment(
    experiment: Experiment,
    cells: Sequence[Cell],
    engine: Engine,
    *,
    overwrite: bool = False,
    retry_failed: bool = True,
    say: Say,
) -> list[Outcome]:
    """Run those of an experiment's `cells` that are not done, and return an outcome for each, as they become known.

    Args:
        experiment: what the cells are of.
        cells: some or all of its cells, in the order to run them.
        engine: where to run them.
        overwrite: replace cells that were run with other settings, which is an InputError otherwise.
        retry_failed: try cells again that failed before.
        say: takes a line of progress.
    """
    if experiment.prepare is not None:
        check_recipe(experiment.prepare)
    outcomes, waiting = _partition(cells, overwrite=overwrite, retry_failed=retry_failed)
    if not waiting:
        return outcomes
    experiment.output.mkdir(parents=True, exist_ok=True)
    if outcomes:
        say(f"{experiment.name}: {len(outcomes)} of {_count(len(cells))} not run again")
    prepare_if_missing(experiment.prepare, say)  # once and here, where a mistake stops everything before it begins
    with closing(engine.run(waiting, overwrite=overwrite, say=say)) as running:
        for outcome in running:
            outcomes.append(outcome)
            reason = f": {outcome.reason}" if outcome.reason else ""
            say(f"{outcome.cell}: {outcome.state}{reason} ({len(outcomes)} of {len(cells)})")
    return outcomes


def _partition(cells: Sequence[Cell], *, overwrite: bool, retry_failed: bool) -> tuple[list[Outcome], list[Cell]]:
    """Outcomes of the cells that are not run again, and the cells to run."""
    outcomes: list[Outcome] = []
    waiting: list[Cell] = []
    for cell in cells:
        known = read_state(cell)
        conflict = settings_conflict(cell, known)
        if conflict and not overwrite:
            raise InputError(conflict)
        if not conflict and (result := finished_result(cell, known)) is not None:
            if (result.label, result.paper) != (cell.label, cell.paper):  # the row is called otherwise now
                renamed = replace(result, label=cell.label, paper=cell.paper, path=None)
                write_json(cell.result_file, renamed, indent=1)
            outcomes.append(Outcome(cell, "kept"))
        elif known is not None and known.state == "failed" and not retry_failed and not conflict:
            outcomes.append(Outcome(cell, "failed", known.reason or ""))
        else:
            waiting.append(cell)
    return outcomes, waiting


def summary(outcomes: Sequence[Outcome]) -> str:
    """Count the outcomes, after a line for each cell that failed."""
    lines = []
    for outcome in outcomes:
        if outcome.state == "failed":
            file = outcome.cell.failure_file
            lines.append(f"{outcome.cell} failed: {outcome.reason}{f' ({file})' if file.is_file() else ''}")
    busy = sum(outcome.state == "busy" for outcome in outcomes)
    counts = {"done": len(outcomes) - len(lines) - busy, "failed": len(lines), "run elsewhere": busy}
    shown = [f"{count} {state}" for state, count in counts.items() if count or state == "done"]
    return "\n".join([*lines, f"{_count(len(outcomes))}: {', '.join(shown)}"])


def _count(cells: int) -> str:
    return "1 cell" if cells == 1 else f"{cells} cells"


@dataclass(frozen=True)
class CellStatus:
    """The progress of a cell; `run` resumes an interrupted one."""

    row: str
    seed: int
    state: StatusName
    phase: str | None = None  # what it is doing, if it is running or interrupted
    step: int | None = None  # the last one of training in the log, of `steps` in all
    steps: int | None = None
    seconds: float | None = None  # of training and evaluation
    training_seconds: float = 0.0
    reason: str | None = None  # why it failed
    host: str | None = None  # where it runs

    def __str__(self) -> str:
        time = "" if self.seconds is None else f" {duration(self.seconds)}"
        if self.state in ("running", "interrupted") and self.phase is not None:
            steps = "" if self.step is None else f" {self.step}/{self.steps or '?'}"
            return f"{self.state}: {self.phase}{steps if self.phase == 'train' else ''}{time}"
        return f"{self.state}{time}"


def status_of(cell: Cell) -> CellStatus:
    """Tell from its files how far a cell is."""
    state = read_state(cell)
    if state is None:
        return CellStatus(cell.row, cell.seed, "waiting")
    name: StatusName = "interrupted"
    if state.state == "failed":
        name = "failed"
    elif finished_result(cell, state) is not None:
        name = "done"
    elif is_alive(cell, state):
        name = "running"
    optimiser = cell.train.optimiser
    step, steps = None, optimiser.steps
    with suppress(InputError):  # a damaged log
        step = max((entry.step for entry in read_log(run_being_written(cell.run))), default=None)
    with suppress(InputError):  # not begun
        steps = steps or optimiser.steps_for(sum(read_lengths(cell.run).lengths))
    return CellStatus(
        row=cell.row,
        seed=cell.seed,
        state=name,
        phase=state.phase,
        step=step,
        steps=steps,
        seconds=round(sum(state.seconds.values()), 1),
        training_seconds=round(state.seconds.get("train", 0.0), 1),
        reason=state.reason,
        host=state.host if name == "running" else None,
    )


def seconds_left(statuses: Sequence[CellStatus]) -> float | None:
    """Estimate how long the cells that are not done will take, with as many at once as run now, or one if none does.

    A step takes as long as it took in the same row, or else on average; an evaluation as long as the average one. None
    if nothing was trained yet.
    """
    trained = [status for status in statuses if status.step and status.training_seconds]
    if not trained:
        return None
    usual_steps = statistics.fmean(status.steps or status.step or 0 for status in trained)
    usual_evaluation = statistics.fmean([_evaluating(status) for status in statuses if status.state == "done"] or [0.0])

    def left_of(status: CellStatus) -> float:
        alike = [other for other in trained if other.row == status.row] or trained
        per_step = sum(other.training_seconds for other in alike) / sum(other.step or 0 for other in alike)
        steps = max((status.steps or usual_steps) - (status.step or 0), 0)
        return steps * per_step + max(usual_evaluation - _evaluating(status), 0)

    running = sum(status.state == "running" for status in statuses)
    return sum(left_of(status) for status in statuses if status.state != "done") / max(running, 1)


def _evaluating(status: CellStatus) -> float:
    """Seconds that the evaluation of a cell has taken."""
    return (status.seconds or 0.0) - status.training_seconds


def show_status(experiment: Experiment, statuses: Sequence[CellStatus]) -> str:
    """Draw a table of rows × seeds, then the failures with their reasons, and the totals."""
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
    counts = ", ".join(f"{totals[name]} {name}" for name in STATUS_NAMES if totals[name])
    lines.append(f"{experiment.name}: {_count(len(statuses))} in {experiment.output}: {counts}")
    if left := seconds_left(statuses):
        lines.append(f"about {duration(left)} left, with {max(totals['running'], 1)} at a time")
    return "\n".join(lines)


def status_as_json(experiment: Experiment, statuses: Sequence[CellStatus]) -> dict[str, Any]:
    totals = Counter(status.state for status in statuses)
    return {
        "name": experiment.name,
        "output": str(experiment.output),
        "cells": [vars(status) for status in statuses],
        "totals": {name: totals[name] for name in STATUS_NAMES},
        "seconds_left": seconds_left(statuses),
    }


def duration(seconds: float) -> str:
    """Write a time as 1h02m, 3m07s or 12s."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
