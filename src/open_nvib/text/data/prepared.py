"""Read prepared data.

manifest.json   size and SHA-256 of every file
recipe.json     `PreparedRecord`: what the data was made from and how, counts, and the lengths of the sentences
tokenizer/      for AutoTokenizer.from_pretrained
short/train/    an Arrow dataset for each partition and split
"""

import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import datasets
import msgspec
import numpy as np
from jaxtyping import Int
from transformers import PreTrainedTokenizerBase

from open_nvib.store.files import InputError, check_manifest, damaged, is_running, read_record, read_stored
from open_nvib.store.settings import Recipe
from open_nvib.text.data.sentences import SPLITS
from open_nvib.text.data.tokenizer import open_tokenizer
from open_nvib.text.drawing import PALETTE, save_figure

RECORD = "recipe.json"
TOKENIZER = "tokenizer"
PARTIAL, OLD = ".partial-", ".old-"
"""Between the name of the data and those of machine and process: data that is being made, and data it replaces."""
FORMAT = "open_nvib prepared text, 1"
_FIX = "Prepare the data again in another place, with `nvib prepare --output`."

_HATCHES = ("", "//", "..", "xx", "\\\\", "++")
_SHARE_ON_AXIS = 0.995  # of all sentences; the rest is a long thin tail

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class PartitionCounts:
    """Numbers of sentences of one partition.

    Attributes:
        available: within the bounds of the partition, before sampling.
        train, validation, test: in each split.
        train_lengths: entry k is the number of training sentences of k tokens.
    """

    available: Count
    train: Count
    validation: Count
    test: Count
    train_lengths: tuple[Count, ...]


@dataclass(frozen=True)
class Counts:
    """Numbers of sentences.

    Attributes:
        sentences: found in the source.
        residue, duplicates: dropped.
        kept: neither dropped as the one nor as the other, and so tokenised.
        unusable: of the kept ones, those that spell out a special token.
        in_bounds: of the kept ones, those within the bounds of some partition.
        partitions: by name.
    """

    sentences: Count
    residue: Count
    duplicates: Count
    kept: Count
    unusable: Count
    in_bounds: Count
    partitions: Annotated[dict[str, PartitionCounts], msgspec.Meta(min_length=1)]


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
        check_manifest(self.path, fix=_FIX, prefix=f"{TOKENIZER}/")
        return open_tokenizer(self.path / TOKENIZER, fix=_FIX)

    def split(self, partition: str, split: str) -> datasets.Dataset:
        """Open one split, memory-mapped: columns `input_ids`, without special tokens, and `text`."""
        self._check("partition", partition, self.partitions)
        self._check("split", split, SPLITS)
        folder = self.path / partition / split
        check_manifest(self.path, fix=_FIX, prefix=f"{partition}/{split}/")
        try:
            dataset = datasets.load_from_disk(str(folder))
        except Exception as error:  # a damaged file is an error of many kinds
            raise damaged(folder, error, fix=_FIX) from error
        if not isinstance(dataset, datasets.Dataset) or "input_ids" not in dataset.column_names or not len(dataset):
            raise damaged(folder, "expected sentences under `input_ids`", fix=_FIX)
        return dataset

    def length_histogram(self, partition: str) -> Int[np.ndarray, " longest"]:
        """Count training sentences by length: entry k is the number of those of k tokens, without special tokens."""
        self._check("partition", partition, self.partitions)
        return np.asarray(self.counts.partitions[partition].train_lengths, dtype=np.int64)

    def summary(self) -> str:
        """Describe the data in a few lines: counts, the share of all sentences in each partition, recipe in short."""
        counts, settings = self.counts, self.recipe.settings
        rows = [
            f"{self.path}: {self.recipe.source['source']}, tokenizer {settings['tokenizer']} "
            f"({len(self.tokenizer):,} entries), seed {settings['seed']}",
            f"{counts.sentences:,} sentences found; {residue_dropped(counts.residue)}, "
            f"{counts.duplicates:,} as duplicates; {counts.kept:,} kept",
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
        return "\n".join(rows)

    def _check(self, what: str, name: str, available: Sequence[str]) -> None:
        if name not in available:
            raise InputError(f"{self.path}: no {what} {name!r}; available: {', '.join(available)}.")


def residue_dropped(count: int) -> str:
    """Say how many sentences were dropped as residue, why, and how to keep them."""
    why = " (no capital or digit first, no final punctuation, or markup; --drop_residue false keeps them)"
    return f"{count:,} dropped as residue{why if count else ''}"


def is_prepared(path: Path) -> bool:
    """Tell whether the directory has a record of prepared data."""
    try:
        return json.loads(read_stored(path / RECORD).decode()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def restore_replaced(path: Path) -> None:
    """Put back data that a process had moved away when it was killed, just before new data took its place."""
    if not path.name or os.path.lexists(path):
        return
    for old in path.parent.glob(f".{glob.escape(path.name)}{OLD}*"):
        pid = old.name.rpartition("-")[2]
        if pid.isdecimal() and not is_running(int(pid)):
            old.rename(path)
            return


def load_prepared(path: str | Path) -> Prepared:
    """Open data that `prepare` wrote."""
    path = Path(path).expanduser()
    restore_replaced(path)
    if not is_prepared(path):
        found = "no such directory" if not path.exists() else f"this has no {RECORD} of prepared data"
        raise InputError(f"{path}: {found}, expected a directory that `nvib prepare --output {path}` writes.")
    check_manifest(path, fix=_FIX, prefix=RECORD)
    record = read_record(path / RECORD, PreparedRecord, fix=_FIX)
    return Prepared(path, record.recipe, record.counts, np.asarray(record.lengths, dtype=np.int64))


def draw_lengths(prepared: Prepared, path: str | Path) -> Path:
    """Draw the distribution of sentence lengths, with the partitions in colour, to a file. Needs matplotlib.

    The ending of `path` decides the format.
    """
    from matplotlib.figure import Figure

    lengths, bounds = prepared.lengths, prepared.recipe.settings["partitions"]
    partitions = {name: bounds[name] for name in prepared.partitions}
    total = int(lengths.sum())
    widest = max(high for _, high in partitions.values())
    last = max(int(np.searchsorted(lengths.cumsum(), _SHARE_ON_AXIS * total)), widest) + 1
    tokens = np.arange(1, min(last, len(lengths) - 1) + 1)
    shares = 100 * lengths[tokens] / total
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(tokens, shares, width=1, color="0.82", label="not used")
    for index, (name, (low, high)) in enumerate(partitions.items()):
        inside = (tokens >= low) & (tokens <= high)
        label = f"{name}, {low}–{high} tokens: {prepared.counts.partitions[name].available / total:.1%}"
        colour, hatch = PALETTE[index % len(PALETTE)], _HATCHES[index % len(_HATCHES)]
        bars = axes.bar(tokens[inside], shares[inside], width=1, color=colour, label=label)
        for bar in bars:
            bar.set(hatch=hatch, edgecolor="white", linewidth=0)
    axes.set(xlabel="tokens in a sentence", ylabel="share of all sentences (%)", xlim=(0, last))
    name, together = prepared.recipe.source["source"], prepared.counts.in_bounds / total
    axes.set_title(f"{name}: {total:,} sentences, {together:.2%} in use", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)
