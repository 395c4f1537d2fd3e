"""Who may write a run directory: claims, the lock of training, the replacement of a run, checkpoints to go on from."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from open_nvib.store.files import MANIFEST, InputError, damage, file_lock, in_one_line, whole_name
from open_nvib.store.runs import (
    CHECKPOINTS,
    CONFIG,
    FOR_TRANSFORMERS,
    LENGTHS,
    LOG,
    METRICS,
    MODEL,
    NUMBERS,
    TOKENIZER,
    is_run,
    read_config_values,
    read_metrics,
)
from open_nvib.store.settings import TrainConfig, differences

TRAINING_LOCK = ".training.lock"
OF_A_RUN = (MANIFEST, CONFIG, LENGTHS, LOG, METRICS, CHECKPOINTS, MODEL, NUMBERS, TOKENIZER, *FOR_TRANSFORMERS)
REPLACEMENT, FINISHED_REPLACEMENT = ".replacement", ".replacement-finished"
"""Folders of a run in which another run that is to replace it is trained, and waits until its files are moved."""


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
        is_directory = directory.is_dir()
        names = {whole_name(path) for path in directory.iterdir()} if is_directory else set()
        found = is_run(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be used ({in_one_line(error)}). Give another --output.") from error
    refuse_links(directory)
    if not is_directory and os.path.lexists(directory):
        raise InputError(f"{directory}: is not a directory, expected a new one or a run. Give another --output.")
    if FINISHED_REPLACEMENT in names:  # killed while it was replaced, which is to be completed first
        return Claim(directory)
    if not found:
        begun = TRAINING_LOCK in names and names <= {TOKENIZER, LENGTHS, CONFIG, TRAINING_LOCK}
        if not names or begun:  # the lock is our mark: a run that was killed while it was begun
            return Claim(directory)
        raise InputError(f"{directory}: exists and is not a run of open_nvib. Give another --output.")
    replacement = directory / REPLACEMENT
    if _is_same_run(replacement, config):
        return Claim(replacement)
    if overwrite:
        unfinished = _is_same_run(directory, config) and not (directory / METRICS).exists()
        return Claim(directory if unfinished else replacement)
    different = differences(read_config_values(directory / CONFIG), config)
    if different:
        raise InputError(
            f"{directory}: holds a run with other settings ({', '.join(different[:5])}). Give another --output, or "
            f"--overwrite to replace it."
        )
    return Claim(directory, read_metrics(directory).validation or None)


def _is_same_run(run: Path, config: TrainConfig) -> bool:
    try:
        return is_run(run) and not differences(read_config_values(run / CONFIG), config)
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
    """Complete an interrupted replacement, of the run's own files alone. Call it before reading a run."""
    refuse_links(run, files=False)  # a snapshot of the hub's cache has links to files, which are only read
    if os.path.isdir(run / FINISHED_REPLACEMENT):
        with training_lock(run):
            replace_run(run)


def refuse_links(run: Path, *, files: bool = True) -> None:
    """Raise an InputError if a run has a link in it: what it leads to is not the run's own, and may be changed.

    Without `files`, links to files pass.
    """
    for folder, folders, names in os.walk(run):
        for name in (*folders, *names) if files else folders:
            if os.path.islink(os.path.join(folder, name)):
                raise InputError(
                    f"{os.path.join(folder, name)}: is a link, expected a file of the run itself. Copy the run with "
                    f"`cp -rL`, which replaces links by what they lead to."
                )


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


# Checkpoints


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
