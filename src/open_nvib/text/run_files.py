"""The files of a run directory: their names, and how they are read where they may be damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from open_nvib._files import damaged, read_object, write_json

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
VALIDATION, EVALUATIONS = "validation", "evaluations"

COPY = "Restore it from a copy, or train the run again with `nvib train --overwrite`."
TRAIN = "Move it away and run the `nvib train` command of the run again, which writes it anew."


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / LENGTHS).is_file()


def read_config(run: Path) -> dict[str, Any]:
    """The configuration that the run was trained with."""
    path = run / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise damaged(path, error, fix=COPY) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(path, f"not YAML: {error}", fix=COPY) from error
    kinds = {"data": str, "partition": str, "seed": int}
    wrong = [name for name, kind in kinds.items() if not isinstance(config, dict) or type(config.get(name)) is not kind]
    if wrong:
        raise damaged(path, f"wanted a mapping with {', '.join(kinds)}; no {', '.join(wrong)} in it", fix=COPY)
    return config


def read_lengths(run: Path) -> dict[str, Any]:
    """How many training sentences have how many tokens, under `lengths`, and the `recipe` of the data."""
    path = run / LENGTHS
    content = read_object(path, fix=COPY)
    lengths = content.get("lengths")
    counts = lengths if isinstance(lengths, list) else []
    if not all(type(count) is int and count >= 0 for count in counts) or not any(counts):
        raise damaged(path, "wanted numbers of sentences, one above 0, under `lengths`", fix=COPY)
    return content


def read_metrics(run: Path) -> dict[str, Any]:
    """What training and evaluations found; empty where nothing was written yet."""
    path = run / METRICS
    if not path.exists():
        return {}
    metrics = read_object(path, fix=TRAIN)
    for name in (VALIDATION, EVALUATIONS):
        if not isinstance(metrics.get(name, {}), dict):
            raise damaged(path, f"wanted an object under `{name}`", fix=TRAIN)
    for name, record in metrics.get(EVALUATIONS, {}).items():
        if not isinstance(record, dict):
            raise damaged(path, f"wanted an object under `{EVALUATIONS}.{name}`", fix=TRAIN)
    return metrics


def change_metrics(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Read the metrics, change them, write them, one process after the other."""
    with FileLock(run / LOCK):
        metrics = read_metrics(run)
        change(metrics)
        write_json(run / METRICS, metrics, indent=1)
