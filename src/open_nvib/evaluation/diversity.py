"""How much texts differ from one another: distinct n-grams and self-BLEU, on token ids."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Texts = Sequence[Sequence[int]]
ORDERS = (1, 2, 3, 4)
SELF_BLEU_TEXTS = 1000
"""Self-BLEU grows with the number of texts, so that it is always of this many (or of all)."""


@dataclass(frozen=True)
class Diversity:
    """Share of n-grams that are distinct, by n, and BLEU of each text against all others."""

    distinct: dict[str, float | None]
    self_bleu: float | None


def diversity(texts: Texts) -> Diversity:
    return Diversity({str(n): distinct(texts, n) for n in ORDERS}, self_bleu(texts[:SELF_BLEU_TEXTS]))


def ngrams(text: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(text[first : first + n]) for first in range(len(text) - n + 1)]


def distinct(texts: Texts, n: int) -> float | None:
    """Distinct n-grams over all n-grams; None where there is none. It falls with the number of texts."""
    everything = Counter(gram for text in texts for gram in ngrams(text, n))
    total = everything.total()
    return len(everything) / total if total else None


def self_bleu(texts: Texts) -> float | None:
    """Corpus BLEU-4, in percent, of every text with all other texts as its references.

    A count is clipped at the largest count in another text: for each n-gram the largest and second largest count over
    texts, and whose the largest is, are enough. None for fewer than two texts that are not empty.
    """
    texts = [text for text in texts if text]
    if len(texts) < 2:
        return None
    log_precision = 0.0
    for n in ORDERS:
        counts = [Counter(ngrams(text, n)) for text in texts]
        best: dict[tuple[int, ...], tuple[int, int, int]] = {}  # largest, whose it is, second largest
        for index, counted in enumerate(counts):
            for gram, count in counted.items():
                largest, owner, second = best.get(gram, (0, -1, 0))
                if count > largest:
                    best[gram] = (count, index, largest)
                else:
                    best[gram] = (largest, owner, max(second, count))
        matches = total = 0
        for index, counted in enumerate(counts):
            for gram, count in counted.items():
                largest, owner, second = best[gram]
                matches += min(count, second if owner == index else largest)
                total += count
        if not matches:
            return 0.0
        log_precision += math.log(matches / total) / len(ORDERS)
    hypotheses, references = sum(len(text) for text in texts), _closest_lengths(texts)
    brevity = 0.0 if hypotheses >= references else 1 - references / hypotheses
    return 100 * math.exp(log_precision + brevity)


def _closest_lengths(texts: Texts) -> int:
    """For each text the length of the other one closest in length, the shorter of two; their sum."""
    counts = Counter(len(text) for text in texts)
    total = 0
    for length, count in counts.items():
        others = [other for other in counts if other != length or count > 1]
        total += count * min(others, key=lambda other: (abs(other - length), other))
    return total
