"""Files of cells (a row of an experiment with a seed): the result of each, and the state of one that is run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from open_nvib.store.evaluations import Evaluation, load
from open_nvib.store.files import OPTIONAL, InputError, read_record, write_text
from open_nvib.store.runs import read_log, read_metrics
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import EvaluateConfig

RESULT = "result.json"
LARGEST_BYTES = 200_000  # size of a result above which exporting it, to be committed, is worth a remark


@dataclass(frozen=True)
class TrainingResult:
    """The end of training: its last step, and the metrics on validation data there."""

    step: int = 0
    validation: dict[str, float | None] = field(default_factory=dict)
    rise: float | None = None  # of BLEU on validation data over the last quarter of the steps, if evaluated then

    @staticmethod
    def of(run: Path) -> "TrainingResult":
        metrics = read_metrics(run)
        bleu = {entry.step: entry.values["eval_bleu"] for entry in read_log(run) if "eval_bleu" in entry.values}
        before = [value for step, value in bleu.items() if step <= 0.75 * metrics.step]
        rise = bleu[metrics.step] - before[-1] if before and metrics.step in bleu else None
        return TrainingResult(metrics.step, metrics.validation, rise)


@dataclass(frozen=True)
class CellResult:
    """The results of a row with one seed: the content of `result.json`."""

    row: str
    seed: int
    evaluations: dict[str, Evaluation]  # by name, such as "validation-causal"
    label: str = ""  # what a report calls the row
    paper: str = ""  # the row of the paper's table to print beside it, if the paper has it
    train: TrainingResult = field(default_factory=TrainingResult)
    seconds: dict[str, float] = field(default_factory=dict)  # of training and evaluation, with interrupted attempts
    path: Path | None = field(default=None, metadata=OPTIONAL)  # where it was read from

    @property
    def export_name(self) -> str:
        return f"{self.row}-seed-{self.seed}.json"


Phase = Literal["prepare", "train", "evaluate"]


@dataclass(frozen=True)
class CellSettings:
    """All settings that decide the result of a cell. One that is newer than the file takes its default."""

    train: TrainConfig
    evaluate: EvaluateConfig


@dataclass(frozen=True)
class CellState:
    """State of a cell: the content of `cell.json`."""

    state: Literal["running", "done", "failed"]  # that of a killed process stays at running
    settings: CellSettings
    reason: str | None = None  # why it failed, in one line
    phase: Phase | None = None  # what it is doing, or was doing when it stopped
    host: str = ""  # where it runs or ran
    pid: Annotated[int, Meta(gt=0, lt=2**31)] | None = None  # the process that runs the cell on that host, if one does
    started: str = ""  # when it was first started
    finished: str | None = None  # when it was done, or failed
    seconds: dict[str, float] = field(default_factory=dict)  # of training and evaluation, with interrupted attempts


def read_cell(file: Path) -> CellResult:
    """Read the result of a cell; an InputError names the entry that does not fit."""
    fix = "Run its cell again, or remove it from the directory of results."
    return replace(read_record(file, CellResult, fix=fix, load=load), path=file)


def read_cells(folder: Path) -> list[CellResult]:
    """Read <row>/seed-<k>/result.json, as an experiment writes them, or else the *.json in the folder itself."""
    if not os.path.isdir(folder):  # Path.is_dir raises an error for a name that is too long
        raise InputError(
            f"{folder}: no such directory, expected the results of an experiment. Run it with `nvib experiment run` "
            f"first, or give --cells with a directory of its results."
        )
    cells = [read_cell(file) for file in sorted(folder.glob(f"*/seed-*/{RESULT}")) or sorted(folder.glob("*.json"))]
    places: dict[tuple[str, int], CellResult] = {}
    for cell in cells:
        other = places.setdefault((cell.row, cell.seed), cell)
        if other is not cell:
            raise InputError(f"{cell.path}: row {cell.row!r} seed {cell.seed} is in {other.path} too. Remove one.")
    return cells


def check_export(cells: Sequence[CellResult], folder: Path) -> None:
    """Raise an InputError if an export would overwrite a file that is not the result of a cell."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, expected a directory for the results. Give another --output.")
    for cell in cells:
        if (folder / cell.export_name).exists():
            read_cell(folder / cell.export_name)


def export_cells(cells: Sequence[CellResult], folder: Path) -> list[str]:
    """Copy results to `folder`/<row>-seed-<k>.json. Return remarks on results that are large to commit."""
    check_export(cells, folder)
    remarks = []
    for cell in cells:
        target = folder / cell.export_name
        assert cell.path is not None
        text = cell.path.read_text(encoding="utf-8")
        write_text(target, text)
        if (size := len(text.encode())) > LARGEST_BYTES:
            remarks.append(f"{target}: {size:,} bytes, expected at most {LARGEST_BYTES:,} of a result.")
    return remarks
