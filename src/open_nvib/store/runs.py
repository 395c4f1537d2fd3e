"""A run directory: the names of its files, their typed readers and writers, and its checkpoints."""

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import (
    OPTIONAL,
    InputError,
    as_builtins,
    damaged,
    digest_of_file,
    file_lock,
    from_builtins,
    read_record,
    whole_name,
    write_json,
    write_text,
)
from open_nvib.store.settings import Recipe, TrainConfig, differences

CHECKPOINTS, CONFIG, LENGTHS, LOG, METRICS, MODEL, TOKENIZER = (
    "checkpoints",
    "config.yaml",
    "lengths.json",
    "log.jsonl",
    "metrics.json",
    "model",
    "tokenizer",
)
WEIGHTS = "model.safetensors"
LOCK = f".{METRICS}.lock"
INDEX = f"{WEIGHTS}.index.json"
FOR_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX)
"""Files with which the Auto classes of transformers open a run directory; the index leads to the weights in model/."""

RESTORE = "Restore it from a copy, or train the run again with `nvib train --overwrite`."
TRAIN_AGAIN = "Move it away and run the `nvib train` command of the run again, which writes it anew."


def is_run(path: Path) -> bool:
    """Whether a directory is a run, finished or not."""
    return (path / CONFIG).is_file() and (path / LENGTHS).is_file()


def claim_directory(directory: Path, config: TrainConfig, *, overwrite: bool) -> dict[str, float | None] | None:
    """Check that a run with this configuration may be written to `directory`; an InputError if not.

    It may where nothing is, where this very run was stopped, and with `overwrite` where another run is, whose files
    are then removed. Returns the metrics on validation data if this very run is finished.
    """
    if not directory.exists() or not any(directory.iterdir()):
        return None
    if not is_run(directory):
        if {whole_name(path) for path in directory.iterdir()} <= {TOKENIZER, LENGTHS, CONFIG}:
            return None  # killed while it was begun
        raise InputError(f"{directory}: exists and is not a run of open_nvib. Give another --output.")
    if overwrite:
        for name in (CONFIG, LENGTHS, LOG, METRICS, LOCK, *FOR_TRANSFORMERS):
            (directory / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, MODEL, TOKENIZER):
            shutil.rmtree(directory / name, ignore_errors=True)
        return None
    different = differences(_read_config(directory / CONFIG), config)
    if different:
        raise InputError(
            f"{directory}: holds a run with other settings ({', '.join(different[:5])}). Give another --output, or "
            f"--overwrite to replace it."
        )
    return read_metrics(directory).validation or None


# The configuration, and the lengths of the training data


def write_config(run: Path, config: TrainConfig) -> None:
    write_text(run / CONFIG, yaml.safe_dump(as_builtins(config), sort_keys=False))


def read_config(run: Path) -> TrainConfig:
    """Read the configuration that the run was trained with; an option newer than the run has its default."""
    path = run / CONFIG
    content = _read_config(path)
    try:
        return from_builtins(content, TrainConfig)
    except ValueError as error:
        raise damaged(path, error, fix=RESTORE) from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise damaged(path, error, fix=RESTORE) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(path, f"not YAML: {error}", fix=RESTORE) from error
    kinds = {"data": str, "partition": str, "seed": int}
    content = content if isinstance(content, dict) else {}
    wrong = [name for name, kind in kinds.items() if type(content.get(name)) is not kind]
    if wrong:
        raise damaged(path, f"missing or wrong: {', '.join(wrong)}", fix=RESTORE)
    return content


@dataclass(frozen=True)
class Lengths:
    """How long the sentences are that a run was trained on.

    Attributes:
        lengths: entry k is the number of sentences of k tokens.
        partition: of the prepared data.
        recipe: of the prepared data.
    """

    lengths: list[int]
    partition: str = ""
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        if min(self.lengths, default=0) < 0 or not any(self.lengths):
            raise ValueError("lengths: expected numbers of sentences, one above 0")


def write_lengths(run: Path, lengths: Lengths) -> None:
    write_json(run / LENGTHS, lengths)


def read_lengths(run: Path) -> Lengths:
    return read_record(run / LENGTHS, Lengths, fix=RESTORE)


# The log


@dataclass(frozen=True)
class LogEntry:
    """A line of the log: numbers by name, those of an evaluation on validation data as `eval_…`."""

    step: int
    values: dict[str, float]

    def line(self) -> str:
        return json.dumps({"step": self.step, **self.values}) + "\n"


def append_log(run: Path, entry: LogEntry) -> None:
    with (run / LOG).open("a", encoding="utf-8") as stream:
        stream.write(entry.line())


def read_log(run: Path) -> list[LogEntry]:
    """Read the log; empty where there is none. A line that is cut, as the last one of a live run may be, is skipped."""
    path = run / LOG
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise damaged(path, error, fix="Move it away: the log is not needed to go on.") from error
    entries = []
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and type(step := values.pop("step", None)) is int:
            entries.append(LogEntry(step, values))
    return entries


def cut_log(run: Path, step: int) -> None:
    """Remove what was logged after `step`, which is going to happen again."""
    if (run / LOG).exists():
        write_text(run / LOG, "".join(entry.line() for entry in read_log(run) if entry.step <= step))


# What was measured


@dataclass(frozen=True)
class RunMetrics:
    """What training and evaluations measured.

    Attributes:
        step: the last step of training.
        validation: metrics on validation data at the end of training; empty until then.
        evaluations: what `nvib evaluate` found, by name, such as "validation-causal".
    """

    step: int = 0
    validation: dict[str, float | None] = field(default_factory=dict, metadata=OPTIONAL)
    evaluations: dict[str, Evaluation] = field(default_factory=dict, metadata=OPTIONAL)


def read_metrics(run: Path) -> RunMetrics:
    """Read what was measured; empty where nothing was written yet."""
    path = run / METRICS
    return read_record(path, RunMetrics, fix=TRAIN_AGAIN) if path.exists() else RunMetrics()


def change_metrics(run: Path, change: Callable[[RunMetrics], RunMetrics]) -> RunMetrics:
    """Read the metrics, change them and write them, one process after the other. Returns the new ones."""
    with file_lock(run / LOCK):
        metrics = change(read_metrics(run))
        write_json(run / METRICS, metrics, indent=1)
    return metrics


# Checkpoints

SEAL = "complete.json"
"""Written last, with the digest of every other file: a checkpoint without it was cut off while it was written."""


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete."""
    files = [file for file in sorted(checkpoint.iterdir()) if file.is_file() and file.name != SEAL]
    write_json(checkpoint / SEAL, {file.name: digest_of_file(file) for file in files}, indent=1)


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if nothing is."""
    try:
        digests = json.loads((checkpoint / SEAL).read_text())
    except (OSError, ValueError):
        return "it is incomplete"
    if not isinstance(digests, dict):
        return f"{SEAL} is damaged"
    for name, digest in digests.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if digest_of_file(file) != digest:
            return f"{name} is damaged"
    return None


def checkpoints(directory: Path) -> list[Path]:
    """List checkpoints by step, the newest first."""
    found = [path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def last_good_checkpoint(directory: Path, say: Callable[[str], None]) -> Path | None:
    """Find the newest checkpoint that is complete and undamaged; `say` a line on each that is passed over."""
    for checkpoint in checkpoints(directory):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        say(f"{checkpoint}: passed over, {wrong}")
    return None


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a full disk into an InputError, and remove what was half-written to `path`."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _is_full(error, path.parent):
            raise
        shutil.rmtree(path, ignore_errors=True)
        raise InputError(
            f"{path}: no space left on the disk. Earlier checkpoints are intact: free some space and run the same "
            f"command again."
        ) from error


def _is_full(error: BaseException, directory: Path) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or shutil.disk_usage(directory).free < 2**20
