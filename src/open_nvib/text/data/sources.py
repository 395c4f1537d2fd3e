"""From the name of a source to its documents, how to clean them, and what identifies them in the recipe."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from open_nvib.store.files import InputError
from open_nvib.store.settings import PrepareConfig
from open_nvib.text.data import enwik8, files, hub, markup, wikitext

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Part:
    """Documents of one kind. `clean` runs in worker processes, so it is a function of a module."""

    documents: Callable[[], Iterator[str]]
    clean: Callable[[str], str]


@dataclass(frozen=True)
class Source:
    """Where text comes from. `identity` goes into the recipe: equal identities are equal text."""

    identity: dict[str, object]
    parts: list[Part]


def open_source(config: PrepareConfig) -> Source:
    """Find the source that `config` names. Nothing is read yet but what identifies it."""
    if config.source == "enwik8":
        return Source({"source": "enwik8", "md5": enwik8.MD5}, [Part(_enwik8_articles, markup.clean)])
    if config.source in hub.WIKITEXT_CONFIGS:
        return _from_hub(config, hub.WIKITEXT, hub.WIKITEXT_CONFIGS[config.source], "text", wikitext.clean)
    path = Path(config.source).expanduser()
    if path.exists() or files.kind_by_name(path) is not None or not _HUB_ID.fullmatch(config.source):
        return _from_files(path, config)
    return _from_hub(config, config.source, config.dataset_config, config.column, as_it_is)


def as_it_is(text: str) -> str:
    return text


def _enwik8_articles() -> Iterator[str]:
    return markup.articles(files.chunks(enwik8.obtain()), "enwik8")


def _from_hub(
    config: PrepareConfig, dataset: str, name: str | None, column: str, clean: Callable[[str], str]
) -> Source:
    split, revision = config.dataset_split, config.dataset_revision
    read = partial(hub.texts, dataset, config=name, split=split, revision=revision, column=column)
    identity = {"source": config.source, "dataset": dataset, "config": name, "split": split, "revision": revision}
    return Source({**identity, "column": column}, [Part(read, clean)])


def _from_files(path: Path, config: PrepareConfig) -> Source:
    found = files.find(path)
    parent = path if path.is_dir() else path.parent
    digests = {file.relative_to(parent).as_posix(): file_digest(file) for file in found}
    identity: dict[str, object] = {"source": path.name, "files": digests}
    if any(files.kind(file) in ("jsonl", "csv", "parquet") for file in found):
        identity["column"] = config.column
    return Source(identity, [_file_part(file, config) for file in found])


def _file_part(file: Path, config: PrepareConfig) -> Part:
    kind = files.kind(file)
    if kind == "mediawiki":
        if config.layout == "sentences":
            raise InputError(f"{file}: a MediaWiki dump is running text. Leave --layout out, or give --layout running.")
        return Part(lambda: markup.articles(files.chunks(file), str(file)), markup.clean)
    read = partial(files.texts, file, column=config.column, sentences=config.layout == "sentences")
    return Part(read, wikitext.clean if kind == "wikitext" else as_it_is)


def file_digest(file: Path) -> str:
    """Of the bytes as they are on disk. A file that is unpacked is another file, though it is the same text."""
    try:
        digest = hashlib.blake2b(digest_size=16)
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}).") from error
