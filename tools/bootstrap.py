"""Intervals for differences of BLEU, by a paired bootstrap over sentences."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU

RESAMPLES = 1000
Pair = tuple[Sequence[str], Sequence[str]]
"""What two systems make of the same sentences."""


def differences_of_bleu(pairs: Sequence[Pair], references: Sequence[str]) -> np.ndarray:
    """Compute BLEU of the first system minus that of the second, (1 + RESAMPLES, number of pairs).

    The first row is of the sentences as they are, the others of sentences drawn again. All pairs have the same draws.
    """
    metric = BLEU()
    drawn = np.random.default_rng(0).integers(len(references), size=(RESAMPLES, len(references)))
    counts = [
        [np.array(metric._extract_corpus_statistics(list(texts), [list(references)])) for texts in pair]
        for pair in pairs
    ]

    def bleu(of: np.ndarray, rows: np.ndarray) -> float:
        return metric._compute_score_from_stats(of[rows].sum(0).tolist()).score

    rows = [np.arange(len(references)), *drawn]
    return np.array([[bleu(first, chosen) - bleu(second, chosen) for first, second in counts] for chosen in rows])


def interval(differences: np.ndarray) -> dict[str, float]:
    """Give the difference on the sentences as they are, and the bounds of 95 % of the resamples."""
    low, high = np.quantile(differences[1:], (0.025, 0.975))
    return {"difference": float(differences[0]), "low": float(low), "high": float(high)}
