"""Several cells at once, each in a process of its own on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from open_nvib.experiments.cell import Outcome, lost, reason_of
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import Say, make_room
from open_nvib.store.files import InputError

WORK = "from open_nvib.experiments.engines.worker import main; main()"


class Processes:
    """N processes at a time; a cell whose process dies has failed, and the others go on."""

    def __init__(self, workers: int | None = None) -> None:
        """`workers` processes share the cores; without it, a process for each core."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = cores if workers is None else workers
        if self.workers < 1:
            raise InputError(f"workers is {workers}, wanted at least 1.")
        self.threads = max(1, cores // self.workers)
        self._children: set[subprocess.Popen[str]] = set()
        self._stopping = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        """Cells that are still running, because all is being stopped, end here and can be resumed."""
        self._stopping = True
        for child in list(self._children):
            child.terminate()

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        with ThreadPoolExecutor(self.workers) as pool:  # a thread only waits for its process
            futures = [pool.submit(self._run, cell, overwrite, say) for cell in cells]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.__exit__()
                raise

    def _run(self, cell: Cell, overwrite: bool, say: Say) -> Outcome:
        try:
            make_room(cell)
            return self._run_in_process(cell, overwrite, say)
        except (InputError, OSError) as error:
            return Outcome(cell, "failed", reason_of(error))

    def _run_in_process(self, cell: Cell, overwrite: bool, say: Say) -> Outcome:
        say(f"{cell}: started, see {cell.log_file}")
        options: dict[str, Any] = {
            "folder": os.getcwd(),
            "overwrite": overwrite,
            "wait": 0.0,
            "threads": self.threads,
        }
        with cell.log_file.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", WORK],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                start_new_session=True,  # Ctrl-C is for us to pass on
            )
        self._children.add(child)
        try:
            with child:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(f"{cell.as_json()}\n{json.dumps(options)}\n")
                child.stdin.flush()  # and stays open until the child has ended: to the child, its end is ours
                answer = child.stdout.read()
                child.wait()
        except BrokenPipeError:  # it died before it could listen
            answer = ""
        finally:
            self._children.discard(child)
        if answer and child.returncode == 0:
            return Outcome.from_json(cell, answer)
        if self._stopping:
            return Outcome(cell, "failed", "stopped with all others")
        return lost(cell, f"its process {_end_of(child.returncode)}, see {cell.log_file}", pid=child.pid)


def _end_of(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
