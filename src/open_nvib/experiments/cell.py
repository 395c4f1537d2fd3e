"""`run_cell`: one cell from nothing, or from where it was interrupted, to its result."""

import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
import yaml
from filelock import FileLock, Timeout

from open_nvib.evaluation import evaluate
from open_nvib.experiments.data import prepare_if_missing
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import (
    CellState,
    Progress,
    Say,
    changed_settings,
    is_alive,
    is_done,
    make_room,
    now,
    read_result,
    read_state,
)
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import InputError, as_builtins, write_json
from open_nvib.store.runs import as_plain
from open_nvib.text.training.train import train
from open_nvib.text.using.run import CONFIG, METRICS, is_run

LONGEST_REASON = 400
AGAIN = 0.5
"""Seconds between two attempts to get hold of a cell that somebody else holds."""


@dataclass(frozen=True)
class Outcome:
    """What came of a cell.

    Args:
        cell: the cell.
        state: done; kept, which is done before; failed; or busy, which is run by somebody else.
        reason: why it failed, or who runs it.
        result: what `result.json` holds, where there is a result.
        record: what `cell.json` holds, if this call ran the cell.
        failure: the traceback, if it failed.
    """

    cell: Cell
    state: Literal["done", "kept", "failed", "busy"]
    reason: str = ""
    result: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    failure: str = ""

    def as_json(self) -> str:
        """What came of it, for the process that knows the cell. The result itself is in the cell's directory."""
        return json.dumps({"state": self.state, "reason": self.reason, "record": self.record, "failure": self.failure})

    @staticmethod
    def from_json(cell: Cell, text: str) -> "Outcome":
        outcome = Outcome(cell, **json.loads(text))
        return replace(outcome, result=read_result(cell)) if outcome.state in ("done", "kept") else outcome


def run_cell(cell: Cell, *, say: Say, overwrite: bool = False, wait: float = 0.0) -> Outcome:
    """Prepare the data if it is missing, train, evaluate, and write the result.

    A cell that is done is left as it is. An interrupted one goes on from its last checkpoint. What goes wrong is the
    outcome, not an exception.

    Args:
        cell: the cell.
        say: takes a line of progress.
        overwrite: replace what was done with other settings, which fails otherwise.
        wait: seconds to wait for another process that holds the cell.
    """
    try:
        with _claimed(cell, wait) as claimed:
            known = read_state(cell)
            if not claimed:
                who = f"process {known.pid} on {known.host}" if known is not None else "another process"
                return Outcome(cell, "busy", f"{who} runs it")
            changed = [] if known is None else changed_settings(cell, known)
            if changed and not overwrite:
                return Outcome(cell, "failed", differs(cell, changed))
            if not changed and is_done(cell, known):
                return Outcome(cell, "kept", result=read_result(cell))
            return _run(cell, known, say, overwrite=overwrite)
    except (InputError, OSError) as error:  # of the cell's own files: what goes wrong in the work is in its state
        return Outcome(cell, "failed", reason_of(error))


def differs(cell: Cell, changed: list[str]) -> str:
    return (
        f"{cell.directory}: holds {cell} with other settings ({', '.join(changed[:5])}). Give another output, or "
        f"--overwrite to replace it."
    )


@contextmanager
def _claimed(cell: Cell, wait: float) -> Iterator[bool]:
    """Whether this process now holds the cell. The lock falls with the process, however it ends.

    Where locks do not reach from one host to another, the signs of life of the other process are respected. On this
    host they do reach: a process that the state names and that does not hold the lock is another one of that number.
    """
    make_room(cell)
    lock = FileLock(cell.directory / ".lock")
    deadline = time.monotonic() + wait
    while True:
        try:
            lock.acquire(timeout=0)
            known = read_state(cell)
            if known is None or known.host == socket.gethostname() or not is_alive(cell, known):
                break
            lock.release()
        except Timeout:
            pass
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(AGAIN)
    try:
        yield True
    finally:
        lock.release()


def _run(cell: Cell, known: CellState | None, say: Say, *, overwrite: bool) -> Outcome:
    failure = ""
    with Progress(cell, known) as progress:
        try:
            with progress.phase("prepare"):
                prepare_if_missing(cell.prepare, say)
            with progress.phase("train"):
                train(cell.train, cell.run, overwrite=overwrite and _is_another(cell))
            with progress.phase("evaluate"):
                device = "cuda" if torch.cuda.is_available() else None  # where it was trained
                record = evaluate(cell.run, cell.evaluate, device=device, say=say)
            result = make_result(cell, record, progress.state.seconds)
            write_json(cell.result_file, result, indent=1)
            cell.failure_file.unlink(missing_ok=True)
            progress.done()
        except Exception as error:
            failure = traceback.format_exc()
            note_failure(cell, failure)
            progress.failed(reason_of(error))
    state = progress.state
    if state.state == "done":
        return Outcome(cell, "done", result=read_result(cell), record=asdict(state))
    return Outcome(cell, "failed", state.reason or "", record=asdict(state), failure=failure)


def _is_another(cell: Cell) -> bool:
    """Whether there is a run with other settings. It is replaced file by file: what else stands there is kept."""
    return is_run(cell.run) and yaml.safe_load((cell.run / CONFIG).read_text()) != as_plain(cell.train)


def note_failure(cell: Cell, text: str) -> None:
    with suppress(OSError):  # the reason is in the outcome too
        cell.failure_file.write_text(text, encoding="utf-8")


def make_result(cell: Cell, record: Evaluation, seconds: dict[str, float]) -> dict[str, Any]:
    """All that a report reads of a cell."""
    metrics = json.loads((cell.run / METRICS).read_text())
    evaluations = {**metrics.pop("evaluations", {}), cell.evaluation: record}
    return {
        "row": cell.row,
        "seed": cell.seed,
        "label": cell.label,
        "paper": cell.paper,
        "train": as_builtins(metrics),
        "seconds": seconds,
        "evaluations": as_builtins(evaluations),
    }


def lost(cell: Cell, reason: str, *, pid: int | None = None) -> Outcome:
    """The outcome of a cell whose process is gone without a word; its state says so, unless another one has it now."""
    known = read_state(cell)
    ours = known is None or (pid in (None, known.pid) and not is_alive(cell, known))
    if ours and not is_done(cell, known):
        state = CellState("failed", cell.settings) if known is None else known
        state = replace(state, state="failed", reason=reason, pid=None, finished=now())
        note_failure(cell, f"{reason}\n")
        with suppress(OSError):
            write_json(cell.state_file, asdict(state), indent=1)
    return Outcome(cell, "failed", reason)


def reason_of(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, InputError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"
