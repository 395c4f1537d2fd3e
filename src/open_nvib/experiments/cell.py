"""`run_cell`: prepare, train and evaluate one cell, from the start or from where it was interrupted.

While a cell runs, its lock is held, and its state file is written every few seconds as a sign of life.
"""

import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from open_nvib.experiments.experiment import Cell, Say, prepare_if_missing
from open_nvib.store.cells import CellResult, CellState, TrainingResult, read_cell
from open_nvib.store.files import InputError, in_one_line, is_running, read_record, write_json, write_text
from open_nvib.store.runs import is_run, read_config, read_metrics
from open_nvib.store.settings import differences

HEARTBEAT_SECONDS = 10.0  # between two signs of life of a running cell
STALE_SECONDS = 60.0  # without a sign of life, after which a running cell counts as interrupted
LOCK_RETRY_SECONDS = 0.5  # between two attempts to lock a cell that another process holds


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: done; kept, which was done before; failed; or busy, which another process runs."""

    cell: Cell
    state: Literal["done", "kept", "failed", "busy"]
    reason: str = ""  # why it failed, or which process runs it
    files: Mapping[Path, str] = field(default_factory=dict)  # what a worker on another machine wrote

    def with_files(self) -> "Outcome":
        """Add the files that a machine without this file system needs."""
        files = (self.cell.result_file, self.cell.state_file, self.cell.failure_file)
        return replace(self, files={file: file.read_text(encoding="utf-8") for file in files if file.is_file()})

    def write_files(self) -> None:
        """Write the files that are not here, or differ, as the worker does not share this file system."""
        for file, text in self.files.items():
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                write_text(file, text)


def run_cell(cell: Cell, *, say: Say, overwrite: bool = False, wait_seconds: float = 0.0) -> Outcome:
    """Prepare the data if it is missing, train, evaluate, and write the result.

    A cell that is done is left as it is. An interrupted one resumes from its last checkpoint. A failure is an outcome,
    not an exception. `overwrite` replaces what was done with other settings, which fails otherwise; `wait_seconds` says
    how long to wait for another process that holds the cell.
    """
    try:
        with _locked(cell, wait_seconds) as locked:
            known = read_state(cell)
            if not locked:
                who = f"process {known.pid} on {known.host}" if known is not None else "another process"
                return Outcome(cell, "busy", f"{who} runs it")
            conflict = settings_conflict(cell, known)
            if conflict and not overwrite:
                return Outcome(cell, "failed", conflict)
            if not conflict and finished_result(cell, known) is not None:
                return Outcome(cell, "kept").with_files()
            return _train_and_evaluate(cell, known, say, overwrite=overwrite)
    except (InputError, OSError) as error:  # of the cell's own files; other errors are in its state
        return Outcome(cell, "failed", reason_of(error))


@contextmanager
def _locked(cell: Cell, wait_seconds: float) -> Iterator[bool]:
    """Lock the cell; yield whether that succeeded. The lock is released when the process ends, however it ends.

    Locks may not reach other hosts, so signs of life of another host's process count as a lock. On this host locks are
    reliable: a live process that the state names and that does not hold the lock has a reused number.
    """
    make_directory(cell)
    lock = FileLock(cell.directory / ".lock")
    deadline = time.monotonic() + wait_seconds
    while True:
        with suppress(Timeout):
            lock.acquire(timeout=0)
            known = read_state(cell)
            if known is None or known.host == socket.gethostname() or not is_alive(cell, known):
                break
            lock.release()
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(LOCK_RETRY_SECONDS)
    try:
        yield True
    finally:
        lock.release()


def _train_and_evaluate(cell: Cell, known: CellState | None, say: Say, *, overwrite: bool) -> Outcome:
    import torch  # here, so that the state of cells can be read without waiting for it

    from open_nvib.evaluation import evaluate
    from open_nvib.text.training.train import train

    with _Progress(cell, known) as progress:
        try:
            progress.write(phase="prepare")
            prepare_if_missing(cell.prepare, say)
            progress.write(phase="train")
            another = is_run(cell.run) and differences(read_config(cell.run), cell.train)
            train(cell.train, cell.run, overwrite=overwrite and bool(another))
            progress.write(phase="evaluate")
            device = "cuda" if torch.cuda.is_available() else None  # where it was trained
            evaluation = evaluate(cell.run, cell.evaluate, device=device, say=say)
            progress.write(phase=None)
            evaluations = {**read_metrics(cell.run).evaluations, cell.evaluate.name: evaluation}
            trained, seconds = TrainingResult.of(cell.run), progress.state.seconds
            result = CellResult(cell.row, cell.seed, evaluations, cell.label, cell.paper, trained, seconds)
            write_json(cell.result_file, result, indent=1)
            cell.failure_file.unlink(missing_ok=True)
            progress.write(state="done", finished=_now())
        except Exception as error:
            write_failure(cell, traceback.format_exc())
            progress.write(state="failed", reason=reason_of(error), finished=_now())
    state = progress.state
    return Outcome(cell, "done" if state.state == "done" else "failed", state.reason or "").with_files()


def read_state(cell: Cell) -> CellState | None:
    """Read the state of a cell; None if it was never started, or if the file is damaged."""
    try:
        return read_record(cell.state_file, CellState, fix="Run the cell again.")
    except InputError:
        return None


def read_result(cell: Cell) -> CellResult | None:
    """Read the result of this very cell; None if there is none, or if the file is damaged or something else."""
    try:
        result = read_cell(cell.result_file)
    except InputError:
        return None
    ours = (result.row, result.seed) == (cell.row, cell.seed) and cell.evaluate.name in result.evaluations
    return result if ours else None


def finished_result(cell: Cell, state: CellState | None) -> CellResult | None:
    """Read the result of a cell in this state; None if it is not done."""
    return read_result(cell) if state is not None and state.state == "done" else None


def is_alive(cell: Cell, state: CellState) -> bool:
    """Tell whether the process of a cell still runs it: it exists, if it is on this host, and gives signs of life."""
    if state.state != "running" or state.pid is None:
        return False
    if state.host == socket.gethostname() and not is_running(state.pid):
        return False
    with suppress(FileNotFoundError):
        return time.time() - cell.state_file.stat().st_mtime < STALE_SECONDS
    return False


def settings_conflict(cell: Cell, state: CellState | None) -> str | None:
    """Say in which settings a cell differs from those that it was started with; None if in none."""
    changed = [] if state is None else differences(state.settings, cell.settings)
    if not changed:
        return None
    return (
        f"{cell.directory}: holds {cell} with other settings ({', '.join(changed[:5])}). Give another output, or "
        f"--overwrite to replace it."
    )


def make_directory(cell: Cell) -> None:
    """Make the cell's directory. Anything else in the place of its files is left alone, and is an error."""
    cell.directory.mkdir(parents=True, exist_ok=True)
    for file in (cell.state_file, cell.result_file, cell.log_file, cell.failure_file):
        if file.is_dir():
            raise InputError(f"{file}: is a directory, expected a file. Move it away, or give another output.")
    if cell.result_file.exists() and not cell.state_file.exists() and read_result(cell) is None:
        raise InputError(
            f"{cell.result_file}: exists and is not the result of {cell}, so it is left alone. Move it away, or give "
            f"another output."
        )


def record_lost_process(cell: Cell, reason: str, *, pid: int | None = None) -> Outcome:
    """Record that the process of a cell ended without an outcome, unless another process runs the cell by now."""
    known = read_state(cell)
    ours = known is None or (pid in (None, known.pid) and not is_alive(cell, known))
    if ours and finished_result(cell, known) is None:
        state = CellState("failed", cell.settings) if known is None else known
        write_failure(cell, f"{reason}\n")
        with suppress(OSError):
            failed = replace(state, state="failed", reason=reason, pid=None, finished=_now())
            write_json(cell.state_file, failed, indent=1)
    return Outcome(cell, "failed", reason)


def write_failure(cell: Cell, text: str) -> None:
    with suppress(OSError):  # the reason is in the outcome too
        cell.failure_file.write_text(text, encoding="utf-8")


def reason_of(error: BaseException) -> str:
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    return in_one_line(text, longest=400)


class _Progress:
    """Keeps the state file of a cell that this process runs: phases, the time they take, and signs of life."""

    def __init__(self, cell: Cell, known: CellState | None) -> None:
        state = CellState("running", cell.settings, host=socket.gethostname(), pid=os.getpid(), started=_now())
        if known is not None and not settings_conflict(cell, known):
            state = replace(state, started=known.started, seconds=known.seconds)
        self.cell, self.state = cell, state
        self._since = time.monotonic()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "_Progress":
        self.write()
        self._heart.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the signs of life. A cell that is neither done nor failed now was interrupted: no process runs it."""
        self._stopped.set()
        self._heart.join()
        self.write(pid=None)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # the next one may work; without any the cell counts as interrupted
                self.write()

    def write(self, **changes: Any) -> None:
        """Write the state after changes. The time until now is that of the phase before them."""
        with self._lock:
            state, elapsed = self.state, time.monotonic() - self._since
            seconds = state.seconds
            if state.state == "running" and state.phase in ("train", "evaluate"):
                seconds = {**seconds, state.phase: round(seconds.get(state.phase, 0.0) + elapsed, 2)}
            self._since += elapsed
            self.state = replace(state, seconds=seconds, **changes)
            write_json(self.cell.state_file, self.state, indent=1)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
