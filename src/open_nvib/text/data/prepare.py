"""`prepare`: source → sentences → split → tokenizer → lengths → partitions → a directory, all or nothing."""

import itertools
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from jaxtyping import Int
from tqdm.auto import tqdm

from open_nvib.store import files
from open_nvib.store.files import InputError
from open_nvib.store.task_settings import TRAINED_TOKENIZER, PrepareConfig, Recipe, recipe_settings
from open_nvib.text.data import prepared
from open_nvib.text.data.markup import UNKNOWN
from open_nvib.text.data.prepared import Counts, PartitionCounts, Prepared, PreparedRecord, is_prepared, load_prepared
from open_nvib.text.data.sentences import SPLITS, Found, assign_splits, batches, find, sample
from open_nvib.text.data.sources import Source, digest, open_source
from open_nvib.text.data.tokenizer import (
    SMALLEST_OF_BYTES,
    Encoded,
    encode,
    load_tokenizer,
    tokenizer_files,
    train_tokenizer,
    unknown_as,
)

_MADE_WITH = ("open-nvib", "datasets", "mwparserfromhell", "sentencex", "tokenizers", "transformers")
_BATCH_CHARACTERS = 250_000  # a quarter of a second of work on markup: the bar moves, and the cores stay busy
_BATCHES_PER_WORKER = 4  # that wait for each worker; bounds the memory, whatever the size of the source


def prepare(config: PrepareConfig, *, overwrite: bool = False) -> Prepared:
    """Make the data that `config` describes, or open it if it is there already, even if its source is gone.

    Raises:
        InputError: the source or the tokenizer cannot be used, no sentence is within bounds, or the output holds
            something else. Data of another recipe is replaced only with `overwrite`, anything else never.
    """
    output = Path(config.output).expanduser()
    prepared.restore_replaced(output)
    prepared.check_output(output)
    existing = load_prepared(output) if is_prepared(output) else None
    try:
        source = open_source(config)
    except InputError:
        if existing is None or overwrite:
            raise
        source = Source({**existing.recipe.source, "source": Path(config.source).name}, [])  # compare the name alone
    recipe = make_recipe(config, source)
    if existing is not None:
        different = existing.recipe.differences(recipe)
        if not different:
            return existing
        if not overwrite:
            raise InputError(
                f"{output}: holds data of another recipe ({'; '.join(different)}). Give another output, or replace it "
                f"with `nvib prepare --overwrite`."
            )
        prepared.check_only_ours(output)
    # Load a given tokenizer first, so that a wrong one is found before the long work.
    settings = dict(recipe.config)
    if config.tokenizer == TRAINED_TOKENIZER:
        tokenizer, settings["tokenizer_kind"] = None, settings["tokenizer_kind"] or "bytes"
        if settings["tokenizer_kind"] == "bytes" and config.vocab_size < SMALLEST_OF_BYTES:
            raise InputError(
                f"prepare: vocab_size is {config.vocab_size}, expected at least {SMALLEST_OF_BYTES} with bytes: they "
                f"and the special tokens are entries, too. Give a larger --vocab_size, or --tokenizer_kind wordpiece."
            )
    else:
        tokenizer = load_tokenizer(config.tokenizer, lowercase=config.lowercase)
    with prepared.writing(output) as directory:
        found = collect(config, source)
        splits = assign_splits(len(found.sentences), seed=config.seed)
        if tokenizer is None:
            training = [found.sentences[row] for row in np.flatnonzero(splits == SPLITS.index("train"))]
            tokenizer = train_tokenizer(
                training, vocab_size=config.vocab_size, lowercase=config.lowercase, kind=settings["tokenizer_kind"]
            )
        unknown = unknown_as(tokenizer)
        texts = [text.replace(UNKNOWN, unknown) for text in found.sentences]
        encoded = encode(tokenizer, texts)
        counts = _write_partitions(config, found, splits, encoded, texts, directory)
        tokenizer.save_pretrained(str(directory / prepared.TOKENIZER))
        judged = {part.drops_residue(config.drop_residue) for part in source.parts}
        settings["drop_residue"] = judged.pop() if len(judged) == 1 else config.drop_residue
        record = PreparedRecord(
            recipe=Recipe(recipe.source, settings),
            made_with={name: version(name) for name in _MADE_WITH},
            counts=counts,
            lengths=tuple(np.bincount(encoded.lengths).tolist()),
        )
        files.write_json(directory / prepared.RECORD, record, indent=1)
        files.write_manifest(directory, [file for file in directory.rglob("*") if file.is_file()])
    return load_prepared(output)


def make_recipe(config: PrepareConfig, source: Source) -> Recipe:
    """Collect all that decides the data. The recipe names no path: the data may move to another machine."""
    settings = recipe_settings(config)
    tokenizer = Path(config.tokenizer).expanduser()
    if tokenizer.exists():
        settings["tokenizer"] = tokenizer.name
        settings["tokenizer_files"] = {file.name: digest(file) for file in tokenizer_files(tokenizer)}
    return Recipe(source.identity, settings)


# From the documents of a source to its distinct sentences, on all cores.


def collect(config: PrepareConfig, source: Source) -> Found:
    """Clean the documents, split them into sentences, and drop residue and duplicates."""
    distinct: dict[str, None] = {}
    total = residue = long_words = 0
    for found in _find_all(config, source):
        sentences = found.sentences[: None if config.limit is None else config.limit - total]
        distinct.update(dict.fromkeys(sentences))
        total += len(sentences)
        residue += found.residue
        long_words += found.long_words
        if total == config.limit:
            break
    if not distinct:
        why = " and ".join(prepared.dropped(residue, long_words)) or "it is blank"
        raise InputError(f"{config.source}: no sentence found, {why}.")
    return Found(list(distinct), residue, long_words, duplicates=total - len(distinct))


def _find_all(config: PrepareConfig, source: Source) -> Iterator[Found]:
    language = None if config.layout == "sentences" else config.language
    # A container can have fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Lines that need no splitting take less time than their transport to another process.
    workers = 1 if language is None else config.workers or cores
    with tqdm(desc="sentences", unit="", unit_scale=True, disable=None) as bar:
        for part in source.parts:
            drop = part.drops_residue(config.drop_residue)
            work = partial(find, clean=part.clean, language=language, drop_residue=drop)
            for found in map_in_order(work, batches(part.documents(), _BATCH_CHARACTERS), workers=workers):
                bar.update(len(found.sentences))
                yield found


def map_in_order(work: Callable[[list[str]], Found], items: Iterable[list[str]], *, workers: int) -> Iterator[Found]:
    """Map over several processes, results in the order of the items; in this process if there is only one item."""
    stream = iter(items)
    head = list(itertools.islice(stream, 2))
    if workers == 1 or len(head) < 2:
        yield from map(work, itertools.chain(head, stream))
        return
    # The workers use neither torch nor tokenizers, so a fork is safe on Linux, and spares scripts the __main__ guard.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        pending = deque()
        for item in itertools.chain(head, stream):
            pending.append(pool.apply_async(work, (item,)))
            if len(pending) >= workers * _BATCHES_PER_WORKER:
                yield pending.popleft().get()
        while pending:
            yield pending.popleft().get()


# Partitions and splits as Arrow datasets.


def _write_partitions(
    config: PrepareConfig,
    found: Found,
    splits: Int[np.ndarray, " total"],
    encoded: Encoded,
    texts: Sequence[str],
    directory: Path,
) -> Counts:
    """Write every partition that has sentences in each of its splits. Returns the counts."""
    lengths = encoded.lengths
    in_bounds = np.zeros(len(lengths), dtype=bool)
    partitions: dict[str, PartitionCounts] = {}
    for name, (low, high) in config.partitions.items():
        candidates = (low <= lengths) & (lengths <= high) & encoded.usable
        in_bounds |= candidates
        rows = sample(candidates, splits, size=config.per_partition, seed=config.seed)
        if not all(map(len, rows)):
            continue
        for split, chosen in zip(SPLITS, rows, strict=True):
            save_rows(encoded, texts, chosen, directory / name / split)
        train_lengths = tuple(np.bincount(lengths[rows[0]]).tolist())
        partitions[name] = PartitionCounts(int(candidates.sum()), *map(len, rows), train_lengths=train_lengths)
    if not partitions:
        bounds = ", ".join(f"{name} ({low}-{high} tokens)" for name, (low, high) in config.partitions.items())
        why = "".join(f" {reason}." for reason in prepared.dropped(found.residue, found.long_words))
        raise InputError(
            f"{config.source}: no partition of {bounds} has training, validation and test sentences. The "
            f"{len(lengths):,} sentences have {lengths.min()} to {lengths.max()} tokens: give more text, or other "
            f"--partitions.{why}"
        )
    return Counts(
        sentences=len(texts) + found.duplicates + found.residue + found.long_words,
        residue=found.residue,
        long_words=found.long_words,
        duplicates=found.duplicates,
        kept=len(texts),
        unusable=int((~encoded.usable).sum()),
        in_bounds=int(in_bounds.sum()),
        partitions=partitions,
        tokens=len(encoded.ids),
        unknown=encoded.unknown,
    )


def save_rows(encoded: Encoded, texts: Sequence[str], rows: Int[np.ndarray, " some"], directory: Path) -> None:
    """Write these sentences, in this order, as an Arrow dataset of `input_ids` and `text`."""
    import datasets
    import pyarrow as pa

    # Offsets of 64 bits: a split of a large corpus has more than 2³¹ tokens.
    offsets = pa.array(np.concatenate([[0], np.cumsum(encoded.lengths)]), pa.int64())
    ids = pa.LargeListArray.from_arrays(offsets, pa.array(encoded.ids, pa.int32())).take(pa.array(rows))
    text = pa.array([texts[row] for row in rows], pa.large_string())
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # a bar for a tenth of a second tells nothing
    try:
        datasets.Dataset(pa.table({"input_ids": ids, "text": text})).save_to_disk(str(directory))
    finally:
        if shown:
            datasets.enable_progress_bars()
