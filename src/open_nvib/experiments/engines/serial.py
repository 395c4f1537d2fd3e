"""One cell after another, in this process."""

from collections.abc import Iterator, Sequence

from open_nvib.experiments.cell import Outcome, run_cell
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import Say


class Serial:
    """The engine that needs nothing. What a cell says goes where this process's own words go."""

    def __enter__(self) -> "Serial":
        return self

    def __exit__(self, *error: object) -> None:
        return

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        for cell in cells:
            say(f"{cell}: started")
            yield run_cell(cell, say=say, overwrite=overwrite)
