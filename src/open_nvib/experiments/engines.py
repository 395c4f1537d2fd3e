"""Engines that run cells: one after another in this process, in several processes, or on a Ray cluster.

`run` of an engine runs every cell, also if others fail, and yields each outcome as soon as it is known. Closing the
generator stops the cells that are still running; they can be resumed.
"""

import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from open_nvib.experiments.cell import STALE_SECONDS, Outcome, make_directory, reason_of, record_lost_process, run_cell
from open_nvib.experiments.experiment import Cell, Say
from open_nvib.store.files import InputError, in_one_line

SPAWN = multiprocessing.get_context("spawn")

RAY_RETRIES = 5
"""Times that a cell may lose its worker or the worker's node. Each time it resumes from its last checkpoint."""
SMALLEST_RAY_SHARE = 0.0001  # of a CPU or a GPU: Ray gives out nothing smaller
CONNECT_SECONDS = 5.0  # within which something must accept a connection at the address of a Ray cluster
RAY_ANSWER_SECONDS = 30.0  # within which it must answer as a Ray cluster: Ray itself would try for minutes


class Serial:
    """Runs one cell after another in this process, with their output on its own standard streams."""

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Generator[Outcome, None, None]:
        for cell in cells:
            say(f"{cell}: started")
            yield run_cell(cell, say=say, overwrite=overwrite)


def run_with_log(
    cell: Cell, *, overwrite: bool, folder: str, threads: int | None, wait_seconds: float = 0.0
) -> Outcome:
    """Run a cell in `folder` with its output in its log, on `threads` threads, or torch's own number if None."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # which torch reads when it is imported, so not later
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # on a machine that does not share the file system
        os.chdir(folder)
        make_directory(cell)
        with cell.log_file.open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            return run_cell(cell, say=print, overwrite=overwrite, wait_seconds=wait_seconds)
    except (InputError, OSError) as error:
        return Outcome(cell, "failed", reason_of(error))


class Processes:
    """Runs several cells at a time, one for each core if not said, each in a process of its own.

    A cell whose process dies has failed. Several workers share the cores, unless OMP_NUM_THREADS says how many threads
    each has; one runs as `Serial` does.
    """

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = cores if workers is None else workers
        if self.workers < 1:
            raise InputError(f"workers is {workers}, expected at least 1.")
        given = self.workers == 1 or "OMP_NUM_THREADS" in os.environ
        self.threads = None if given else max(1, cores // self.workers)

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Generator[Outcome, None, None]:
        options = {"overwrite": overwrite, "folder": os.getcwd(), "threads": self.threads}
        waiting = deque(cells)
        running: dict[Connection, tuple[Cell, BaseProcess]] = {}
        try:
            while waiting or running:
                if not waiting or len(running) == self.workers:
                    receiver = next(iter(wait(list(running))))
                    assert isinstance(receiver, Connection)
                    yield _outcome(receiver, *running.pop(receiver))
                    continue
                cell = waiting.popleft()
                try:
                    make_directory(cell)
                    say(f"{cell}: started, see {cell.log_file}")
                    receiver, child = _start(cell, options)
                    running[receiver] = cell, child
                except (InputError, OSError) as error:
                    yield Outcome(cell, "failed", reason_of(error))
        finally:
            for _, child in running.values():
                child.terminate()
            for _, child in running.values():
                child.join()


def _start(cell: Cell, options: dict[str, Any]) -> tuple[Connection, BaseProcess]:
    """Start the process of a cell. Its outcome, or the end of the pipe at its death, comes from the connection."""
    receiver, sender = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=_run_in_child, args=(sender, cell, options))
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # or a script without a `__main__` guard is run by the child
    try:
        child.start()
    finally:
        sys.modules["__main__"] = main
        sender.close()
    return receiver, child


def _outcome(receiver: Connection, cell: Cell, child: BaseProcess) -> Outcome:
    """Take the outcome from a process that has ended, or died."""
    try:
        with receiver:
            return receiver.recv()
    except (EOFError, OSError):
        child.join()
        code = child.exitcode or 0
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return record_lost_process(cell, f"its process {end}, see {cell.log_file}", pid=child.pid)


def _run_in_child(sender: Connection, cell: Cell, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent ends this one
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with cell.log_file.open("ab") as log:  # what libraries print without Python
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sender.send(run_with_log(cell, **options))


def _exit_with_parent() -> None:
    """Exit when the parent process exits, also if that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Ray:
    """Runs every cell as a task of a Ray cluster; one that loses its worker is started elsewhere and resumes.

    The address is `host:port` of the cluster's head node, `auto` for the cluster that this machine is part of,
    `ray://host:port` for Ray's client, or `local` to start one here. Each cell takes so many CPUs and GPUs; of a GPU, a
    part if several are to share it.
    """

    def __init__(self, address: str = "auto", *, cpus: float = 1, gpus: float = 0) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        for name, value in (("cpus-per-cell", cpus), ("gpus-per-cell", gpus)):
            if value != 0 and not SMALLEST_RAY_SHARE <= value < math.inf:
                raise InputError(f"{name} is {value:g}, expected 0, or at least {SMALLEST_RAY_SHARE:g}.")
        if gpus > 1 and gpus % 1:
            raise InputError(f"gpus-per-cell is {gpus:g}, expected a whole number, or a part of one such as 0.5.")
        try:
            self._ray: Any = import_module("ray")
        except ModuleNotFoundError as error:
            raise InputError(
                "--engine ray: ray is not installed. It is the extra ray: pip install '.[ray]' in a clone."
            ) from error
        if address != "local" and not self._ray.is_initialized():
            check_cluster(address)

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Generator[Outcome, None, None]:
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            extra: dict[str, Any] = {"include_dashboard": False} if self.address == "local" else {}
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", **extra)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            say(f"no node of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs: the cells wait for one")
        task = ray.remote(max_retries=RAY_RETRIES, num_cpus=self.cpus, num_gpus=self.gpus)(run_with_log)
        # A cell that is started again may have to wait until its lost process counts as dead.
        options: dict[str, Any] = {"overwrite": overwrite, "wait_seconds": 2 * STALE_SECONDS}
        options |= {"folder": os.getcwd(), "threads": max(1, int(self.cpus))}
        waiting = {task.options(name=str(cell)).remote(cell, **options): cell for cell in cells}
        try:
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
                cell = waiting.pop(ready)
                try:
                    outcome = ray.get(ready)
                    outcome.write_files()
                except ray.exceptions.RayError as error:
                    outcome = record_lost_process(cell, reason_of(error))
                except OSError as error:
                    outcome = Outcome(cell, "failed", reason_of(error))
                yield outcome
        finally:
            if started_here:
                ray.shutdown()


Engine = Serial | Processes | Ray


def check_cluster(address: str) -> None:
    """Raise an InputError within a bounded time if there is no cluster: Ray tries for minutes, then ends the process.

    First see whether anything listens, which is quick; then whether another process can connect.
    """
    nothing = f"--address {address}: there is no Ray cluster"
    fix = "Start one with `ray start --head`, and give the address that it prints."
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal() or int(port) >= 2**16:
            raise InputError(f"--address {address}: expected host:port, ray://host:port, auto or local.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise InputError(f"{nothing} ({error.strerror or error}). {fix}") from error
    connect = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        found = subprocess.run(
            [sys.executable, "-c", connect, address], capture_output=True, text=True, timeout=RAY_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{nothing}: what listens there does not answer within {RAY_ANSWER_SECONDS:.0f} seconds. {fix}"
        ) from None
    if found.returncode:
        said = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise InputError(f"{nothing} that can be used ({in_one_line(said[-1])}). {fix}")
