"""Prepared data on disk: reading it, and writing all of it or nothing.

manifest.json   size and SHA-256 of every file
recipe.json     `PreparedRecord`: what the data was made from and how, counts, and the lengths of the sentences
tokenizer/      for AutoTokenizer.from_pretrained
short/train/    an Arrow dataset for each partition and split
lengths.svg     the length distributions, drawn by `nvib prepare`
scorers/        models that were trained on the data by `nvib evaluate`
"""

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from jaxtyping import Int
from transformers import PreTrainedTokenizerBase

from open_nvib.store import files
from open_nvib.store.files import MANIFEST, InputError
from open_nvib.store.task_settings import Recipe
from open_nvib.text.data.sentences import LONGEST_WORD, SPLITS
from open_nvib.text.opening import open_tokenizer, opening

if TYPE_CHECKING:
    import datasets

RECORD = "recipe.json"
TOKENIZER = "tokenizer"
PICTURE, SCORERS = "lengths.svg", "scorers"
PARTIAL, OLD = ".partial-", ".old-"
"""Between the name of the data and those of machine and process: data that is being made, and data it replaces."""
FORMAT = "open_nvib prepared text, 1"
_FIX = "Prepare the data again in another place, with `nvib prepare --output`."


LARGEST_UNKNOWN_SHARE = 0.002
"""Share of [UNK] among all tokens above which the summary warns: one in a hundred sentences of five tokens."""

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class PartitionCounts:
    """Numbers of sentences of one partition."""

    available: Count  # within the bounds of the partition, before sampling
    train: Count
    validation: Count
    test: Count
    train_lengths: tuple[Count, ...]  # entry k is the number of training sentences of k tokens


@dataclass(frozen=True)
class Counts:
    """Numbers of sentences that were found, dropped and kept, and of the tokens of the kept ones."""

    sentences: Count  # found in the source
    residue: Count  # dropped
    duplicates: Count  # dropped
    kept: Count  # not dropped, and so tokenised
    unusable: Count  # of the kept ones, those that spell out a special token
    in_bounds: Count  # of the kept ones, those within the bounds of some partition
    partitions: Annotated[dict[str, PartitionCounts], msgspec.Meta(min_length=1)]
    long_words: Count = 0  # dropped
    tokens: Count = 0  # 0 in data of earlier versions, as is the next
    unknown: Count = 0  # tokens that are [UNK]


@dataclass(frozen=True, kw_only=True)
class PreparedRecord:
    """The content of recipe.json. Entry k of `lengths` is the number of tokenised sentences of k tokens."""

    format: str = FORMAT
    recipe: Recipe
    made_with: dict[str, str]
    counts: Counts
    lengths: tuple[Count, ...]


@dataclass(frozen=True)
class Prepared:
    """Tokenised sentences, partitioned by length and split, with their tokenizer.

    Attributes:
        path: The directory.
        recipe: What the data was made from and how: equal recipes make equal data.
        counts: What became of all sentences.
        lengths: Entry k is the number of tokenised sentences of k tokens, before any partition or sample.
    """

    path: Path
    recipe: Recipe
    counts: Counts
    lengths: Int[np.ndarray, " longest"]

    @property
    def partitions(self) -> list[str]:
        """Names of the partitions."""
        return list(self.counts.partitions)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with pad, unk, bos and eos tokens."""
        files.check_manifest(self.path, fix=_FIX, prefix=f"{TOKENIZER}/")
        return open_tokenizer(self.path / TOKENIZER, fix=_FIX)

    def split(self, partition: str, split: str) -> "datasets.Dataset":
        """Open one split, memory-mapped: columns `input_ids`, without special tokens, and `text`."""
        import datasets

        self._check("partition", partition, self.partitions)
        self._check("split", split, SPLITS)
        folder = self.path / partition / split
        files.check_manifest(self.path, fix=_FIX, prefix=f"{partition}/{split}/")
        with opening(folder, fix=_FIX):
            dataset = datasets.load_from_disk(str(folder))
        if not isinstance(dataset, datasets.Dataset) or "input_ids" not in dataset.column_names or not len(dataset):
            raise files.damaged(folder, "expected sentences under `input_ids`", fix=_FIX)
        return dataset

    def length_histogram(self, partition: str) -> Int[np.ndarray, " longest"]:
        """Count training sentences by length: entry k is the number of those of k tokens, without special tokens."""
        self._check("partition", partition, self.partitions)
        return np.asarray(self.counts.partitions[partition].train_lengths, dtype=np.int64)

    def summary(self) -> str:
        """Describe the data in a few lines: counts, the share of all sentences in each partition, recipe in short."""
        counts, settings = self.counts, self.recipe.settings
        reasons = [*dropped(counts.residue, counts.long_words), f"{counts.duplicates:,} dropped as duplicates"]
        rows = [
            f"{self.path}: {self.recipe.source['source']}, tokenizer {settings['tokenizer']} "
            f"({len(self.tokenizer):,} entries), seed {settings['seed']}",
            f"{counts.sentences:,} sentences found; {', '.join(reasons)}; {counts.kept:,} kept",
            f"{'partition':<12}{'tokens':>9}{'of all kept':>13}{'available':>12}"
            + "".join(f"{split:>12}" for split in SPLITS),
        ]
        for name, (low, high) in settings["partitions"].items():
            if (part := counts.partitions.get(name)) is None:
                rows.append(f"{name:<12}{f'{low}-{high}':>9}  left out: no sentences for each of {', '.join(SPLITS)}")
                continue
            share = f"{part.available / counts.kept:.2%}"
            sizes = "".join(f"{getattr(part, split):>12,}" for split in SPLITS)
            rows.append(f"{name:<12}{f'{low}-{high}':>9}{share:>13}{part.available:>12,}{sizes}")
        rows.append(f"{'together':<21}{counts.in_bounds / counts.kept:>13.2%}{counts.in_bounds:>12,}")
        if counts.tokens:  # data of earlier versions has 0
            share, unknown = counts.unknown / counts.tokens, self.tokenizer.unk_token
            many = share > LARGEST_UNKNOWN_SHARE
            rows.append(f"{'warning: ' if many else ''}{share:.2%} of all tokens are {unknown}")
            if many:
                rows[-1] += (
                    ": the tokenizer does not know their characters, and the model cannot write them. Give a larger "
                    "--vocab_size, or --tokenizer_kind bytes, which knows all of them."
                )
        return "\n".join(rows)

    def _check(self, what: str, name: str, available: Sequence[str]) -> None:
        if name not in available:
            raise InputError(f"{self.path}: no {what} {name!r}; available: {', '.join(available)}.")


def dropped(residue: int, long_words: int) -> list[str]:
    """Say how many sentences were dropped, why, and how to keep them."""
    why = "no capital or digit first, no final punctuation, or markup; --drop_residue false keeps them"
    long = f"{long_words:,} dropped for a word of more than {LONGEST_WORD:,} characters"
    return ([f"{residue:,} dropped as residue ({why})"] if residue else []) + ([long] if long_words else [])


def is_prepared(path: Path) -> bool:
    """Tell whether the directory has a record of prepared data."""
    try:
        return json.loads(files.read_stored(path / RECORD).decode()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def abandoned(path: Path, mark: str, host: str = ".*") -> Iterator[Path]:
    """Find what killed processes of a host, a regular expression, left beside the data."""
    pattern = re.compile(rf"\.{re.escape(path.name)}{re.escape(mark)}{host}-(\d+)")
    for beside in path.parent.glob(f".*{mark}*"):
        if (name := pattern.fullmatch(beside.name)) and not files.is_running(int(name[1])):
            yield beside


def restore_replaced(path: Path) -> None:
    """Put back data that a process had moved away when it was killed, just before new data took its place."""
    if not os.path.lexists(path) and (old := next(abandoned(path, OLD), None)):
        old.rename(path)


def load_prepared(path: str | Path) -> Prepared:
    """Open data that `prepare` wrote."""
    path = Path(path).expanduser()
    restore_replaced(path)
    if not is_prepared(path):
        found = "no such directory" if not path.exists() else f"this has no {RECORD} of prepared data"
        raise InputError(f"{path}: {found}, expected a directory that `nvib prepare --output {path}` writes.")
    files.check_manifest(path, fix=_FIX, prefix=RECORD)
    record = files.read_record(path / RECORD, PreparedRecord, fix=_FIX)
    return Prepared(path, record.recipe, record.counts, np.asarray(record.lengths, dtype=np.int64))


# The output directory: never half-written, and never written over something else.


def check_output(output: Path) -> None:
    """Check that the output is new, an empty directory, or prepared data."""
    if output.is_dir() and (is_prepared(output) or not any(output.iterdir())):
        return
    if output.exists() or output.is_symlink():
        raise InputError(
            f"{output}: exists and is not prepared data, so it is left alone. "
            f"Give another --output, or remove it first."
        )


def check_only_ours(data: Path) -> None:
    """Check that prepared data, which is to be replaced, has no file in it that open_nvib did not write."""
    try:
        ours = {MANIFEST, PICTURE, *files.read_manifest(data)}
    except (OSError, ValueError) as error:
        raise files.damaged(data / MANIFEST, error, fix=f"Remove {data} first, or give another --output.") from error
    for path in sorted(data.rglob("*")):
        name = path.relative_to(data).as_posix()
        if name not in ours and not name.startswith(f"{SCORERS}/") and (path.is_symlink() or not path.is_dir()):
            raise InputError(
                f"{path}: is not a file of prepared data, and {data} is to be replaced. Move it away first, or give "
                f"another --output."
            )


@contextmanager
def writing(output: Path) -> Iterator[Path]:
    """Make a directory beside `output` to write to. It replaces `output` if all goes well, else it is removed."""
    if why := files.obstacle_to_writing(output.parent):
        raise InputError(f"{output}: cannot be written ({why}). Give another --output.")
    host = socket.gethostname()
    for path in [*abandoned(output, PARTIAL, re.escape(host)), *abandoned(output, OLD, re.escape(host))]:
        shutil.rmtree(path, ignore_errors=True)
    fresh, old = (output.parent / f".{output.name}{mark}{host}-{os.getpid()}" for mark in (PARTIAL, OLD))
    with files.writing_to(output, remove=False):
        fresh.mkdir()
        try:
            yield fresh
            check_output(output)  # again: minutes have passed
            if is_prepared(output):
                check_only_ours(output)
            if output.exists():
                output.rename(old)  # `restore_replaced` puts it back if this process is killed now
            fresh.rename(output)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
