"""Which NVAE the figures of single models show, by a rule that is stated beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from open_nvib.report.results import Row

BLEU, KEPT, REVERSE = "reconstruction/*/bleu", "reconstruction/*/kept", "generation/reverse_perplexity"
FEW = 0.6
"""A model that keeps at most this share of the vectors has learned to drop some."""
USEFUL_BLEU = 50.0


@dataclass(frozen=True, eq=False)
class Best:
    """A row, and its name with why it was chosen."""

    row: Row
    reason: str


def best_nvae(rows: Sequence[Row]) -> Best | None:
    """The NVAE that drops vectors and still reconstructs.

    Of rows with a BLEU of at least 50, the highest BLEU where at most 60 % of the vectors are kept. If there is none,
    the fewest vectors, to a percent, and the lowest R-PPL of those with as few. If there is none, the highest BLEU.
    """
    known = [
        (row, bleu.mean, kept.mean)
        for row in rows
        if row.family == "NVAE" and (bleu := row.spread(BLEU)) and (kept := row.spread(KEPT))
    ]
    if not known:
        return None
    useful = [entry for entry in known if entry[1] >= USEFUL_BLEU]
    few = [entry for entry in useful if entry[2] <= FEW]
    if few:
        row, bleu, kept = max(few, key=lambda entry: entry[1])
        why = f"has the highest BLEU of the NVAE rows that keep at most {FEW:.0%} of the vectors"
    elif useful:
        row, bleu, kept = min(useful, key=lambda entry: (round(entry[2], 2), _reverse(entry[0])))
        why = (
            f"keeps fewest vectors with a BLEU of at least {USEFUL_BLEU:.0f}, with the lowest R-PPL of those with as "
            f"few, as no NVAE row with such a BLEU keeps at most {FEW:.0%}"
        )
    else:
        row, bleu, kept = max(known, key=lambda entry: entry[1])
        why = f"has the highest BLEU, as no NVAE row has a BLEU of {USEFUL_BLEU:.0f}"
    return Best(row, f"{row.title}, which {why} (BLEU {bleu:.1f}, ν = {kept:.2f})")


def _reverse(row: Row) -> float:
    found = row.spread(REVERSE)
    return math.inf if found is None else found.mean
