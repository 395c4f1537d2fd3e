"""What an engine is."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from open_nvib.experiments.cell import Outcome
from open_nvib.experiments.experiment import Cell
from open_nvib.experiments.state import Say


@runtime_checkable
class Engine(Protocol):
    """Runs cells. To enter it is to see that it can, which is an InputError otherwise."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, cells: Sequence[Cell], *, overwrite: bool, say: Say) -> Iterator[Outcome]:
        """Run every cell, whatever comes of the others, and give each outcome when it is there."""
        ...
