"""Checkpoints that can be trusted: complete and undamaged, or passed over."""

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from open_nvib._files import digest_of_file
from open_nvib.errors import InputError

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
