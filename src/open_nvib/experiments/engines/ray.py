"""Cells as tasks of a Ray cluster."""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from open_nvib.experiments.cell import Outcome, lost, note_failure, reason_of
from open_nvib.experiments.engines.worker import work
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import STALE, Say, read_result, read_state
from open_nvib.store.files import InputError, write_json

RETRIES = 5
"""How often a cell may lose its worker or the worker's node. Each time it goes on from its last checkpoint."""
FINEST = 0.0001
"""The smallest part of a CPU or a GPU that Ray gives out."""
ANSWER = 5.0
"""Seconds within which something must answer at the address."""
PATIENCE = 30.0
"""Seconds within which it must have turned out to be a Ray cluster: Ray itself would try for minutes."""

CONNECT = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit("REASON " + " ".join(str(error).split()))
"""


class Ray:
    """Every cell is a task with its resources; one that loses its worker is retried elsewhere and resumes.

    Args:
        address: `host:port` of the cluster's head node, `auto` for the cluster that this machine is part of,
            `ray://host:port` for Ray's client, or `local` to start one here for this experiment.
        cpus: that each cell takes.
        gpus: that each cell takes; a part of one if several are to share it.
    """

    def __init__(self, address: str = "auto", *, cpus: float = 1, gpus: float = 0) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        for name, value in (("cpus-per-cell", cpus), ("gpus-per-cell", gpus)):
            if value != 0 and not FINEST <= value < math.inf:
                raise InputError(f"{name} is {value:g}, wanted 0, or from {FINEST:g} upwards.")
        if gpus > 1 and gpus % 1:
            raise InputError(f"gpus-per-cell is {gpus:g}, wanted a whole number, or a part of one such as 0.5.")

    def __enter__(self) -> "Ray":
        self.ray = _import_ray()
        self.ours = not self.ray.is_initialized()
        if self.ours:
            if self.address != "local":
                check_cluster(self.address)
            extra = {"include_dashboard": False} if self.address == "local" else {}
            self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", **extra)
        return self

    def __exit__(self, *error: object) -> None:
        if self.ours:
            self.ray.shutdown()

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        ray = self.ray
        if not self._fits():
            say(f"no node of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs: the cells wait for one")
        task = ray.remote(max_retries=RETRIES, num_cpus=self.cpus, num_gpus=self.gpus)(work)
        threads = max(1, int(self.cpus))
        options = {"folder": os.getcwd(), "overwrite": overwrite, "wait": 2 * STALE, "threads": threads}
        waiting = {task.options(name=str(cell)).remote(cell, **options): cell for cell in cells}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(ready)
            try:
                outcome = ray.get(ready)
            except ray.exceptions.RayError as error:
                outcome = lost(cell, reason_of(error))
            try:
                bring_home(outcome)
            except OSError as error:
                outcome = Outcome(cell, "failed", reason_of(error))
            yield outcome

    def _fits(self) -> bool:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes)


def bring_home(outcome: Outcome) -> None:
    """Write here what a worker wrote, in case it does not share this file system."""
    cell = outcome.cell
    if outcome.result is not None and read_result(cell) != outcome.result:
        write_json(cell.result_file, outcome.result, indent=1)
    known = read_state(cell)
    if outcome.record is not None and (known is None or vars(known) != outcome.record):
        write_json(cell.state_file, outcome.record, indent=1)
    if outcome.failure and not cell.failure_file.exists():
        note_failure(cell, outcome.failure)


def check_cluster(address: str) -> None:
    """See, within a bounded time, that there is a cluster: Ray itself tries for minutes, and then ends the process.

    First whether anybody listens, which is quick to say; then whether a process of its own can connect.
    """
    nothing = f"--address {address}: there is no Ray cluster"
    start = "Start one with `ray start --head`, or give its address."
    if address != "auto":
        host, port = _host_and_port(address)
        try:
            socket.create_connection((host, port), timeout=ANSWER).close()
        except OSError as error:
            why = error.strerror or str(error) or "no answer"
            raise InputError(f"{nothing} ({why}). {start}") from error
    try:
        found = subprocess.run([sys.executable, "-c", CONNECT, address], capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{nothing}: what listens there does not answer as one within {PATIENCE:.0f} seconds. "
            f"Give the address that `ray start --head` prints."
        ) from None
    if found.returncode:
        said = found.stderr.decode(errors="replace")
        why = said.rpartition("REASON ")[2].strip() if "REASON " in said else f"exit code {found.returncode}"
        if "InvalidAuthToken" in said or "AuthenticationError" in said:
            raise InputError(
                f"--address {address}: this Ray cluster wants a token. Set RAY_AUTH_MODE=token and give the cluster's "
                f"token, as Ray's page on token authentication says."
            )
        if address == "auto" and "any running Ray instance" in why:
            raise InputError(f"{nothing} that this machine is part of. {start}")
        raise InputError(f"{nothing} that can be used ({why}).")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--address {address}: wanted host:port, ray://host:port, auto or local.")
    return host.strip("[]"), int(port)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError("--engine ray: ray is not installed. It needs: pip install 'open-nvib[ray]'") from error
    return ray
