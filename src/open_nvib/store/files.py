"""Read and write files: atomic writes, YAML, locks, manifests, one-line errors for damaged files, cached results."""

import difflib
import errno
import hashlib
import json
import math
import os
import re
import reprlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from filelock import BaseFileLock, FileLock


class InputError(ValueError):
    """What the user gave cannot be used: a missing file, a wrong value, an output that would be overwritten.

    The message is one line and says what, where, what was got, what was expected, and the fix. The command line prints
    it without a traceback and exits with 2.
    """


class InputWarning(UserWarning):
    """What the user gave can be used, perhaps not as meant. The command line prints the message in one line."""


class OutsideTraining(InputWarning):
    """A model is used with lengths or numbers of vectors that it has not seen in training."""


T = TypeVar("T")

PARTIAL = ".partial"
LONGEST_REASON = 200  # characters of another library's message that are quoted in an error
OPTIONAL = {"optional": True}  # metadata of a dataclass field that `as_builtins` leaves out where it is None or empty


def as_builtins(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to JSON's own types; a number that is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: as_builtins(entry)
            for each in fields(value)
            if (entry := getattr(value, each.name)) or "optional" not in each.metadata
        }
    if isinstance(value, Mapping):
        return {str(key): as_builtins(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_builtins(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_builtins(value: Any, kind: type[T]) -> T:
    """Convert JSON's own types to the dataclass `kind`; a ValueError names the entry that does not fit."""
    return msgspec.convert(value, kind, str_keys=True)


def write_text(path: Path, text: str) -> None:
    """Write text as `write_bytes` does. Half of a surrogate pair, which UTF-8 cannot hold, becomes a JSON escape."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write all of a file or nothing; of several writers at the same time, the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Write the JSON of `as_builtins(value)`, as `write_text` does."""
    write_text(path, json.dumps(as_builtins(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_stored(path: Path) -> bytes:
    """Read a file; an OSError for anything else, such as a pipe, which would be read for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    return path.read_bytes()


def read_record(path: Path, kind: type[T], *, fix: str, load: Callable[[str], Any] = json.loads) -> T:
    """Read a file as the dataclass `kind`; an InputError names the entry that does not fit.

    Entries that the dataclass does not have are ignored; those that the file does not have take their defaults. JSON's
    extensions Infinity and NaN, which earlier versions wrote, are None. `load` turns the text into JSON's own types.
    """
    try:
        return from_builtins(as_builtins(load(read_stored(path).decode())), kind)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: of UTF-8, JSON, msgspec, a __post_init__
        raise damaged(path, error, fix=fix) from error


def damaged(path: Path, why: BaseException | str, *, fix: str) -> InputError:
    """Make the error, one line, about a file that cannot be used."""
    return InputError(f"{path}: cannot be used ({in_one_line(why)}). {fix}")


def in_one_line(why: BaseException | str, *, longest: int = LONGEST_REASON) -> str:
    """Shorten a message, or the message of an exception, to one line of so many characters."""
    text = (isinstance(why, OSError) and why.strerror) or " ".join(str(why).split()) or type(why).__name__
    return text if len(text) <= longest else f"{text[:longest]}…"


def check_characters(texts: Iterable[str]) -> None:
    """Raise an InputError if a text has a byte that is not UTF-8, or half of a surrogate pair."""
    for index, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"texts[{index}]: {text[:40]!r} is not UTF-8 at character {error.start + 1}. Correct it."
            ) from None


def obstacle_to_writing(directory: Path) -> str | None:
    """Say why no file can be written to a directory, which is made if missing; None if one can."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return in_one_line(error)


def disk_trouble(error: BaseException, folder: Path = Path()) -> str | None:
    """Say what the disk, or a path on it, refused if that is what an error of any library is about; None if not."""
    text = str(error)
    torch_failed = isinstance(error, RuntimeError) and "inline_container" in text  # it does not say why
    if "No space left" in text or (torch_failed and shutil.disk_usage(folder).free < 2**20):
        return "no space left on the disk"
    disk_errors = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    of_a_path = isinstance(error, OSError) and (error.filename or error.errno in disk_errors)
    return in_one_line(error) if of_a_path or torch_failed or "(os error " in text else None


@contextmanager
def writing_to(path: Path, *, remove: bool = True) -> Iterator[None]:
    """Turn what the disk refuses into an InputError, and remove what was half-written to `path`."""
    try:
        yield
    except Exception as error:  # libraries raise errors of many kinds
        reason = disk_trouble(error, path.parent)
        if reason is None or isinstance(error, InputError):
            raise
        if remove and path.is_dir():  # rmtree would wait for a pipe
            shutil.rmtree(path, ignore_errors=True)
        what = reason if reason.startswith("no space") else f"cannot be written ({reason})"
        where = getattr(error, "filename", None) or path
        raise InputError(f"{where}: {what}. Make room for it, and run the same command again.") from error


def file_lock(path: Path) -> BaseFileLock:
    """Return the lock at `path`, which one process at a time can hold; its directory is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # early versions of filelock empty the file that a link leads to
        raise InputError(f"{path}: is a link, expected a file of its own. Remove it.")
    return FileLock(path)


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # EPERM: a process of another user
        return error.errno != errno.ESRCH
    return True


def digest_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Return a short name for a value that `as_builtins` takes; equal values have equal names."""
    return hashlib.sha256(json.dumps(as_builtins(value), sort_keys=True).encode()).hexdigest()[:12]


# YAML that a person wrote, read once and strictly


class _Loader(yaml.SafeLoader):
    """YAML as PyYAML reads it, but 1e-3 is a number, a date is text and a duplicate key is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in seen:  # of which plain YAML silently keeps the last value
                line = key.start_mark.line + 1
                raise InputError(f"line {line}: duplicate key {key.value!r}. Rename one, or remove it.")
            seen.add((key.tag, str(key.value)))
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_yaml(text: str) -> Any:
    """Read YAML; a mistake is an InputError, and its place the line."""
    try:
        return yaml.load(text, _Loader)
    except InputError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # some of `!!int abc`
        raise InputError(f"is not YAML ({in_one_line(error)}).") from error


def find_config(name: str, *folders: Path, where: str = "--config") -> Path:
    """Find the file of a configuration: as given, in one of the folders, or among those that come with the package."""
    package = Path(__file__).parents[1]
    packaged = (package, package.parents[1]) if name.startswith("configs/") and ".." not in name else ()
    for folder in (Path(), *folders, *packaged):
        if os.path.isfile(path := folder / Path(name).expanduser()):
            return path
    looked_in = ", ".join(["the working directory", *map(str, folders)])
    raise InputError(f"{where}: no configuration {name!r} in {looked_in}. Give the YAML file of one.")


def read_mapping(path: Path) -> dict[str, Any]:
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file. Give a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({in_one_line(error)}). Give a YAML file.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return as_mapping(content, where=str(path))


def as_mapping(value: Any, *, where: str) -> dict[str, Any]:
    """Check that a value is a mapping from names; None is an empty one."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {shown(value)}, expected a mapping from names to values.")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{where}: the key {shown(key)} is not a name. Put it in quotes.")
    return value


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: Any) -> str:
    """Format a value for a message, as YAML has it; of a long one, the beginning and the end."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else _short.repr(value)


def suggestion(name: Any, known: Collection[str]) -> str:
    """End a message about an unknown name: the known one that is most like it, or all."""
    if close := difflib.get_close_matches(str(name), known, 1):
        return f". Did you mean {close[0]!r}?"
    return f"; available: {', '.join(known)}."


# Manifests: the size and the digest of every file of a directory, written when all are complete

MANIFEST = "manifest.json"
LARGEST_DIGESTED = 256 * 2**20
"""Bytes of a file above which loading compares its size alone, and `nvib check` the digest too."""


@dataclass(frozen=True)
class FileEntry:
    """A file as it was when the manifest was written."""

    size: int
    sha256: str


def write_manifest(directory: Path, files: Iterable[Path], *, name: str = MANIFEST) -> None:
    """Write the manifest of files in a directory, and give them its mode: some libraries make files of mode 0600."""
    listed = sorted(files)
    entries = {
        file.relative_to(directory).as_posix(): FileEntry(file.stat().st_size, digest_of_file(file)) for file in listed
    }
    write_json(directory / name, entries, indent=1)
    mode = (directory / name).stat().st_mode & 0o777
    for file in listed:
        with suppress(OSError):  # a file of another user
            file.chmod(mode)


def read_manifest(directory: Path, *, name: str = MANIFEST) -> dict[str, FileEntry | str]:
    """Read a manifest; an OSError or a ValueError if that fails. Early ones of checkpoints have digests alone."""
    kind = Annotated[dict[str, FileEntry | str], msgspec.Meta(min_length=1)]
    return msgspec.json.decode(read_stored(directory / name), type=kind)


def find_damage(
    directory: Path, *, name: str = MANIFEST, prefix: str = "", largest: float = math.inf
) -> Iterator[tuple[Path, str]]:
    """Yield each file that is not as the manifest says, and what is wrong with it.

    Sizes of all files are compared, and digests of those whose names begin with `prefix` and that have at most
    `largest` bytes.
    """
    try:
        entries = read_manifest(directory, name=name)
    except (OSError, ValueError, RecursionError) as error:
        yield directory / name, f"is incomplete ({in_one_line(error)})"
        return
    for file, entry in entries.items():
        path = directory / file
        try:
            if not path.is_file():
                yield path, "is missing"
                continue
            size, digest = (path.stat().st_size, entry) if isinstance(entry, str) else (entry.size, entry.sha256)
            compared = file.startswith(prefix) and size <= largest
            if path.stat().st_size != size or (compared and digest_of_file(path) != digest):
                yield path, f"is damaged: it differs from {name}"
        except (OSError, ValueError) as error:
            yield path, f"cannot be read ({in_one_line(error)})"


def check_manifest(directory: Path, *, fix: str, prefix: str = "") -> None:
    """Raise an InputError about the first damaged file of a directory, if it has a manifest; early ones have none."""
    if (directory / MANIFEST).exists():
        for file, what in find_damage(directory, prefix=prefix, largest=LARGEST_DIGESTED):
            raise damaged(file, f"it {what}", fix=fix)


SEAL = "complete.json"
"""Written last, with the digest of every other file: a checkpoint without it was cut off while it was written."""


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete."""
    files = [file for file in checkpoint.iterdir() if file.is_file() and file.name != SEAL]
    write_manifest(checkpoint, files, name=SEAL)


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if nothing is."""
    for file, what in find_damage(checkpoint, name=SEAL):
        return "it is incomplete" if file.name == SEAL else f"{file.name} {what}"
    return None


@dataclass(frozen=True)
class ResultCache:
    """Results of steps, kept in a directory: a file for each step and each set of inputs.

    Processes may share the directory: one computes a step, the others wait for its result.
    """

    directory: Path
    say: Callable[[str], None]  # is told the name of each step that is computed
    others: Sequence[Path] = ()  # directories to read from as well; they need not be writable

    def run(self, name: str, inputs: Any, compute: Callable[[], T], kind: Any) -> T:
        """Return the result of a step: from disk if it was computed from the same inputs, else computed now.

        The inputs are all that the result depends on, in what `as_builtins` takes. A file is read as `kind`, the type
        of the result, such as a dataclass or `list[int]`.
        """
        file = f"{name}-{digest(inputs)}.json"
        for directory in (self.directory, *self.others):
            if (known := _read_result(directory / file, kind)) is not None:
                return known
        path = self.directory / file
        with file_lock(path.with_suffix(".lock")):
            known = _read_result(path, kind)  # another process may have computed it in the meantime
            if known is None:
                self.say(name)
                result = as_builtins(compute())
                write_json(path, {"digest": digest(result), "result": result})
                known = from_builtins(result, kind)
        return known


def _read_result(path: Path, kind: Any) -> Any:
    """Read the result of a finished step; None if there is none, or if its file is damaged."""
    try:
        found = json.loads(read_stored(path).decode())
        return from_builtins(found["result"], kind) if digest(found["result"]) == found["digest"] else None
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
