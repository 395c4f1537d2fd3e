"""The steps of an evaluation: each writes its result when it is done, so that an interrupted evaluation goes on."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from open_nvib._files import finite, write_json


def digest(inputs: Any) -> str:
    """A short name for what a result depends on, or for a result."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


class Steps:
    """Results in a directory, a file for each step and for what it depends on.

    Several processes may share the directory: one computes a step, the others wait for it. What is in one of the
    `others`, which may not be written, counts as well.
    """

    def __init__(self, directory: Path, say: Callable[[str], None], *, others: Sequence[Path] = ()) -> None:
        self.directory, self.say, self.others = directory, say, others

    def run(self, name: str, inputs: Any, compute: Callable[[], Any]) -> Any:
        """The result of a step: what is on disk if it was computed from the same inputs, else computed now."""
        file = f"{name}-{digest(inputs)}.json"
        for directory in (self.directory, *self.others):
            known = _read(directory / file)
            if known is not None:
                return known
        path = self.directory / file
        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            known = _read(path)
            if known is None:
                self.say(name)
                known = finite(compute())
                write_json(path, {"digest": digest(known), "result": known})
        return known


def _read(path: Path) -> Any:
    """What a finished step wrote; None for a step that is to be done, or whose file is not what was written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["result"] if digest(found["result"]) == found["digest"] else None
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
