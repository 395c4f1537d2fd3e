"""Whether a directory may be trained in: free, or the place of this very run."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from open_nvib._files import whole_name
from open_nvib._settings import differences, with_defaults
from open_nvib.errors import InputError
from open_nvib.text.run_files import (
    CHECKPOINTS,
    CONFIG,
    LENGTHS,
    LOCK,
    LOG,
    METRICS,
    MODEL,
    TOKENIZER,
    VALIDATION,
    is_run,
    read_config,
    read_metrics,
)
from open_nvib.text.train_config import TrainConfig


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
