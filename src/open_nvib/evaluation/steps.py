"""The steps of an evaluation: each writes its result when it is done, so that an interrupted evaluation goes on."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock


def digest(inputs: Any) -> str:
    """A short name for what a result depends on."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def digest_of_file(path: Path) -> str:
    """A short name for what is in a file."""
    hashed = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            hashed.update(block)
    return hashed.hexdigest()[:12]


def write_json(path: Path, value: Any) -> None:
    """Write all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


class Steps:
    """Results in a directory, a file for each step and for what it depends on.

    Several processes may share the directory: one computes a step, the others wait for it.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory, self.say = directory, say

    def path(self, name: str, inputs: Any) -> Path:
        return self.directory / f"{name}-{digest(inputs)}.json"

    def run(self, name: str, inputs: Any, compute: Callable[[], Any]) -> Any:
        """The result of a step: what is on disk if it was computed from the same inputs, else computed now."""
        path = self.path(name, inputs)
        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            known = _read(path)
            if known is None:
                self.say(name)
                known = compute()
                write_json(path, known)
        return known


def _read(path: Path) -> Any:
    """What a finished step wrote; None for a step that is to be done, or whose file is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
