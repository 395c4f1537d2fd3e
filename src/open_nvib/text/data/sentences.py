"""Split running text into clean sentences, and assign sentences to splits and partitions.

The split comes first and is of sentences of every length: a trained tokenizer may see the training sentences only, and
lengths are known only once there is a tokenizer. So the order is split, train, count tokens, sample.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]

from open_nvib.text.data.markup import HOLE, UNKNOWN

SPLITS = ("train", "validation", "test")
_HELD_OUT = 0.1  # 10 % for the test, then 10 % of the rest for validation, as in the paper

LONGEST_WORD = 1000
"""Characters without a space. Sentences with more, such as a data URI or a key, are dropped: the time to train a
tokenizer grows with the square of the longest word."""

_TOO_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1}}}")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_OPENING = "\"'“”‘’«„([¿¡ "
_CLOSING = "\"'“”‘’»)] "
_FINAL = (".", "!", "?", "…", "。", "！", "？", "।", "؟", "։")
_MARKUP = re.compile(r"[{}|<>\\_~^]|\[\[|\]\]|==|''|\*\*|https?:|www\.|&[a-z]+;|" + HOLE)


@dataclass(frozen=True)
class Found:
    """Sentences, and how many more were dropped: as residue, for a word that is too long, as duplicates."""

    sentences: list[str]
    residue: int
    long_words: int
    duplicates: int = 0


def normalise(text: str) -> str:
    """Compose characters, drop invisible ones, and leave one kind of space: sentencex panics on others."""
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def split(paragraph: str, language: str) -> list[str]:
    """Split one paragraph into sentences. Where the splitter fails, return the paragraph whole."""
    text = normalise(paragraph)
    if not text:
        return []
    try:
        pieces = segment(language, text)
    except BaseException as error:
        # A panic in the Rust library is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return [text]
    return [sentence for piece in pieces if (sentence := piece.strip())]


def is_residue(sentence: str) -> bool:
    """Tell whether this is no sentence: no capital or digit first, no final punctuation, or markup in it.

    A letter of a script without case counts as a capital. WikiText's `<unk>` is allowed anywhere.
    """
    text = sentence.replace(UNKNOWN, "X") if UNKNOWN in sentence else sentence
    start = text.lstrip(_OPENING)[:1]
    good_start = start.isdecimal() or (start.isalpha() and not start.islower())
    return not (good_start and text.rstrip(_CLOSING).endswith(_FINAL)) or _MARKUP.search(text) is not None


def find(
    documents: Iterable[str], *, language: str | None, drop_residue: bool, clean: Callable[[str], str] = str
) -> Found:
    """Clean documents and find their sentences; with `language=None`, every document is one sentence."""
    cleaned = map(clean, documents)
    if language is None:
        candidates = [sentence for text in cleaned if (sentence := normalise(text))]
    else:
        paragraphs = (paragraph for text in cleaned for paragraph in text.split("\n"))
        candidates = [sentence for paragraph in paragraphs for sentence in split(paragraph, language)]
    short = [sentence for sentence in candidates if not _TOO_LONG.search(sentence)]
    if drop_residue:
        kept = [sentence for sentence in short if not is_residue(sentence)]
    else:
        kept = [sentence.replace(HOLE, "") for sentence in short]
    return Found(kept, len(short) - len(kept), len(candidates) - len(short))


def batches(documents: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Yield lists of documents of about this many characters together: even work for parallel processes."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def split_sizes(total: int) -> tuple[int, int, int]:
    """Sizes of train, validation and test: 90/10, then 90/10. 500,000 gives the paper's 405,000/45,000/50,000."""
    test = round(total * _HELD_OUT)
    validation = round((total - test) * _HELD_OUT)
    return total - validation - test, validation, test


def assign_splits(total: int, *, seed: int) -> Int[np.ndarray, " total"]:
    """Draw for every sentence the index of its split in `SPLITS`."""
    return np.random.default_rng([seed, 0]).permutation(np.repeat(np.arange(3), split_sizes(total)))


def sample(
    candidates: Bool[np.ndarray, " total"], splits: Int[np.ndarray, " total"], *, size: int, seed: int
) -> list[Int[np.ndarray, " ..."]]:
    """Draw `size` of the candidates, or all if there are fewer. Returns the indices of each split in random order.

    A sentence stays in its split. The held-out splits get their share of `size` as far as they have it.
    """
    generator = np.random.default_rng([seed, 1])
    pools = [generator.permutation(np.flatnonzero(candidates & (splits == index))) for index in range(len(SPLITS))]
    if sum(map(len, pools)) <= size:
        return pools
    _, validation, test = split_sizes(size)
    held_out = [pools[1][:validation], pools[2][:test]]
    return [pools[0][: size - len(held_out[0]) - len(held_out[1])], *held_out]
