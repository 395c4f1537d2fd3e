"""The documents of a source to its distinct sentences, with all cores."""

import itertools
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int
from tqdm.auto import tqdm

from open_nvib.store.files import InputError
from open_nvib.store.settings import PrepareConfig
from open_nvib.text.data.partition import assign_splits
from open_nvib.text.data.sentences import Found, batches, find
from open_nvib.text.data.sources import Source

_BATCH_CHARACTERS = 250_000  # a quarter of a second of work on markup: the bar moves, and the cores stay busy
_AHEAD = 4  # batches that wait for each worker; bounds the memory, whatever the size of the source


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in the order of the source, each with its split, and how many were dropped on the way."""

    sentences: list[str]
    splits: Int[np.ndarray, " total"]
    residue: int
    duplicates: int


def collect(config: PrepareConfig, source: Source) -> Corpus:
    """Clean the documents, split them into sentences, drop residue and duplicates, and assign the splits."""
    distinct: dict[str, None] = {}
    total = residue = 0
    for found in _all_found(config, source):
        room = None if config.limit is None else config.limit - total
        sentences = found.sentences[:room]
        distinct.update(dict.fromkeys(sentences))
        total += len(sentences)
        residue += found.residue
        if total == config.limit:
            break
    if not distinct:
        why = (
            f"all {residue:,} candidates were dropped as residue: try --drop_residue false"
            if residue
            else "it is blank"
        )
        raise InputError(f"{config.source}: no sentence found, {why}.")
    kept = list(distinct)
    return Corpus(kept, assign_splits(len(kept), seed=config.seed), residue, total - len(kept))


def _all_found(config: PrepareConfig, source: Source) -> Iterator[Found]:
    language = None if config.layout == "sentences" else config.language
    workers = 1 if language is None else config.workers or _cores()  # lines as they are cost less than their transport
    with tqdm(desc="sentences", unit="", unit_scale=True, disable=None) as bar:
        for part in source.parts:
            work = partial(_find, clean=part.clean, language=language, drop_residue=config.drop_residue)
            for found in map_in_order(work, batches(part.documents(), _BATCH_CHARACTERS), workers=workers):
                bar.update(len(found.sentences))
                yield found


def _find(documents: list[str], *, clean: Callable[[str], str], language: str | None, drop_residue: bool) -> Found:
    if language is None:
        return find(map(clean, documents), language=None, drop_residue=drop_residue)
    paragraphs = (paragraph for document in documents for paragraph in clean(document).split("\n"))
    return find(paragraphs, language=language, drop_residue=drop_residue)


def map_in_order(work: Callable[[list[str]], Found], items: Iterable[list[str]], *, workers: int) -> Iterator[Found]:
    """`map` over several processes, results in the order of the items; in this process if there is but one item."""
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
            if len(pending) >= workers * _AHEAD:
                yield pending.popleft().get()
        while pending:
            yield pending.popleft().get()


def _cores() -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
