"""The state of a cell on disk: who runs it, what it is doing, what came of it."""

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from open_nvib.evaluation import EvaluateConfig
from open_nvib.experiments.experiment import Cell
from open_nvib.report.cells import is_cell
from open_nvib.store.files import InputError, write_json
from open_nvib.store.settings import TrainConfig, differences, with_defaults

BEAT = 10.0
"""Seconds between two signs of life of a running cell: its state file is written again."""
STALE = 60.0
"""Seconds without one after which it counts as interrupted."""

MOST_PROCESSES = 2**31
Phase = Literal["prepare", "train", "evaluate"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class CellState:
    """What `cell.json` holds.

    Args:
        state: running, done or failed. What was killed says running: see `is_alive`.
        settings: of the training and of the evaluation.
        reason: why it failed, in one line.
        phase: what it is doing, or was when it stopped.
        host: where it runs or ran.
        pid: the process there; None once it has let go of the cell.
        started: when it was first started.
        finished: when it was done, or failed.
        seconds: that training and evaluation have taken in all, interrupted attempts included.
    """

    state: Literal["running", "done", "failed"]
    settings: dict[str, Any]
    reason: str | None = None
    phase: Phase | None = None
    host: str = ""
    pid: int | None = None
    started: str = ""
    finished: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def read_state(cell: Cell) -> CellState | None:
    """The state of a cell; None if it was never started, or if the file is damaged and so says nothing."""
    value = read_json(cell.state_file)
    return CellState(**value) if is_state(value) else None


def read_result(cell: Cell) -> dict[str, Any] | None:
    """The result of this very cell; None if it has none, or if the file is damaged or is something else."""
    result = read_json(cell.result_file)
    ours = is_cell(result) and (result["row"], result["seed"]) == (cell.row, cell.seed)
    return result if ours and cell.evaluation in result["evaluations"] else None


def read_json(path: Path) -> Any:
    """What a file holds; None for one that is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def is_state(value: Any) -> bool:
    """Whether a JSON value is what `CellState` says, entry by entry."""
    if not isinstance(value, dict) or not value.keys() <= {entry.name for entry in fields(CellState)}:
        return False
    seconds, pid = value.get("seconds", {}), value.get("pid")
    return (
        value.get("state") in ("running", "done", "failed")
        and isinstance(value.get("settings"), dict)
        and value.get("phase") in (None, "prepare", "train", "evaluate")
        and all(isinstance(value.get(name, ""), str) for name in ("host", "started"))
        and all(isinstance(value.get(name), str | None) for name in ("reason", "finished"))
        and (pid is None or (type(pid) is int and 0 < pid < MOST_PROCESSES))
        and isinstance(seconds, dict)
        and all(type(spent) in (int, float) and math.isfinite(spent) for spent in seconds.values())
    )


def make_room(cell: Cell) -> None:
    """Make the cell's directory. What stands in the way of its files is left alone, and an InputError."""
    try:
        cell.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cell.directory}: cannot be written ({error.strerror}). Move away what is there, or give another output."
        ) from error
    for file in (cell.state_file, cell.result_file, cell.log_file, cell.failure_file):
        if file.is_dir():
            raise InputError(f"{file}: is a directory, wanted a file. Move it away, or give another output.")
    if cell.result_file.exists() and not cell.state_file.exists() and read_result(cell) is None:
        raise InputError(
            f"{cell.result_file}: exists and is not the result of {cell}, so it is left alone. Move it away, or give "
            f"another output."
        )


def is_alive(cell: Cell, state: CellState) -> bool:
    """Whether the process that runs a cell still does: it is there, as far as one can see, and gives signs of life."""
    if state.state != "running" or state.pid is None:
        return False
    if state.host == socket.gethostname() and not _exists(state.pid):
        return False
    try:
        return time.time() - cell.state_file.stat().st_mtime < STALE
    except OSError:
        return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_done(cell: Cell, state: CellState | None) -> bool:
    return state is not None and state.state == "done" and read_result(cell) is not None


def changed_settings(cell: Cell, state: CellState) -> list[str]:
    """Settings that are no longer those with which the cell was started.

    A setting that its record does not have is newer than it, and had what now is the default.
    """
    defaults = json.loads(json.dumps({"train": asdict(TrainConfig()), "evaluate": asdict(EvaluateConfig())}))
    return sorted(differences(with_defaults(state.settings, defaults), cell.settings))


class Progress:
    """Keeps the state file of a cell that this process runs: phases, the time they take, and signs of life."""

    def __init__(self, cell: Cell, known: CellState | None) -> None:
        same = known is not None and known.settings == cell.settings
        self.cell = cell
        self.state = CellState(
            state="running",
            settings=cell.settings,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=known.started if known is not None and same else now(),
            seconds=dict(known.seconds) if known is not None and same else {},
        )
        self._since = time.monotonic()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Progress":
        self._write()
        self._beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop beating. A cell that is left neither done nor failed was interrupted: nobody runs it now."""
        self._stopped.set()
        self._beating.join()
        self.state = replace(self.state, pid=None)
        self._write()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        with self._lock:
            self.state, self._since = replace(self.state, phase=phase), time.monotonic()
        self._write()
        try:
            yield
        finally:
            self._write()

    def done(self) -> None:
        self.state = replace(self.state, state="done", phase=None, finished=now())

    def failed(self, reason: str) -> None:
        self.state = replace(self.state, state="failed", reason=reason, finished=now())

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT):
            try:
                self._write()
            except OSError:  # the next one may work; without any the cell counts as interrupted
                continue

    def _write(self) -> None:
        with self._lock:
            state, elapsed = self.state, time.monotonic() - self._since
            if state.state == "running" and state.phase in ("train", "evaluate"):
                spent = round(state.seconds.get(state.phase, 0.0) + elapsed, 2)
                self.state = replace(state, seconds={**state.seconds, state.phase: spent})
            self._since += elapsed
            write_json(self.cell.state_file, asdict(self.state), indent=1)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
