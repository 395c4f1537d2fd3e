"""Engines that run cells: one after another in this process, in several processes, or on a Ray cluster."""

import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from open_nvib.experiments.cell import (
    STALE_SECONDS,
    Outcome,
    make_directory,
    reason_of,
    record_lost_process,
    run_cell,
)
from open_nvib.experiments.experiment import Cell, Say
from open_nvib.store.files import InputError

SPAWN = multiprocessing.get_context("spawn")

RAY_RETRIES = 5
"""Times that a cell may lose its worker or the worker's node. Each time it resumes from its last checkpoint."""
SMALLEST_RAY_SHARE = 0.0001
"""Of a CPU or a GPU: Ray gives out nothing smaller."""
CONNECT_SECONDS = 5.0
"""Within which something must accept a connection at the address of a Ray cluster."""
RAY_ANSWER_SECONDS = 30.0
"""Within which it must answer as a Ray cluster: Ray itself would try for minutes."""


class Engine(ABC):
    """Runs cells. Entering it raises an InputError if it cannot; leaving it stops cells that are still running."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None:
        return

    @abstractmethod
    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        """Run every cell, also if others fail, and yield each outcome as soon as it is known."""


class Serial(Engine):
    """Runs one cell after another in this process, with their output on its own standard streams."""

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        for cell in cells:
            say(f"{cell}: started")
            yield run_cell(cell, say=say, overwrite=overwrite)


def run_with_log(
    cell: Cell, *, overwrite: bool, folder: str, threads: int | None, wait_seconds: float = 0.0
) -> Outcome:
    """Run a cell in `folder` with its output in its log, on `threads` threads, or torch's own number if None."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # on a machine that does not share the file system
        os.chdir(folder)
        make_directory(cell)
        with cell.log_file.open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            return run_cell(cell, say=print, overwrite=overwrite, wait_seconds=wait_seconds)
    except (InputError, OSError) as error:
        return Outcome.of_error(cell, error)


class Processes(Engine):
    """Runs several cells at a time, each in a process of its own. A cell whose process dies has failed.

    Args:
        workers: how many at a time, one for each core if not given. Several share the cores, unless OMP_NUM_THREADS
            says how many threads each has; one runs as `Serial` does.
    """

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = cores if workers is None else workers
        if self.workers < 1:
            raise InputError(f"workers is {workers}, expected at least 1.")
        given = self.workers == 1 or "OMP_NUM_THREADS" in os.environ
        self.threads = None if given else max(1, cores // self.workers)
        self._running: dict[Connection, tuple[Cell, BaseProcess]] = {}

    def __exit__(self, *error: object) -> None:
        """End the cells that are still running, because all is being stopped. They can be resumed."""
        for _, child in self._running.values():
            child.terminate()
        for _, child in self._running.values():
            child.join()
        self._running.clear()

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        options = {"overwrite": overwrite, "folder": os.getcwd(), "threads": self.threads}
        waiting = deque(cells)
        while waiting or self._running:
            if waiting and len(self._running) < self.workers:
                cell = waiting.popleft()
                try:
                    make_directory(cell)
                    say(f"{cell}: started, see {cell.log_file}")
                    self._start(cell, options)
                except (InputError, OSError) as error:
                    yield Outcome.of_error(cell, error)
            else:
                ready = wait(list(self._running))
                yield self._finish(next(receiver for receiver in self._running if receiver in ready))

    def _start(self, cell: Cell, options: dict[str, Any]) -> None:
        receiver, sender = SPAWN.Pipe(duplex=False)
        child = SPAWN.Process(target=_run_in_child, args=(sender, cell, options))
        with sender, _main_hidden():  # once the child alone holds the sender, its death is the end of the pipe
            child.start()
        self._running[receiver] = cell, child

    def _finish(self, receiver: Connection) -> Outcome:
        cell, child = self._running[receiver]
        try:
            outcome = receiver.recv()
        except (EOFError, OSError):
            outcome = None
        receiver.close()
        child.join()
        del self._running[receiver]
        if outcome is not None:
            return outcome
        code = child.exitcode or 0
        signals = {-each.value: each.name for each in signal.Signals}
        end = f"was killed by {signals.get(code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
        return record_lost_process(cell, f"its process {end}, see {cell.log_file}", pid=child.pid)


def _run_in_child(sender: Connection, cell: Cell, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent ends this one
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if options["threads"] is not None:
        os.environ["OMP_NUM_THREADS"] = str(options["threads"])  # which counts when torch is imported, so not later
    with cell.log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sender.send(run_with_log(cell, **options))


def _exit_with_parent() -> None:
    """Exit when the parent process exits, also if that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the calling script from a process that is spawned, which would run it if it has no `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Ray(Engine):
    """Runs every cell as a task of a Ray cluster; one that loses its worker is started elsewhere and resumes.

    Args:
        address: `host:port` of the cluster's head node, `auto` for the cluster that this machine is part of,
            `ray://host:port` for Ray's client, or `local` to start one here.
        cpus: that each cell takes.
        gpus: that each cell takes; a part of one if several are to share it.
    """

    def __init__(self, address: str = "auto", *, cpus: float = 1, gpus: float = 0) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        for name, value in (("cpus-per-cell", cpus), ("gpus-per-cell", gpus)):
            if value != 0 and not SMALLEST_RAY_SHARE <= value < math.inf:
                raise InputError(f"{name} is {value:g}, expected 0, or at least {SMALLEST_RAY_SHARE:g}.")
        if gpus > 1 and gpus % 1:
            raise InputError(f"gpus-per-cell is {gpus:g}, expected a whole number, or a part of one such as 0.5.")

    def __enter__(self) -> "Ray":
        self._ray = _import_ray()
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            if self.address != "local":
                check_cluster(self.address)
            extra = {"include_dashboard": False} if self.address == "local" else {}
            self._ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", **extra)
        return self

    def __exit__(self, *error: object) -> None:
        if self._started_here:
            self._ray.shutdown()

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        ray = self._ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            say(f"no node of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs: the cells wait for one")
        task = ray.remote(max_retries=RAY_RETRIES, num_cpus=self.cpus, num_gpus=self.gpus)(run_with_log)
        # A cell that is started again may have to wait until its lost process counts as dead.
        options: dict[str, Any] = {"overwrite": overwrite, "wait_seconds": 2 * STALE_SECONDS}
        options |= {"folder": os.getcwd(), "threads": max(1, int(self.cpus))}
        waiting = {task.options(name=str(cell)).remote(cell, **options): cell for cell in cells}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(ready)
            try:
                outcome = ray.get(ready)
                outcome.write_files()
            except ray.exceptions.RayError as error:
                outcome = record_lost_process(cell, reason_of(error))
            except OSError as error:
                outcome = Outcome.of_error(cell, error)
            yield outcome


CONNECT_TO_RAY = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit("REASON " + " ".join(str(error).split()))
"""


def check_cluster(address: str) -> None:
    """Raise an InputError within a bounded time if there is no cluster: Ray tries for minutes, then ends the process.

    First see whether anything listens, which is quick; then whether another process can connect.
    """
    nothing = f"--address {address}: there is no Ray cluster"
    start = "Start one with `ray start --head`, or give its address."
    if address != "auto":
        host, port = _host_and_port(address)
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or str(error) or "no answer"
            raise InputError(f"{nothing} ({why}). {start}") from error
    command = [sys.executable, "-c", CONNECT_TO_RAY, address]
    try:
        found = subprocess.run(command, capture_output=True, timeout=RAY_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{nothing}: what listens there does not answer as one within {RAY_ANSWER_SECONDS:.0f} seconds. "
            f"Give the address that `ray start --head` prints."
        ) from None
    if found.returncode:
        said = found.stderr.decode(errors="replace")
        why = said.rpartition("REASON ")[2].strip() if "REASON " in said else f"exit code {found.returncode}"
        if "InvalidAuthToken" in said or "AuthenticationError" in said:
            raise InputError(
                f"--address {address}: this Ray cluster asks for a token. Set RAY_AUTH_MODE=token and give the "
                f"cluster's token, as Ray's page on token authentication says."
            )
        if address == "auto" and "any running Ray instance" in why:
            raise InputError(f"{nothing} that this machine is part of. {start}")
        raise InputError(f"{nothing} that can be used ({why}).")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--address {address}: expected host:port, ray://host:port, auto or local.")
    return host.strip("[]"), int(port)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "--engine ray: ray is not installed. It is the extra ray: pip install '.[ray]' in a clone."
        ) from error
    return ray
