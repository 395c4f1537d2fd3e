"""Read and write files: atomic writes, one-line errors for damaged files, and cached results."""

import errno
import hashlib
import json
import math
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock


class InputError(ValueError):
    """What the user gave cannot be used: a missing file, a wrong value, an output that would be overwritten.

    The message is one line and says what, where, what was got, what was wanted, and the fix. The command line prints
    it without a traceback and exits with 2.
    """


T = TypeVar("T")

PARTIAL = ".partial"


def write_text(path: Path, text: str) -> None:
    """All of it or nothing; writers at the same time do not meet, the last one stays.

    Half of a character, which UTF-8 does not have, is written as JSON escapes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def whole_name(path: Path) -> str:
    """The name that a file is to have once it is whole."""
    return path.stem.rpartition(".")[0] if path.suffix == PARTIAL else path.name


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """As `write_text`; a number that is not finite is null."""
    write_text(path, json.dumps(as_builtins(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """What comes back from a JSON file of it: JSON has no word for what is not a number but null."""
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path, *, fix: str) -> dict[str, Any]:
    """The JSON object in a file; an InputError, which ends in `fix`, if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise damaged(path, error, fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not JSON: {error}", fix=fix) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a JSON {type(value).__name__}, wanted an object", fix=fix)
    return value


def read_record(path: Path, kind: type[T], *, fix: str) -> T:
    """Read a JSON file as the dataclass `kind`; an InputError that names the entry if it is none.

    An entry that the dataclass does not have is passed over; one that the file does not have takes its default.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise damaged(path, error, fix=fix) from error
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so are those of __post_init__
        raise damaged(path, error, fix=fix) from error


def as_builtins(value: Any) -> Any:
    """A value of dataclasses, mappings and sequences in JSON's own types; a number that is not finite is None."""
    return finite(msgspec.to_builtins(value, str_keys=True))


def from_builtins(value: Any, kind: type[T]) -> T:
    """The dataclass `kind` that JSON's own types describe; a ValueError that names the entry if they do not."""
    return msgspec.convert(value, kind, str_keys=True)


def damaged(path: Path, why: BaseException | str, *, fix: str) -> InputError:
    """The one line on a file that cannot be used."""
    return InputError(f"{path}: cannot be used ({in_one_line(why)}). {fix}")


def in_one_line(why: BaseException | str) -> str:
    text = (isinstance(why, OSError) and why.strerror) or " ".join(str(why).split()) or type(why).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def check_writable(directory: Path, *, fix: str) -> None:
    """An InputError if no file can be written to a directory, which is made if it is not there."""
    why = obstacle_to_writing(directory)
    if why is not None:
        raise InputError(f"{directory}: cannot be written ({why}). {fix}")


def obstacle_to_writing(directory: Path) -> str | None:
    """Why no file can be written to a directory; None if one can. A full disk is an OSError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return in_one_line(error)


def digest_of_file(path: Path) -> str:
    """A name for what is in a file."""
    hashed = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            hashed.update(block)
    return hashed.hexdigest()


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
