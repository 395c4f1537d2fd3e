"""`prepare`: source → sentences → split → tokenizer → lengths → partitions → a directory, all or nothing."""

import glob
import itertools
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from jaxtyping import Int
from tqdm.auto import tqdm

from open_nvib.store.files import InputError, disk_trouble, is_running, write_json, write_manifest
from open_nvib.store.settings import TRAINED_TOKENIZER, PrepareConfig, Recipe, recipe_settings
from open_nvib.text.data.markup import UNKNOWN
from open_nvib.text.data.prepared import (
    OLD,
    PARTIAL,
    RECORD,
    TOKENIZER,
    Counts,
    PartitionCounts,
    Prepared,
    PreparedRecord,
    is_prepared,
    load_prepared,
    residue_dropped,
    restore_replaced,
)
from open_nvib.text.data.sentences import SPLITS, Found, assign_splits, batches, find, sample, within
from open_nvib.text.data.sources import Part, Source, digest, open_source
from open_nvib.text.data.tokenizer import Encoded, encode, load_tokenizer, train_tokenizer, unknown_as

_MADE_WITH = ("open-nvib", "datasets", "mwparserfromhell", "sentencex", "tokenizers", "transformers")
_BATCH_CHARACTERS = 250_000  # a quarter of a second of work on markup: the bar moves, and the cores stay busy
_BATCHES_PER_WORKER = 4  # that wait for each worker; bounds the memory, whatever the size of the source


def prepare(config: PrepareConfig, *, overwrite: bool = False) -> Prepared:
    """Make the data that `config` describes, or open it if it is there already.

    Raises:
        InputError: the source or the tokenizer cannot be used, no sentence is within bounds, or the output holds
            something else. Data of another recipe is replaced only with `overwrite`, anything else never.
    """
    output = Path(config.output).expanduser()
    restore_replaced(output)
    check_output(output)
    source = open_source(config)
    recipe = make_recipe(config, source)
    existing = _reuse(output, recipe, overwrite=overwrite)
    if existing is not None:
        return existing
    # Load a given tokenizer first, so that a wrong one is found before the long work.
    trained = config.tokenizer == TRAINED_TOKENIZER
    tokenizer = None if trained else load_tokenizer(config.tokenizer, lowercase=config.lowercase)
    with writing(output) as directory:
        corpus = collect(config, source)
        if tokenizer is None:
            training = [corpus.sentences[row] for row in np.flatnonzero(corpus.splits == SPLITS.index("train"))]
            tokenizer = train_tokenizer(training, vocab_size=config.vocab_size, lowercase=config.lowercase)
        unknown = unknown_as(tokenizer)
        texts = [text.replace(UNKNOWN, unknown) if UNKNOWN in text else text for text in corpus.sentences]
        encoded = encode(tokenizer, texts)
        counts = _write_partitions(config, corpus, encoded, texts, directory)
        tokenizer.save_pretrained(str(directory / TOKENIZER))
        lengths = tuple(np.bincount(encoded.lengths).tolist())
        made_with = {name: version(name) for name in _MADE_WITH}
        judged = {_drops_residue(config, part) for part in source.parts}
        settings = {**recipe.config, "drop_residue": judged.pop() if len(judged) == 1 else config.drop_residue}
        record = PreparedRecord(
            recipe=Recipe(recipe.source, settings), made_with=made_with, counts=counts, lengths=lengths
        )
        write_json(directory / RECORD, record, indent=1)
        write_manifest(directory, [file for file in directory.rglob("*") if file.is_file()])
    return load_prepared(output)


def make_recipe(config: PrepareConfig, source: Source) -> Recipe:
    """Collect all that decides the data. The recipe names no path: the data may move to another machine."""
    settings = recipe_settings(config)
    tokenizer = Path(config.tokenizer).expanduser()
    if tokenizer.exists():
        settings["tokenizer"] = tokenizer.name
        inside = [tokenizer] if tokenizer.is_file() else sorted(tokenizer.glob("*.json"))
        settings["tokenizer_files"] = {file.name: digest(file) for file in inside}
    return Recipe(source.identity, settings)


# From the documents of a source to its distinct sentences, on all cores.


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in the order of the source, the split of each, and the numbers of dropped ones."""

    sentences: list[str]
    splits: Int[np.ndarray, " total"]
    residue: int
    duplicates: int


def _drops_residue(config: PrepareConfig, part: Part) -> bool:
    return part.has_markup if config.drop_residue is None else config.drop_residue


def collect(config: PrepareConfig, source: Source) -> Corpus:
    """Clean the documents, split them into sentences, drop residue and duplicates, and assign the splits."""
    distinct: dict[str, None] = {}
    total = residue = 0
    for found in _find_all(config, source):
        sentences = found.sentences[: None if config.limit is None else config.limit - total]
        distinct.update(dict.fromkeys(sentences))
        total += len(sentences)
        residue += found.residue
        if total == config.limit:
            break
    if not distinct:
        raise InputError(
            f"{config.source}: no sentence found, {residue_dropped(residue) if residue else 'it is blank'}."
        )
    kept = list(distinct)
    return Corpus(kept, assign_splits(len(kept), seed=config.seed), residue, total - len(kept))


def _find_all(config: PrepareConfig, source: Source) -> Iterator[Found]:
    language = None if config.layout == "sentences" else config.language
    # Lines that need no splitting take less time than their transport to another process.
    workers = 1 if language is None else config.workers or _usable_cores()
    with tqdm(desc="sentences", unit="", unit_scale=True, disable=None) as bar:
        for part in source.parts:
            work = partial(find, clean=part.clean, language=language, drop_residue=_drops_residue(config, part))
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


def _usable_cores() -> int:
    """Count the cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Partitions and splits as Arrow datasets.


def _write_partitions(
    config: PrepareConfig, corpus: Corpus, encoded: Encoded, texts: Sequence[str], directory: Path
) -> Counts:
    """Write every partition that has sentences in each of its splits. Returns the counts."""
    inside = {name: within(encoded.lengths, bounds) & encoded.usable for name, bounds in config.partitions.items()}
    partitions: dict[str, PartitionCounts] = {}
    for name, candidates in inside.items():
        rows = sample(candidates, corpus.splits, size=config.per_partition, seed=config.seed)
        train, validation, test = map(len, rows)
        if not (train and validation and test):
            continue
        for split, chosen in zip(SPLITS, rows, strict=True):
            save_rows(encoded, texts, chosen, directory / name / split)
        train_lengths = tuple(np.bincount(encoded.lengths[rows[0]]).tolist())
        partitions[name] = PartitionCounts(int(candidates.sum()), train, validation, test, train_lengths)
    if not partitions:
        lengths = encoded.lengths
        dropped = f" {residue_dropped(corpus.residue)}." if corpus.residue else ""
        raise InputError(
            f"{config.source}: no partition of {_shown(config.partitions)} has training, validation and test "
            f"sentences. The {len(lengths):,} sentences have {lengths.min()} to {lengths.max()} tokens: give more "
            f"text, or other --partitions.{dropped}"
        )
    kept = len(corpus.sentences)
    return Counts(
        sentences=kept + corpus.duplicates + corpus.residue,
        residue=corpus.residue,
        duplicates=corpus.duplicates,
        kept=kept,
        unusable=int((~encoded.usable).sum()),
        in_bounds=int(np.logical_or.reduce(list(inside.values())).sum()),
        partitions=partitions,
    )


def _shown(partitions: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} ({low}-{high} tokens)" for name, (low, high) in partitions.items())


def save_rows(encoded: Encoded, texts: Sequence[str], rows: Int[np.ndarray, " some"], directory: Path) -> None:
    """Write these sentences, in this order, as an Arrow dataset of `input_ids` and `text`."""
    sizes = encoded.lengths[rows]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    starts = (np.cumsum(encoded.lengths) - encoded.lengths)[rows]
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, sizes)  # in encoded.ids
    # Offsets of 64 bits: a split of a large corpus has more than 2³¹ tokens.
    ids = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(encoded.ids[positions], pa.int32()))
    text = pa.array([texts[row] for row in rows], pa.large_string())
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # a bar for a tenth of a second tells nothing
    try:
        datasets.Dataset(pa.table({"input_ids": ids, "text": text})).save_to_disk(str(directory))
    finally:
        if shown:
            datasets.enable_progress_bars()


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


def _reuse(output: Path, recipe: Recipe, *, overwrite: bool) -> Prepared | None:
    """Open the data at `output` if it is of this recipe. None if the data must be made."""
    if not is_prepared(output):
        return None
    existing = load_prepared(output)
    different = existing.recipe.differences(recipe)
    if not different:
        return existing
    if overwrite:
        return None
    raise InputError(
        f"{output}: holds data of another recipe ({'; '.join(different)}). "
        f"Give another --output, or --overwrite to replace it."
    )


@contextmanager
def writing(output: Path) -> Iterator[Path]:
    """Make a directory beside `output` to write to. It replaces `output` if all goes well, else it is removed."""
    prefix = f".{output.name}{PARTIAL}{socket.gethostname()}-"
    partial = output.parent / f"{prefix}{os.getpid()}"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in (prefix, prefix.replace(PARTIAL, OLD)):
            _remove_abandoned(output.parent, abandoned)
        partial.mkdir()
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}). Give another --output.") from error
    try:
        yield partial
        _replace(output, partial)
    except Exception as error:  # libraries raise errors of many kinds
        reason = disk_trouble(error, output.parent)
        if reason is None or isinstance(error, InputError):
            raise
        raise InputError(f"{output}: cannot be written ({reason}). Nothing was changed.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(output: Path, fresh: Path) -> None:
    check_output(output)  # again: minutes have passed
    if not output.exists():
        fresh.rename(output)
        return
    old = fresh.with_name(fresh.name.replace(PARTIAL, OLD))
    output.rename(old)
    try:
        fresh.rename(output)
    except OSError:
        if not output.exists():
            old.rename(output)
        raise
    shutil.rmtree(old)


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove what killed processes of this machine left behind."""
    for path in folder.glob(f"{glob.escape(prefix)}*"):
        pid = path.name.removeprefix(prefix)
        if pid.isdecimal() and not is_running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
