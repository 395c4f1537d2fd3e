"""The files of a run directory: names, readers, writers, checkpoints."""

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from safetensors import SafetensorError

from open_nvib.store.files import InputError, damaged, digest_of_file, read_object, whole_name, write_json
from open_nvib.store.settings import TrainConfig, differences, with_defaults

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


SEAL = "complete.json"
"""Written last, with the digest of every other file: a checkpoint without it was cut off while it was written."""


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete."""
    digests = {
        file.name: digest_of_file(file) for file in sorted(checkpoint.iterdir()) if file.is_file() and file.name != SEAL
    }
    partial = checkpoint / f"{SEAL}.partial"
    partial.write_text(json.dumps(digests, indent=1))
    partial.replace(checkpoint / SEAL)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
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


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """A disk that is full is an InputError; what was half-written to `path` is removed."""
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


def checkpoints(directory: Path) -> list[Path]:
    """Checkpoints by step, the newest first."""
    found = [path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def claim(directory: Path, config: TrainConfig, *, overwrite: bool) -> dict[str, float] | None:
    """See that `directory` is free or holds this very run; the metrics if that run is finished."""
    if not directory.exists() or not any(directory.iterdir()):
        return None
    if not is_run(directory):
        if {whole_name(path) for path in directory.iterdir()} <= {TOKENIZER, LENGTHS, CONFIG}:
            return None  # killed while it was begun
        raise InputError(f"{directory}: exists and is not a run of open_nvib. Give another --output.")
    if overwrite:
        _empty(directory)
        return None
    known = with_defaults(read_config(directory), as_plain(TrainConfig()))
    if known != as_plain(config):
        different = sorted(differences(known, as_plain(config)))
        raise InputError(
            f"{directory}: holds a run with other settings ({', '.join(different[:5])}). Give another --output, or "
            f"--overwrite to replace it."
        )
    return read_metrics(directory).get(VALIDATION)  # without it, training did not get to its end


def as_plain(config: TrainConfig) -> dict[str, Any]:
    """In YAML's own types."""
    return json.loads(json.dumps(asdict(config)))


def _empty(directory: Path) -> None:
    """Remove the files of a run, and nothing else that may stand there."""
    for name in (CONFIG, LENGTHS, LOG, METRICS, LOCK):
        (directory / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, MODEL, TOKENIZER):
        shutil.rmtree(directory / name, ignore_errors=True)
