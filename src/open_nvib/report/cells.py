"""Results of cells (a row with a seed) as files: a JSON for each, in the folders of an experiment or all in one."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from open_nvib.report.shape import EVALUATIONS, misfit
from open_nvib.store.files import InputError, write_text

RESULT = "result.json"
LARGEST = 200_000
"""Bytes of a cell's JSON. Exported cells are committed, so that a larger one is worth a remark."""


@dataclass(frozen=True, eq=False)
class Cell:
    """What was measured of a row with one seed.

    Args:
        row: name of the row.
        seed: the training seed.
        content: all of its `result.json`.
        path: where it was read from.
    """

    row: str
    seed: int
    content: dict[str, Any]
    path: Path

    def evaluation(self, name: str) -> dict[str, Any] | None:
        """The record of an evaluation such as "validation-causal"."""
        return self.content["evaluations"].get(name)


def read_cells(folder: Path) -> list[Cell]:
    """Cells of <row>/seed-<k>/result.json, as an experiment writes them, else of the *.json in the folder itself."""
    if not os.path.isdir(folder):  # which is False, not an error, for a name that is too long
        raise InputError(
            f"{folder}: there is no such directory, wanted the results of an experiment. Run it with `nvib experiment "
            f"run` first, or give --cells with a directory of its results."
        )
    files = sorted(folder.glob(f"*/seed-*/{RESULT}")) or sorted(folder.glob("*.json"))
    cells = [read_cell(file) for file in files]
    places: dict[tuple[str, int], Path] = {}
    for cell in cells:
        other = places.setdefault((cell.row, cell.seed), cell.path)
        if other != cell.path:
            raise InputError(f"{cell.path}: row {cell.row!r} seed {cell.seed} is in {other} too. Remove one.")
    return cells


def read_cell(file: Path) -> Cell:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({error}). Run its cell again, or remove it.") from error
    if not is_cell(content):
        raise InputError(
            f"{file}: this is not the result of a cell, wanted a JSON object with row, seed and evaluations. "
            f"Remove it from the directory of results."
        )
    wrong = misfit(content["evaluations"], EVALUATIONS, "evaluations")
    if wrong is not None:
        raise InputError(f"{file}: {wrong}. Run its cell again, or remove it.")
    return Cell(content["row"], content["seed"], content, file)


def is_cell(content: Any) -> bool:
    """Whether a JSON value has what every result has."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("row"), str)
        and isinstance(content.get("seed"), int)
        and isinstance(content.get("evaluations"), dict)
        and all(isinstance(record, dict) for record in content["evaluations"].values())
    )


def exported(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.row}-seed-{cell.seed}.json"


def check_export(cells: Sequence[Cell], folder: Path) -> None:
    """An InputError if a file is there that would be written and is not the result of a cell."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, wanted a directory for the results. Give another --output.")
    for target in (exported(cell, folder) for cell in cells):
        if target.exists():
            read_cell(target)


def export(cells: Sequence[Cell], folder: Path) -> list[str]:
    """Copy results, whole, to `folder`/<row>-seed-<k>.json. Returns remarks on those that are large to commit."""
    check_export(cells, folder)
    remarks = []
    for cell in cells:
        target = exported(cell, folder)
        text = json.dumps(cell.content, indent=1, ensure_ascii=False) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(target, text)
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"{target}: cannot be written ({why}). Give another --output.") from error
        size = target.stat().st_size
        if size > LARGEST:
            remarks.append(f"{target}: {size:,} bytes, more than the {LARGEST:,} that a result is expected to take.")
    return remarks


def find(record: Any, path: str) -> Any:
    """The value at a path such as "generation/distinct/2"; None where there is none.

    Parts are separated by slashes; "*" is the first entry, which of partitions is the one that was trained on.
    """
    for part in path.split("/"):
        if not isinstance(record, dict) or not record:
            return None
        record = next(iter(record.values())) if part == "*" else record.get(part)
    return record


def number(record: Any, path: str) -> float | None:
    """The finite number at a path; None where it is undefined, or was not measured."""
    value = find(record, path)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
