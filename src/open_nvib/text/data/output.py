"""The output directory: never half-written, and never written over something else."""

import glob
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from open_nvib.store.files import InputError
from open_nvib.text.data.prepared import RECORD, Prepared, is_prepared, load_prepared


def check_is_ours(output: Path) -> None:
    """The output may be new, an empty directory, or prepared data."""
    if output.is_dir() and (is_prepared(output) or not any(output.iterdir())):
        return
    if output.exists() or output.is_symlink():
        raise InputError(
            f"{output}: exists and is not prepared data, so it is left alone. "
            f"Give another --output, or remove it first."
        )


def reuse(output: Path, recipe: dict[str, Any], *, overwrite: bool) -> Prepared | None:
    """What is there already, if it was made by this very recipe. None if it is to be made."""
    if not is_prepared(output):
        return None
    existing = load_prepared(output)
    if existing.recipe == recipe:
        return existing
    if overwrite:
        return None
    raise InputError(
        f"{output}: holds data of another recipe ({_differences(existing.recipe, recipe)}). "
        f"Give another --output, or --overwrite to replace it."
    )


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    flat_old, flat_new = ({**recipe["source"], **recipe["config"]} for recipe in (old, new))
    keys = [key for key in {**flat_old, **flat_new} if flat_old.get(key) != flat_new.get(key)]
    shown = [
        f"{key} differs"
        if isinstance(flat_new.get(key), dict) and key != "partitions"
        else f"{key} was {flat_old.get(key)!r}, now {flat_new.get(key)!r}"
        for key in keys
    ]
    return "; ".join(shown) or "another version of the tools"


@contextmanager
def writing(output: Path) -> Iterator[Path]:
    """A directory beside `output` to write to. It takes the place of `output` if all goes well, else it is removed."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(output)
        partial = output.parent / f".{output.name}.partial-{socket.gethostname()}-{os.getpid()}"
        partial.mkdir()
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}). Give another --output.") from error
    try:
        yield partial
        _replace(output, partial)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror or error}). Nothing was changed.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_record(directory: Path, record: dict[str, Any]) -> None:
    """Written last: a directory without it is not prepared data."""
    (directory / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _replace(output: Path, fresh: Path) -> None:
    check_is_ours(output)  # again: minutes have passed
    if not output.exists():
        fresh.rename(output)
        return
    old = fresh.with_name(fresh.name.replace(".partial-", ".old-"))
    output.rename(old)
    fresh.rename(output)
    shutil.rmtree(old)


def _remove_abandoned(output: Path) -> None:
    """Remove what killed runs on this machine left behind."""
    prefix = f".{output.name}.partial-{socket.gethostname()}-"
    for path in output.parent.glob(f"{glob.escape(prefix)}*"):
        pid = path.name.removeprefix(prefix)
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
