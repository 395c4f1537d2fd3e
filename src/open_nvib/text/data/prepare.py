"""`prepare`: source → sentences → split → tokenizer → lengths → partitions → a directory, all or nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from open_nvib.store.files import InputError
from open_nvib.store.settings import PrepareConfig
from open_nvib.text.data import tokenizer as tokenizers
from open_nvib.text.data.collect import Corpus, collect
from open_nvib.text.data.encoded import Encoded, encode_all, save_rows
from open_nvib.text.data.output import check_is_ours, reuse, write_record, writing
from open_nvib.text.data.partition import SPLITS, sample, within
from open_nvib.text.data.prepared import FORMAT, TOKENIZER, Prepared, load_prepared
from open_nvib.text.data.sources import Source, file_digest, open_source
from open_nvib.text.data.wikitext import UNKNOWN

# What changes neither the data nor what it is made from, or is told by the identity of the source.
_NOT_IN_RECIPE = ("source", "output", "workers", "column", "dataset_config", "dataset_split", "dataset_revision")
_MADE_WITH = ("open-nvib", "datasets", "mwparserfromhell", "sentencex", "tokenizers", "transformers")


def prepare(config: PrepareConfig, *, overwrite: bool = False) -> Prepared:
    """Make the data that `config` describes, or open it if it is there already.

    Raises:
        InputError: the source or the tokenizer cannot be used, no sentence is within bounds, or the output holds
            something else. Data of another recipe is replaced only with `overwrite`, anything else never.
    """
    output = Path(config.output).expanduser()
    check_is_ours(output)
    source = open_source(config)
    recipe = make_recipe(config, source)
    existing = reuse(output, recipe, overwrite=overwrite)
    if existing is not None:
        return existing
    given = None if config.tokenizer == tokenizers.TRAINED else _load_tokenizer(config)  # fails before the long work
    with writing(output) as directory:
        corpus = collect(config, source)
        tokenizer = given or _train_tokenizer(config, corpus)
        texts = _with_unknown(corpus.sentences, tokenizers.unknown_as(tokenizer))
        encoded = encode_all(tokenizer, texts)
        counts = _write_partitions(config, corpus, encoded, texts, directory)
        tokenizer.save_pretrained(str(directory / TOKENIZER))
        made_with = {name: version(name) for name in _MADE_WITH}
        record = {"format": FORMAT, "recipe": recipe, "made_with": made_with, "counts": counts}
        write_record(directory, {**record, "lengths": encoded.histogram()})
    return load_prepared(output)


def make_recipe(config: PrepareConfig, source: Source) -> dict[str, Any]:
    """All that decides the data, in JSON's own types. It names no path: the data may move to another machine."""
    settings = {name: value for name, value in asdict(config).items() if name not in _NOT_IN_RECIPE}
    settings["partitions"] = {name: list(bounds) for name, bounds in config.partitions.items()}
    tokenizer = Path(config.tokenizer).expanduser()
    if tokenizer.exists():
        settings["tokenizer"] = tokenizer.name
        inside = [tokenizer] if tokenizer.is_file() else sorted(tokenizer.glob("*.json"))
        settings["tokenizer_files"] = {file.name: file_digest(file) for file in inside}
    if config.tokenizer != tokenizers.TRAINED:
        del settings["vocab_size"]
    return {"source": source.identity, "config": settings}


def _load_tokenizer(config: PrepareConfig) -> PreTrainedTokenizerBase:
    return tokenizers.load(config.tokenizer, lowercase=config.lowercase)


def _train_tokenizer(config: PrepareConfig, corpus: Corpus) -> PreTrainedTokenizerBase:
    training = [corpus.sentences[index] for index in np.flatnonzero(corpus.splits == SPLITS.index("train"))]
    return tokenizers.train(training, vocab_size=config.vocab_size, lowercase=config.lowercase)


def _with_unknown(sentences: Sequence[str], token: str) -> list[str]:
    return [text.replace(UNKNOWN, token) if UNKNOWN in text else text for text in sentences]


def _write_partitions(
    config: PrepareConfig, corpus: Corpus, encoded: Encoded, texts: Sequence[str], directory: Path
) -> dict[str, Any]:
    """Write every partition and split. Returns the counts."""
    inside = {name: within(encoded.lengths, bounds) & encoded.usable for name, bounds in config.partitions.items()}
    partitions: dict[str, dict[str, Any]] = {}
    for name, candidates in inside.items():
        available = int(candidates.sum())
        chosen = sample(candidates, corpus.splits, size=config.per_partition, seed=config.seed)
        _check_not_empty(name, config, encoded, [len(rows) for rows in chosen])
        for split, rows in zip(SPLITS, chosen, strict=True):
            save_rows(encoded, texts, rows, directory / name / split)
        sizes = {split: len(rows) for split, rows in zip(SPLITS, chosen, strict=True)}
        partitions[name] = {"available": available, **sizes, "train_lengths": encoded.histogram(chosen[0])}
    kept = len(corpus.sentences)
    return {
        "sentences": kept + corpus.duplicates + corpus.residue,
        "residue": corpus.residue,
        "duplicates": corpus.duplicates,
        "kept": kept,
        "unusable": int((~encoded.usable).sum()),
        "in_bounds": int(np.logical_or.reduce(list(inside.values())).sum()),
        "partitions": partitions,
    }


def _check_not_empty(name: str, config: PrepareConfig, encoded: Encoded, sizes: list[int]) -> None:
    low, high = config.partitions[name]
    lengths = encoded.lengths
    if not all(sizes):
        raise InputError(
            f"{config.source}: partition {name!r} ({low}-{high} tokens) has {sizes[0]} training, {sizes[1]} validation "
            f"and {sizes[2]} test sentences, wanted some in each. The {len(lengths):,} sentences have {lengths.min()} "
            f"to {lengths.max()} tokens: give more text, or other --partitions."
        )
