"""A run directory: its files with their typed readers and writers, who may write it, and its checkpoints."""

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

from open_nvib.store import files
from open_nvib.store.evaluations import Evaluation, load
from open_nvib.store.files import InputError, as_mapping, in_one_line, load_yaml
from open_nvib.store.settings import MOST, TrainConfig, differences
from open_nvib.store.task_settings import Recipe

CHECKPOINTS, MODEL, TOKENIZER = "checkpoints", "model", "tokenizer"
CONFIG, LENGTHS, LOG, METRICS, NUMBERS = "config.yaml", "lengths.json", "log.jsonl", "metrics.json", "numbers.json"
WEIGHTS, PRIOR = "model.safetensors", "prior.safetensors"
LOCK = f".{METRICS}.lock"
INDEX = f"{WEIGHTS}.index.json"
FOR_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX)
"""Files with which the Auto classes of transformers open a run directory; the index leads to the weights in model/."""
OF_A_RUN = (CONFIG, files.MANIFEST, LENGTHS, LOG, CHECKPOINTS, MODEL, NUMBERS, TOKENIZER, *FOR_TRANSFORMERS, METRICS)
"""The files of a run, in the order in which those of a replacement are moved."""
TRAINING_LOCK = ".training.lock"
REPLACEMENT = ".replacement"  # folder of a run in which another run that is to replace it is trained
MOST_TOKENS = 2**24  # length of a text above which no model has positions

RESTORE = "Restore it from a copy, or train the run again with `nvib train --overwrite`."
TRAIN_AGAIN = "Move it away and run the `nvib train` command of the run again, which writes it anew."


def is_run(path: Path) -> bool:
    """Whether a directory is a run, finished or not."""
    return (path / CONFIG).is_file() and (path / LENGTHS).is_file()


def seal_run(run: Path) -> None:
    """Write the manifest of a finished run. Files that change later, such as the log and metrics, are not in it."""
    inside = [file for folder in (MODEL, TOKENIZER) for file in (run / folder).rglob("*") if file.is_file()]
    at_root = [run / name for name in (CONFIG, LENGTHS, NUMBERS, *FOR_TRANSFORMERS) if (run / name).is_file()]
    files.write_manifest(run, [*at_root, *inside])


# The configuration, and the lengths of the training data


def write_config(run: Path, config: TrainConfig) -> None:
    files.write_text(run / CONFIG, yaml.safe_dump(files.as_builtins(config), sort_keys=False))


def read_config(run: Path) -> TrainConfig:
    """Read the configuration that the run was trained with; an option newer than the run has its default."""

    def load_whole(text: str) -> Any:
        values = as_mapping(load_yaml(text), where="settings")
        if missing := {"data", "partition", "seed"} - values.keys():  # an empty file is not a run of the defaults
            raise InputError(f"missing: {', '.join(sorted(missing))}")
        return values

    return files.read_record(run / CONFIG, TrainConfig, fix=RESTORE, load=load_whole)


@dataclass(frozen=True)
class Lengths:
    """How long the sentences are that a run was trained on; `partition` and `recipe` are those of the prepared data."""

    lengths: list[int]  # entry k is the number of sentences of k tokens
    partition: str = ""
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        if min(self.lengths, default=0) < 0 or not 0 < sum(self.lengths) <= MOST or len(self.lengths) > MOST_TOKENS:
            raise ValueError(f"lengths: expected numbers of sentences, one above 0 and at most {MOST} in all")


def write_lengths(run: Path, lengths: Lengths) -> None:
    files.write_json(run / LENGTHS, lengths)


def read_lengths(run: Path) -> Lengths:
    return files.read_record(run / LENGTHS, Lengths, fix=RESTORE)


@dataclass(frozen=True)
class Numbers:
    """How many vectors sentences of each length need, of a model that takes any number."""

    counts: tuple[tuple[int, int, int], ...]  # tokens, vectors, and how many sentences have that many of both

    def __post_init__(self) -> None:
        numbers = [number for entry in self.counts for number in entry]
        if not numbers or min(numbers) < 1 or max(numbers) > MOST:
            raise ValueError("counts: expected a length, a number of vectors and a number of sentences, all above 0")


def write_numbers(run: Path, numbers: Numbers) -> None:
    files.write_json(run / NUMBERS, numbers)


def read_numbers(run: Path) -> Numbers | None:
    """Read the numbers of vectors; None for a run without."""
    return files.read_record(run / NUMBERS, Numbers, fix=RESTORE) if (run / NUMBERS).is_file() else None


# The log


@dataclass(frozen=True)
class LogEntry:
    """A line of the log: numbers by name, those of an evaluation on validation data as `eval_…`.

    `time` is when it was written, in seconds since 1970, and `elapsed` the seconds of training until then; of an
    interrupted run, those until the checkpoint are included.
    """

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
        lines = files.read_stored(path).splitlines() if path.exists() else []
    except OSError as error:
        raise files.damaged(path, error, fix="Move it away: the log is not needed to go on.") from error
    entries = []
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and type(step := values.pop("step", None)) is int:
            numbers: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, (int, float))}
            entries.append(LogEntry(step, numbers))
    return entries


def cut_log(run: Path, step: int) -> None:
    """Remove what was logged after `step`, which is going to happen again."""
    if (run / LOG).exists():
        files.write_text(run / LOG, "".join(entry.line() for entry in read_log(run) if entry.step <= step))


# What was measured


@dataclass(frozen=True)
class RunMetrics:
    """What training measured on validation data at its end, and what `nvib evaluate` found."""

    step: int = 0  # the last one of training
    validation: dict[str, float | None] = field(default_factory=dict, metadata=files.OPTIONAL)
    evaluations: dict[str, Evaluation] = field(default_factory=dict, metadata=files.OPTIONAL)  # by name


def read_metrics(run: Path) -> RunMetrics:
    """Read what was measured; empty where nothing was written yet."""
    path = run / METRICS
    return files.read_record(path, RunMetrics, fix=TRAIN_AGAIN, load=load) if path.exists() else RunMetrics()


def change_metrics(run: Path, change: Callable[[RunMetrics], RunMetrics]) -> RunMetrics:
    """Read the metrics, change them and write them, one process after the other. Returns the new ones."""
    with files.file_lock(run / LOCK):
        metrics = change(read_metrics(run))
        files.write_json(run / METRICS, metrics, indent=1)
    return metrics


# Who may write a run directory


@dataclass(frozen=True)
class Claim:
    """Where a run is to be written, and its metrics on validation data if this very run is finished."""

    path: Path
    finished: dict[str, float | None] | None = None


def claim_directory(directory: Path, config: TrainConfig, *, overwrite: bool) -> Claim:
    """Find where a run with this configuration may be written; an InputError if nowhere. Nothing is changed.

    A run may be written to `directory` if that is empty or holds this run, interrupted. A run that replaces another,
    with `overwrite`, is first trained in a subfolder.
    """
    try:
        names = {path.name for path in directory.iterdir() if path.suffix != files.PARTIAL}
    except FileNotFoundError:
        names = set()
    except OSError as error:
        raise InputError(f"{directory}: cannot be used ({in_one_line(error)}). Give another --output.") from error
    refuse_links(directory)
    replacement = directory / REPLACEMENT
    if (replacement / METRICS).exists():  # killed while it was moved, which is to be completed first
        return Claim(directory)
    if not is_run(directory):
        begun = TRAINING_LOCK in names and names <= {TOKENIZER, LENGTHS, CONFIG, TRAINING_LOCK}
        if names and not begun:  # the lock is our mark: a run that was killed while it was begun
            raise InputError(f"{directory}: exists and is not a run of open_nvib. Give another --output.")
        return Claim(directory)
    if _is_same_run(replacement, config):
        return Claim(replacement)
    if overwrite:
        unfinished = _is_same_run(directory, config) and not (directory / METRICS).exists()
        return Claim(directory if unfinished else replacement)
    if different := differences(read_config(directory), config):
        raise InputError(
            f"{directory}: holds a run with other settings ({', '.join(different[:5])}). Give another --output, or "
            f"--overwrite to replace it."
        )
    return Claim(directory, read_metrics(directory).validation or None)


def _is_same_run(run: Path, config: TrainConfig) -> bool:
    try:
        return is_run(run) and not differences(read_config(run), config)
    except InputError:  # damaged
        return False


def discard_other_replacement(path: Path, config: TrainConfig) -> None:
    """Remove a replacement that was stopped and has other settings than the one that is to be written there."""
    if path.name == REPLACEMENT and not _is_same_run(path, config):
        shutil.rmtree(path, ignore_errors=True)


def discard_empty_replacement(path: Path) -> None:
    """Remove a replacement that failed before its first checkpoint: there is nothing in it to go on from."""
    if path.name == REPLACEMENT and not checkpoints(path / CHECKPOINTS):
        shutil.rmtree(path, ignore_errors=True)


def replace_run(directory: Path) -> None:
    """Move the files of a finished replacement to their places. If that is interrupted, calling it again goes on.

    Metrics are written last and moved last: as long as they are in the replacement, it is finished and not yet moved.
    """
    replacement = directory / REPLACEMENT
    if (replacement / METRICS).exists():
        if (replacement / CONFIG).exists():  # nothing was moved yet
            (replacement / CHECKPOINTS).mkdir(exist_ok=True)  # so that the checkpoints of the old run are replaced
            if (directory / PRIOR).is_file():
                (directory / PRIOR).unlink()  # it was fitted to the weights that are replaced
        for name in OF_A_RUN:
            old, new = directory / name, replacement / name
            if new.exists():
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
                new.rename(old)
    if not is_run(replacement):
        shutil.rmtree(replacement, ignore_errors=True)


def complete_replacement(run: Path) -> None:
    """Complete an interrupted replacement, of the run's own files alone. Call it before reading a run."""
    refuse_links(run, to_files=False)  # a snapshot of the hub's cache has links to files, which are only read
    if os.path.isfile(run / REPLACEMENT / METRICS):
        with training_lock(run):
            replace_run(run)


def run_being_written(run: Path) -> Path:
    """Return the folder that training writes to: the run itself, or that of its replacement."""
    return run / REPLACEMENT if is_run(run / REPLACEMENT) else run


def refuse_links(run: Path, *, to_files: bool = True) -> None:
    """Raise an InputError if a run has a link in it: what it leads to is not the run's own, and may be changed.

    Without `to_files`, links to files pass.
    """
    for folder, folders, names in os.walk(run):
        for name in (*folders, *names) if to_files else folders:
            if os.path.islink(os.path.join(folder, name)):
                raise InputError(
                    f"{os.path.join(folder, name)}: is a link, expected a file of the run itself. Copy the run with "
                    f"`cp -rL`, which replaces links by what they lead to."
                )


@contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of training in a directory, which is made if missing. It is released when the process ends."""
    try:
        lock = files.file_lock(directory / TRAINING_LOCK)
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


# Checkpoints


def checkpoints(directory: Path) -> list[Path]:
    found = [path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def last_good_checkpoint(directory: Path, say: Callable[[str], None]) -> Path | None:
    """Find the newest checkpoint that is complete and undamaged; `say` a line on each that is passed over."""
    for checkpoint in checkpoints(directory):
        wrong = files.damage(checkpoint)
        if wrong is None:
            return checkpoint
        say(f"{checkpoint}: passed over, {wrong}")
    return None
