"""A run directory: the names of its files, their typed readers and writers, and its checkpoints."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import Timeout

from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import (
    MANIFEST,
    OPTIONAL,
    InputError,
    as_builtins,
    damaged,
    disk_trouble,
    file_lock,
    find_damage,
    from_builtins,
    in_one_line,
    read_record,
    read_stored,
    whole_name,
    write_json,
    write_manifest,
    write_text,
)
from open_nvib.store.settings import Recipe, TrainConfig, differences

CHECKPOINTS, CONFIG, LENGTHS, LOG, METRICS, MODEL, NUMBERS, TOKENIZER = (
    "checkpoints",
    "config.yaml",
    "lengths.json",
    "log.jsonl",
    "metrics.json",
    "model",
    "numbers.json",
    "tokenizer",
)
WEIGHTS = "model.safetensors"
LOCK = f".{METRICS}.lock"
INDEX = f"{WEIGHTS}.index.json"
FOR_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX)
"""Files with which the Auto classes of transformers open a run directory; the index leads to the weights in model/."""
TRAINING_LOCK = ".training.lock"
OF_A_RUN = (MANIFEST, CONFIG, LENGTHS, LOG, METRICS, CHECKPOINTS, MODEL, NUMBERS, TOKENIZER, *FOR_TRANSFORMERS)
REPLACEMENT, FINISHED_REPLACEMENT = ".replacement", ".replacement-finished"
"""Folders of a run in which another run that is to replace it is trained, and waits until its files are moved."""

RESTORE = "Restore it from a copy, or train the run again with `nvib train --overwrite`."
TRAIN_AGAIN = "Move it away and run the `nvib train` command of the run again, which writes it anew."


def is_run(path: Path) -> bool:
    """Whether a directory is a run, finished or not."""
    return (path / CONFIG).is_file() and (path / LENGTHS).is_file()


@dataclass(frozen=True)
class Claim:
    """Where a run is to be written, and its metrics on validation data if this very run is finished."""

    path: Path
    finished: dict[str, float | None] | None = None


def claim_directory(directory: Path, config: TrainConfig, *, overwrite: bool) -> Claim:
    """Find where a run with this configuration may be written; an InputError if nowhere. Nothing is changed.

    It may be written to `directory` where nothing is and where this very run was stopped. With `overwrite`, or where
    that was stopped, a run that replaces another is written to a folder in it until it is finished.
    """
    try:
        is_directory = directory.is_dir()
        names = {whole_name(path) for path in directory.iterdir()} if is_directory else set()
        found = is_run(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be used ({in_one_line(error)}). Give another --output.") from error
    if not is_directory and os.path.lexists(directory):
        raise InputError(f"{directory}: is not a directory, expected a new one or a run. Give another --output.")
    if FINISHED_REPLACEMENT in names:  # killed while it was replaced, which is to be completed first
        return Claim(directory)
    if not found:
        if names <= {TOKENIZER, LENGTHS, CONFIG, TRAINING_LOCK}:
            return Claim(directory)  # empty, or killed while it was begun
        raise InputError(f"{directory}: exists and is not a run of open_nvib. Give another --output.")
    replacement = directory / REPLACEMENT
    if _is_same_run(replacement, config):
        return Claim(replacement)
    if overwrite:
        unfinished = _is_same_run(directory, config) and not (directory / METRICS).exists()
        return Claim(directory if unfinished else replacement)
    different = differences(_read_config(directory / CONFIG), config)
    if different:
        raise InputError(
            f"{directory}: holds a run with other settings ({', '.join(different[:5])}). Give another --output, or "
            f"--overwrite to replace it."
        )
    return Claim(directory, read_metrics(directory).validation or None)


def _is_same_run(run: Path, config: TrainConfig) -> bool:
    try:
        return is_run(run) and not differences(_read_config(run / CONFIG), config)
    except InputError:  # damaged
        return False


def discard_other_replacement(path: Path, config: TrainConfig) -> None:
    """Remove a replacement that was stopped and has other settings than the one that is to be written there."""
    if path.name == REPLACEMENT and not _is_same_run(path, config):
        shutil.rmtree(path, ignore_errors=True)


def replace_run(directory: Path) -> None:
    """Move the files of a finished replacement to their places. If that is interrupted, calling it again goes on."""
    replacement, finished = directory / REPLACEMENT, directory / FINISHED_REPLACEMENT
    if (replacement / METRICS).exists() and not finished.exists():
        (replacement / CHECKPOINTS).mkdir(exist_ok=True)  # so that each file of the old run has one in its place
        replacement.rename(finished)
    for name in OF_A_RUN if finished.is_dir() else ():
        old, new = directory / name, finished / name
        if new.exists():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
            new.rename(old)
    shutil.rmtree(finished, ignore_errors=True)


def complete_replacement(run: Path) -> None:
    """Finish to replace a run where that was stopped between two files; to be called before a run is read."""
    if os.path.isdir(run / FINISHED_REPLACEMENT):
        with training_lock(run):
            replace_run(run)


def discard_empty_replacement(path: Path) -> None:
    """Remove a replacement that failed before its first checkpoint: there is nothing in it to go on from."""
    if path.name == REPLACEMENT and not checkpoints(path / CHECKPOINTS):
        shutil.rmtree(path, ignore_errors=True)


def run_being_written(run: Path) -> Path:
    """Return the folder that training writes to: the run itself, or that of its replacement."""
    return run / REPLACEMENT if is_run(run / REPLACEMENT) else run


@contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of training in a directory, which is made if missing. It is released when the process ends."""
    try:
        lock = file_lock(directory / TRAINING_LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"{directory}: another process is training this run. Wait until it ends, or give another --output."
        ) from error
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({in_one_line(error)}). Give another --output.") from error
    try:
        yield
    finally:
        lock.release()


def seal_run(run: Path) -> None:
    """Write the manifest of a finished run. Files that change later, such as the log and metrics, are not in it."""
    inside = [file for folder in (MODEL, TOKENIZER) for file in (run / folder).rglob("*") if file.is_file()]
    at_root = [run / name for name in (CONFIG, LENGTHS, NUMBERS, *FOR_TRANSFORMERS) if (run / name).is_file()]
    write_manifest(run, [*at_root, *inside])


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
        content = yaml.safe_load(read_stored(path).decode())
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


@dataclass(frozen=True)
class Numbers:
    """How many vectors sentences of each length need, of a model that takes any number.

    Attributes:
        counts: for each length in tokens and number of vectors that occur together, how many sentences have them.
    """

    counts: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.counts or min(min(entry) for entry in self.counts) < 1:
            raise ValueError("counts: expected a length, a number of vectors and a number of sentences, all above 0")


def write_numbers(run: Path, numbers: Numbers) -> None:
    write_json(run / NUMBERS, numbers)


def read_numbers(run: Path) -> Numbers | None:
    """Read the numbers of vectors; None for a run without."""
    return read_record(run / NUMBERS, Numbers, fix=RESTORE) if (run / NUMBERS).is_file() else None


# The log


@dataclass(frozen=True)
class LogEntry:
    """A line of the log: numbers by name, those of an evaluation on validation data as `eval_…`.

    Attributes:
        time: when it was written, in seconds since 1970.
        elapsed: seconds of training until then; of an interrupted run, those until the checkpoint are included.
    """

    step: int
    values: dict[str, float]
    time: float | None = field(default=None, compare=False)
    elapsed: float | None = field(default=None, compare=False)

    def line(self) -> str:
        when = {"time": self.time, "elapsed": self.elapsed}
        return json.dumps({"step": self.step, **self.values, **{k: v for k, v in when.items() if v is not None}}) + "\n"


def append_log(run: Path, entry: LogEntry) -> None:
    with (run / LOG).open("a", encoding="utf-8") as stream:
        stream.write(entry.line())


def read_log(run: Path) -> list[LogEntry]:
    """Read the log; empty where there is none. A line that is cut, as the last one of a live run may be, is skipped."""
    path = run / LOG
    try:
        lines = read_stored(path).splitlines() if path.exists() else []
    except OSError as error:
        raise damaged(path, error, fix="Move it away: the log is not needed to go on.") from error
    entries = []
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and type(step := values.pop("step", None)) is int:
            numbers: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, (int, float))}
            when = {name: numbers.pop(name, None) for name in ("time", "elapsed")}
            entries.append(LogEntry(step, numbers, **when))
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
    files = [file for file in checkpoint.iterdir() if file.is_file() and file.name != SEAL]
    write_manifest(checkpoint, files, name=SEAL)


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if nothing is."""
    for file, what in find_damage(checkpoint, name=SEAL):
        return "it is incomplete" if file.name == SEAL else f"{file.name} {what}"
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
def writing_to(path: Path, *, remove: bool = True) -> Iterator[None]:
    """Turn what the disk refuses into an InputError, and remove what was half-written to `path`."""
    try:
        yield
    except Exception as error:  # libraries raise errors of many kinds
        reason = disk_trouble(error, path.parent)
        if reason is None or isinstance(error, InputError):
            raise
        if remove and path.is_dir():  # rmtree would wait for a pipe
            shutil.rmtree(path, ignore_errors=True)
        what = reason if reason.startswith("no space") else f"cannot be written ({reason})"
        where = getattr(error, "filename", None) or path
        raise InputError(
            f"{where}: {what}. Earlier checkpoints are intact: make room for it and run the same command again."
        ) from error
