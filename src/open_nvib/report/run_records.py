"""Typed readers of a run directory, with the names that `store.runs` is to have."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import damaged, from_builtins, read_record
from open_nvib.store.runs import CONFIG as CONFIG
from open_nvib.store.runs import COPY, LOG, METRICS, TRAIN
from open_nvib.store.runs import read_config as _read_config
from open_nvib.store.settings import TrainConfig


@dataclass(frozen=True)
class LogEntry:
    """A line of the log."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class RunMetrics:
    """The content of metrics.json."""

    step: int = 0
    validation: dict[str, float | None] | None = None
    evaluations: dict[str, Evaluation] = field(default_factory=dict)


def read_config(run: Path) -> TrainConfig:
    found = _read_config(run)
    try:
        return from_builtins(found, TrainConfig)
    except ValueError as error:
        raise damaged(run / CONFIG, error, fix=COPY) from error


def read_metrics(run: Path) -> RunMetrics:
    path = run / METRICS
    return read_record(path, RunMetrics, fix=TRAIN) if path.exists() else RunMetrics()


def read_log(run: Path) -> list[LogEntry]:
    path = run / LOG
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise damaged(path, error, fix="Move it away: a report does without it.") from error
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and type(entry.get("step")) is int:
            values = {name: float(value) for name, value in entry.items() if isinstance(value, (int, float))}
            found.append(LogEntry(entry["step"], values))
    return found
