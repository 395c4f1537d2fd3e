"""Prepared data on disk, and how to read it.

recipe.json     what it was made from and how, counts, and how long the sentences are
tokenizer/      for AutoTokenizer.from_pretrained
short/train/    an Arrow dataset for each partition and split
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from jaxtyping import Int
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from open_nvib.store.files import InputError, damaged, read_object
from open_nvib.text.data.partition import SPLITS

RECORD = "recipe.json"
TOKENIZER = "tokenizer"
FORMAT = "open_nvib prepared text, 1"
AGAIN = "Prepare the data again in another place, with `nvib prepare --output`."


@dataclass(frozen=True)
class Prepared:
    """Tokenised sentences, partitioned by length and split, with their tokenizer.

    Attributes:
        path: The directory.
        recipe: What the data was made from and how: equal recipes make equal data.
        partitions: Names of the partitions.
        counts: `sentences` found, `residue` and `duplicates` dropped, `kept` and so tokenised, `unusable` of these; for
            each partition how many sentences are within its bounds (`available`) and how many are in each split.
        lengths: Entry k is the number of tokenised sentences of k tokens, before any partition or sample.
    """

    path: Path
    recipe: dict[str, Any]
    partitions: list[str]
    counts: dict[str, Any]
    lengths: Int[np.ndarray, " longest"]

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with pad, unk, bos and eos tokens."""
        return AutoTokenizer.from_pretrained(self.path / TOKENIZER)

    def split(self, partition: str, split: str) -> datasets.Dataset:
        """Columns `input_ids`, without special tokens, and `text`. Memory-mapped: it costs no memory to open."""
        self._check(partition)
        if split not in SPLITS:
            raise InputError(f"{self.path}: no split {split!r}, there is {', '.join(SPLITS)}.")
        try:
            dataset = datasets.load_from_disk(str(self.path / partition / split))
        except Exception as error:  # a damaged file is an error of many kinds
            raise damaged(self.path / partition / split, error, fix=AGAIN) from error
        if not isinstance(dataset, datasets.Dataset) or "input_ids" not in dataset.column_names or not len(dataset):
            raise damaged(self.path / partition / split, "wanted sentences under `input_ids`", fix=AGAIN)
        return dataset

    def length_histogram(self, partition: str) -> Int[np.ndarray, " longest"]:
        """Entry k is the number of training sentences of k tokens, special tokens not counted."""
        self._check(partition)
        return np.asarray(self.counts["partitions"][partition]["train_lengths"], dtype=np.int64)

    def summary(self) -> str:
        """The counts, the share of all sentences in each partition, and the recipe in short."""
        counts, config = self.counts, self.recipe["config"]
        sentences, kept = counts["sentences"], counts["kept"]
        rows = [
            f"{self.path}: {self.recipe['source']['source']}, tokenizer {config['tokenizer']} "
            f"({len(self.tokenizer):,} entries), seed {config['seed']}",
            f"{sentences:,} sentences found; {counts['residue']:,} dropped as residue, "
            f"{counts['duplicates']:,} as duplicates; {kept:,} kept",
            f"{'partition':<12}{'tokens':>9}{'of all kept':>13}{'available':>12}"
            + "".join(f"{split:>12}" for split in SPLITS),
        ]
        for name, part in counts["partitions"].items():
            low, high = config["partitions"][name]
            share = f"{part['available'] / kept:.2%}"
            sizes = "".join(f"{part[split]:>12,}" for split in SPLITS)
            rows.append(f"{name:<12}{f'{low}-{high}':>9}{share:>13}{part['available']:>12,}{sizes}")
        rows.append(f"{'together':<21}{counts['in_bounds'] / kept:>13.2%}{counts['in_bounds']:>12,}")
        return "\n".join(rows)

    def _check(self, partition: str) -> None:
        if partition not in self.partitions:
            raise InputError(f"{self.path}: no partition {partition!r}, there is {', '.join(self.partitions)}.")


def is_prepared(path: Path) -> bool:
    """Whether the directory says of itself that it is prepared data."""
    try:
        return json.loads((path / RECORD).read_text(encoding="utf-8")).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False


def load_prepared(path: str | Path) -> Prepared:
    """Open data that `prepare` wrote."""
    path = Path(path).expanduser()
    if not is_prepared(path):
        found = "there is no such directory" if not path.exists() else f"this has no {RECORD} of prepared data"
        raise InputError(f"{path}: {found}, wanted a directory that `nvib prepare --output {path}` writes.")
    record = read_object(path / RECORD, fix=AGAIN)
    wrong = _wrong(record)
    if wrong:
        raise damaged(path / RECORD, f"missing or wrong: {', '.join(wrong)}", fix=AGAIN)
    counts = record["counts"]
    lengths = np.asarray(record["lengths"], dtype=np.int64)
    return Prepared(path, record["recipe"], list(counts["partitions"]), counts, lengths)


def _wrong(record: dict[str, Any]) -> list[str]:
    """What the record lacks of all that is read of it."""
    wrong = [name for name in ("recipe", "counts") if not isinstance(record.get(name), dict)]
    if not _are_counts(record.get("lengths")):
        wrong.append("lengths")
    if "counts" in wrong:
        return wrong
    partitions = record["counts"].get("partitions")
    if not isinstance(partitions, dict) or not partitions:
        return [*wrong, "counts.partitions"]
    for name, part in partitions.items():
        if not isinstance(part, dict) or not _are_counts(part.get("train_lengths")):
            wrong.append(f"counts.partitions.{name}")
    return wrong


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(count) is int and count >= 0 for count in value)
