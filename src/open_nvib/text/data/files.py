"""The user's own files: which there are, of what kind, and the texts in them."""

import bz2
import csv
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from open_nvib.store.files import InputError

Kind = Literal["text", "jsonl", "csv", "parquet", "wikitext", "mediawiki"]

KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".tokens": "wikitext",
    ".raw": "wikitext",
    ".xml": "mediawiki",
}
_OPENERS: dict[str, type[gzip.GzipFile] | type[bz2.BZ2File]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File}
_UNREADABLE = (OSError, EOFError, zlib.error)
_CHUNK = 1 << 20
_LONGEST_FIELD = 1 << 30  # the csv module's own limit of 131,072 characters is less than a long article
_LINES_LOOKED_AT = 2000
_LONGEST_WRAPPED_LINE = 100
_ENDS_LIKE_A_SENTENCE = re.compile(r"[.!?…:][\"'”’)\]]*$")


def find(path: Path) -> list[Path]:
    """The file itself, or all files of a known kind in the folder and below, sorted by name."""
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder. Look at the path.")
    if path.is_file():
        return [path]
    inside = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
    found = [file for file in inside if kind_by_name(file) is not None]
    if not found:
        raise InputError(f"{path}: no file to read in this folder, wanted one that ends in {', '.join(KINDS)}.")
    return found


def kind(path: Path) -> Kind:
    """By the ending, and for endings that say nothing by the first bytes: a MediaWiki dump, or plain text."""
    known = kind_by_name(path)
    if known is not None:
        return known
    head = next(chunks(path), b"")
    return "mediawiki" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<mediawiki", b"<?xml")) else "text"


def kind_by_name(path: Path) -> Kind | None:
    """By the ending alone, below .gz or .bz2; None where it says nothing."""
    packed = path.suffix.lower() in _OPENERS
    return KINDS.get(Path(path.stem if packed else path.name).suffix.lower())


def texts(path: Path, *, column: str, sentences: bool) -> Iterator[str]:
    """Every text of one file: a paragraph (a line if `sentences`), or a row's column. Not for MediaWiki dumps."""
    readers: dict[Kind, Callable[[], Iterator[str]]] = {
        "text": lambda: lines(path) if sentences else paragraphs(lines(path)),
        "wikitext": lambda: lines(path),
        "jsonl": lambda: _jsonl(path, column),
        "csv": lambda: _csv(path, column),
        "parquet": lambda: _parquet(path, column),
    }
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty, wanted text.")
    return readers[kind(path)]()


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked where its ending says that it is packed."""
    try:
        opener = _OPENERS.get(path.suffix.lower())
        with opener(path, "rb") if opener else path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except _UNREADABLE as error:
        raise InputError(f"{path}: cannot be read ({error}). Look whether the file is whole and permitted.") from error


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, without their ends."""
    rest = b""
    number = 0
    for chunk in itertools.chain(chunks(path), [None]):
        *whole, rest = (rest + chunk).split(b"\n") if chunk is not None else (rest, b"")
        for line in whole:
            number += 1
            yield _decode(line, path, number).rstrip("\r")


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line {number} is not UTF-8 text (byte 0x{line[error.start]:02x}). "
            f"Convert the file to UTF-8, or give another one if this is binary."
        ) from None
    if "\0" in text:
        raise InputError(f"{path}: line {number} has a zero byte, so this is a binary file, wanted UTF-8 text.")
    return text


def paragraphs(source: Iterable[str]) -> Iterator[str]:
    """Lines are paragraphs, unless they are wrapped at a width, when blank lines part the paragraphs."""
    stream = iter(source)
    head = list(itertools.islice(stream, _LINES_LOOKED_AT))
    rest = itertools.chain(head, stream)
    if not is_wrapped(head):
        yield from rest
        return
    for blank, group in itertools.groupby(rest, key=lambda line: not line.strip()):
        if not blank:
            yield " ".join(group)


def is_wrapped(head: list[str]) -> bool:
    """Whether a text was wrapped at a width: no long line, and most lines end in the middle of a sentence."""
    full = [line.rstrip() for line in head if line.strip()]
    if len(full) < 2 or max(map(len, full)) > _LONGEST_WRAPPED_LINE:
        return False
    ends = sum(_ENDS_LIKE_A_SENTENCE.search(line) is not None for line in full)
    return ends < len(full) / 2 and any(not line.strip() for line in head)


def missing_column(where: object, column: str, there: Iterable[str]) -> InputError:
    return InputError(f"{where}: no column {column!r}, there is {', '.join(there) or 'none'}. Give --column.")


def _jsonl(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number} is not JSON ({error.msg}), wanted one object a line.") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is a JSON {type(row).__name__}, wanted an object with {column!r}.")
        if column not in row:
            raise missing_column(f"{path}: line {number}", column, row)
        yield _text(row[column], f"{path}: line {number}", column)


def _csv(path: Path, column: str) -> Iterator[str]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(line + "\n" for line in lines(path))
    try:
        if column not in (reader.fieldnames or ()):
            raise missing_column(path, column, reader.fieldnames or ())
        for row in reader:
            yield row[column] or ""
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} is not CSV ({error}).") from None


def _parquet(path: Path, column: str) -> Iterator[str]:
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise missing_column(path, column, file.schema_arrow.names)
            for batch in file.iter_batches(columns=[column], batch_size=4096):
                for value in batch.column(0).to_pylist():
                    yield _text(value, str(path), column)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}).") from error


def _text(value: object, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column!r} holds {type(value).__name__}, wanted text. Give --column.")
    return value
