"""What `nvib prepare` can be told."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from open_nvib.errors import InputError

Layout = Literal["running", "sentences"]

PARTITION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
RESERVED_NAMES = ("tokenizer",)


def paper_partitions() -> dict[str, Sequence[int]]:
    return {"short": [5, 20], "long": [21, 50]}


@dataclass(frozen=True)
class PrepareConfig:
    """How raw text becomes training data. The defaults turn enwik8 into the small-scale data of the docs.

    Args:
        source: The text: `enwik8`, `wikitext-103`, `wikitext-2`, a file or folder (.txt, .jsonl, .csv, .parquet,
            WikiText .tokens/.raw, MediaWiki .xml; .gz and .bz2 of the text formats), or the id of a dataset on the
            Hugging Face hub.
        output: The directory to write. Must be new, empty, or data that was prepared before.
        column: The column (or JSON key) that holds the text, in .jsonl, .csv, .parquet and hub datasets.
        dataset_config: The configuration of a hub dataset, where it has several.
        dataset_split: The split of a hub dataset to read. It is split again, by `seed`.
        dataset_revision: The branch, tag or commit of a hub dataset; without it, the newest.
        layout: `running` for running text, which is split into sentences, or `sentences` for one sentence a line
            (or a row), which is taken as it is.
        language: The language code that the sentence splitter is told.
        drop_residue: Drop what does not look like a sentence: no capital or digit at the start, no final punctuation,
            or markup left in it.
        tokenizer: `train` for a WordPiece trained on the training split, `bert-base-uncased` or any other tokenizer on
            the hub, or a local vocab.txt (read as uncased BERT's), tokenizer.json or folder of a saved tokenizer.
        vocab_size: Entries of a trained WordPiece, with the five special tokens.
        lowercase: Whether a trained WordPiece or a local vocab.txt lowers case and strips accents, as uncased BERT.
        partitions: Smallest and largest number of tokens of each partition, both included, without special tokens.
        per_partition: Sentences to sample into each partition, its three splits together; all if there are fewer.
        limit: Stop reading after about this many sentences; without it, read all.
        seed: Decides the split and the sample.
        workers: Processes that clean and split text; 0 for one per core. The result does not depend on it.
    """

    source: str = "enwik8"
    output: str = "data/enwik8"
    column: str = "text"
    dataset_config: str | None = None
    dataset_split: str = "train"
    dataset_revision: str | None = None
    layout: Layout = "running"
    language: str = "en"
    drop_residue: bool = True
    tokenizer: str = "train"
    vocab_size: int = 3000
    lowercase: bool = True
    partitions: dict[str, Sequence[int]] = field(default_factory=paper_partitions)
    per_partition: int = 500_000
    limit: int | None = None
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("source", "output", "column", "tokenizer"):
            if not getattr(self, name):
                raise InputError(f"prepare: {name} is empty, wanted a name or a path. Give --{name}.")
        if self.layout not in ("running", "sentences"):
            raise InputError(f"prepare: layout is {self.layout!r}, wanted 'running' or 'sentences'.")
        for name, least in (("vocab_size", 100), ("per_partition", 1), ("seed", 0), ("workers", 0)):
            _at_least(name, getattr(self, name), least)
        if self.limit is not None:
            _at_least("limit", self.limit, 1)
        if not self.partitions:
            raise InputError("prepare: there are no partitions, wanted at least one, such as {short: [5, 20]}.")
        for name, bounds in self.partitions.items():
            _check_partition(name, bounds)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"prepare: {name} is {value}, wanted at least {least}.")


def _check_partition(name: str, bounds: Sequence[int]) -> None:
    if not PARTITION_NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise InputError(
            f"prepare: a partition is called {name!r}, wanted letters, digits, - and _, and not "
            f"{' or '.join(RESERVED_NAMES)}: it names a folder. Choose another name."
        )
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise InputError(
            f"prepare: the bounds of partition {name!r} are {list(bounds)}, wanted [smallest, largest] number of "
            f"tokens with 1 <= smallest <= largest, such as [5, 20]."
        )
