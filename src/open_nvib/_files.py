"""Files written whole or not at all, and read with one line on what is wrong with them."""

import errno
import hashlib
import json
import math
import tempfile
import uuid
from pathlib import Path
from typing import Any

from open_nvib.errors import InputError

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
    write_text(path, json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


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
