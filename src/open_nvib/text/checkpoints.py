"""Checkpoints that can be trusted: complete and undamaged, or passed over."""

import hashlib
import json
import re
from pathlib import Path

SEAL = "complete.json"
"""Written last, with the digest of every other file: a checkpoint without it was cut off while it was written."""


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete."""
    digests = {
        file.name: _digest(file) for file in sorted(checkpoint.iterdir()) if file.is_file() and file.name != SEAL
    }
    partial = checkpoint / f"{SEAL}.partial"
    partial.write_text(json.dumps(digests, indent=1))
    partial.replace(checkpoint / SEAL)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        digests: dict[str, str] = json.loads((checkpoint / SEAL).read_text())
    except (OSError, ValueError):
        return "it is incomplete"
    for name, digest in digests.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} is damaged"
    return None


def checkpoints(directory: Path) -> list[Path]:
    """Checkpoints by step, the newest first."""
    found = [path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(2**20):
            digest.update(block)
        return digest.hexdigest()
