"""A run directory: the names of its files, and their typed readers and writers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from open_nvib.store.evaluations import Evaluation, upgrade
from open_nvib.store.files import (
    OPTIONAL,
    as_builtins,
    damaged,
    file_lock,
    from_builtins,
    read_record,
    read_stored,
    write_json,
    write_manifest,
    write_text,
)
from open_nvib.store.settings import MOST, TrainConfig
from open_nvib.store.task_settings import Recipe

CHECKPOINTS, MODEL, TOKENIZER = "checkpoints", "model", "tokenizer"
CONFIG, LENGTHS, LOG, METRICS, NUMBERS = "config.yaml", "lengths.json", "log.jsonl", "metrics.json", "numbers.json"
WEIGHTS = "model.safetensors"
LOCK = f".{METRICS}.lock"
INDEX = f"{WEIGHTS}.index.json"
FOR_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX)
"""Files with which the Auto classes of transformers open a run directory; the index leads to the weights in model/."""
MOST_TOKENS = 2**24
"""Length of a text above which no model has positions."""

RESTORE = "Restore it from a copy, or train the run again with `nvib train --overwrite`."
TRAIN_AGAIN = "Move it away and run the `nvib train` command of the run again, which writes it anew."


def is_run(path: Path) -> bool:
    """Whether a directory is a run, finished or not."""
    return (path / CONFIG).is_file() and (path / LENGTHS).is_file()


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
    content = read_config_values(path)
    try:
        return from_builtins(content, TrainConfig)
    except ValueError as error:
        raise damaged(path, error, fix=RESTORE) from error


def read_config_values(path: Path) -> dict[str, Any]:
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
        if min(self.lengths, default=0) < 0 or not 0 < sum(self.lengths) <= MOST or len(self.lengths) > MOST_TOKENS:
            raise ValueError(f"lengths: expected numbers of sentences, one above 0 and at most {MOST} in all")


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
        numbers = [number for entry in self.counts for number in entry]
        if not numbers or min(numbers) < 1 or max(numbers) > MOST:
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
    return read_record(path, RunMetrics, fix=TRAIN_AGAIN, upgrade=upgrade) if path.exists() else RunMetrics()


def change_metrics(run: Path, change: Callable[[RunMetrics], RunMetrics]) -> RunMetrics:
    """Read the metrics, change them and write them, one process after the other. Returns the new ones."""
    with file_lock(run / LOCK):
        metrics = change(read_metrics(run))
        write_json(run / METRICS, metrics, indent=1)
    return metrics
