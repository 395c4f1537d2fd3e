"""What an engine is."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from open_nvib.experiments.cell import Outcome, Say
from open_nvib.experiments.experiment import Cell


class Engine(Protocol):
    """Runs cells. To enter it is to see that it can, which is an InputError otherwise."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        """Run every cell, whatever comes of the others, and give each outcome when it is there."""
        ...
