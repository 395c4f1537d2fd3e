"""A cell in a process of its own, whose words go to the cell's log."""

import json
import os
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

from open_nvib.experiments.cell import Outcome, reason_of, run_cell
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import make_room
from open_nvib.store.files import InputError


def work(cell: Cell, *, folder: str, overwrite: bool, wait: float, threads: int) -> Outcome:
    """Run a cell on that many threads in `folder`, from which its paths are meant."""
    torch.set_num_threads(threads)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # on a machine that does not share the file system
        os.chdir(folder)
        make_room(cell)
        with cell.log_file.open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            return run_cell(cell, say=lambda text: print(text, file=log), overwrite=overwrite, wait=wait)
    except (InputError, OSError) as error:
        return Outcome(cell, "failed", reason_of(error))


def main() -> None:
    """Take a cell and the options, a line each, run it, and write the outcome to standard output: see `Processes`."""
    cell, options = Cell.from_json(sys.stdin.readline()), json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anybody prints is not part of the answer
    outcome = work(cell, **options)
    with answer:
        answer.write(outcome.as_json())


def _end_with_parent() -> None:
    """The parent holds the other end of standard input, and says no more: its end is the parent's end."""
    while os.read(0, 1):
        pass
    os._exit(1)
