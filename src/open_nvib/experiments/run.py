"""`run_experiment`: every cell that is not done, on an engine."""

from collections.abc import Sequence

from open_nvib.experiments.cell import Outcome, differs, reason_of
from open_nvib.experiments.data import check_recipe, prepare_if_missing
from open_nvib.experiments.engines import Engine
from open_nvib.experiments.experiment import Cell, Experiment, count
from open_nvib.experiments.state import Say, changed_settings, is_done, read_result, read_state
from open_nvib.store.files import InputError, write_json


def run_experiment(
    experiment: Experiment,
    cells: Sequence[Cell],
    engine: Engine,
    *,
    overwrite: bool = False,
    retry_failed: bool = True,
    say: Say,
) -> list[Outcome]:
    """Run the cells that are not done.

    Args:
        experiment: what the cells are of.
        cells: some or all of its cells, in the order to run them.
        engine: where to run them.
        overwrite: replace cells that were run with other settings, which is an InputError otherwise.
        retry_failed: try cells again that failed before.
        say: takes a line of progress.

    Returns:
        An outcome for each cell, in the order in which they came.
    """
    check_recipe(experiment.prepare)
    outcomes, waiting = _sort(cells, overwrite=overwrite, retry_failed=retry_failed)
    if not waiting:
        return outcomes
    try:
        experiment.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{experiment.output}: cannot be written ({error.strerror}). Give another output.") from error
    with engine:
        if outcomes:
            say(f"{experiment.name}: {len(outcomes)} of {count(len(cells))} not run again")
        prepare_if_missing(experiment.prepare, say)  # once and here, where a mistake stops everything before it begins
        for outcome in engine.run(waiting, overwrite=overwrite, say=say):
            outcomes.append(outcome)
            reason = f": {outcome.reason}" if outcome.reason else ""
            say(f"{outcome.cell}: {outcome.state}{reason} ({len(outcomes)} of {len(cells)})")
    return outcomes


def _sort(cells: Sequence[Cell], *, overwrite: bool, retry_failed: bool) -> tuple[list[Outcome], list[Cell]]:
    """What is there already, and what is to be run."""
    outcomes: list[Outcome] = []
    waiting: list[Cell] = []
    for cell in cells:
        known = read_state(cell)
        changed = [] if known is None else changed_settings(cell, known)
        if changed and not overwrite:
            raise InputError(differs(cell, changed))
        if not changed and is_done(cell, known):
            outcomes.append(_kept(cell))
        elif known is not None and known.state == "failed" and not retry_failed and not changed:
            outcomes.append(Outcome(cell, "failed", known.reason or ""))
        else:
            waiting.append(cell)
    return outcomes, waiting


def _kept(cell: Cell) -> Outcome:
    """What a row is called changes nothing that was measured, and may be changed later."""
    result = read_result(cell)
    labels = {"label": cell.label, "paper": cell.paper}
    try:
        if result is not None and result != {**result, **labels}:
            write_json(cell.result_file, {**result, **labels}, indent=1)
    except OSError as error:
        return Outcome(cell, "failed", reason_of(error))
    return Outcome(cell, "kept")


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many came to what, and a line for each that failed."""
    done = sum(outcome.state in ("done", "kept") for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    busy = sum(outcome.state == "busy" for outcome in outcomes)
    counts = [f"{done} done", f"{len(failed)} failed" if failed else "", f"{busy} run elsewhere" if busy else ""]
    return "\n".join([*map(_failure, failed), f"{count(len(outcomes))}: {', '.join(filter(None, counts))}"])


def _failure(outcome: Outcome) -> str:
    file = outcome.cell.failure_file
    return f"{outcome.cell} failed: {outcome.reason}{f' ({file})' if file.is_file() else ''}"
