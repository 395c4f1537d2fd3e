"""Running text to clean sentences."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]

from open_nvib.text.data.markup import HOLE
from open_nvib.text.data.wikitext import UNKNOWN

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_OPENING = "\"'“”‘’«„([¿¡ "
_CLOSING = "\"'“”‘’»)] "
_FINAL = (".", "!", "?", "…", "。", "！", "？", "।", "؟", "։")
_MARKUP = re.compile(r"[{}|<>\\_~^]|\[\[|\]\]|==|''|\*\*|https?:|www\.|&[a-z]+;|" + HOLE)


@dataclass(frozen=True)
class Found:
    """The sentences of a batch of text, and how many more were dropped as residue."""

    sentences: list[str]
    residue: int


def normalise(text: str) -> str:
    """One kind of space, composed characters, nothing invisible: what sentencex needs not to panic."""
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def split(paragraph: str, language: str) -> list[str]:
    """The sentences of one paragraph. Where the splitter fails, the paragraph is given back whole."""
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
    """Whether this is no sentence: no capital or digit first, no final punctuation, or markup in it.

    A letter of a script without case counts as a capital. WikiText's `<unk>` may stand anywhere.
    """
    text = sentence.replace(UNKNOWN, "X") if UNKNOWN in sentence else sentence
    start = text.lstrip(_OPENING)[:1]
    good_start = start.isdecimal() or (start.isalpha() and not start.islower())
    return not (good_start and text.rstrip(_CLOSING).endswith(_FINAL)) or _MARKUP.search(text) is not None


def find(paragraphs: Iterable[str], *, language: str | None, drop_residue: bool) -> Found:
    """The sentences of paragraphs; `language=None` takes every paragraph for one sentence."""
    if language is None:
        candidates = [sentence for paragraph in paragraphs if (sentence := normalise(paragraph))]
    else:
        candidates = [sentence for paragraph in paragraphs for sentence in split(paragraph, language)]
    if not drop_residue:
        return Found([sentence.replace(HOLE, "") for sentence in candidates], 0)
    kept = [sentence for sentence in candidates if not is_residue(sentence)]
    return Found(kept, len(candidates) - len(kept))


def batches(documents: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Lists of documents of about so many characters together: even work for parallel processes."""
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
