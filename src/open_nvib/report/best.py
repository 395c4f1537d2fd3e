"""Which NVAE the figures of single models show, by a rule that is stated beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from open_nvib.report.results import Row

BLEU, KEPT = "reconstruction/*/bleu", "reconstruction/*/kept"
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

    The highest BLEU among rows that keep at most 60 % of the vectors; if there is none, the fewest vectors among rows
    with a BLEU of at least 50; if there is none, the highest BLEU.
    """
    known = [
        (row, bleu.mean, kept.mean)
        for row in rows
        if row.family == "NVAE" and (bleu := row.spread(BLEU)) and (kept := row.spread(KEPT))
    ]
    if not known:
        return None
    few = [entry for entry in known if entry[2] <= FEW]
    useful = [entry for entry in known if entry[1] >= USEFUL_BLEU]
    if few:
        row, bleu, kept = max(few, key=lambda entry: entry[1])
        why = f"has the highest BLEU of the NVAE rows that keep at most {FEW:.0%} of the vectors"
    elif useful:
        row, bleu, kept = min(useful, key=lambda entry: entry[2])
        why = f"keeps fewest vectors with a BLEU of at least {USEFUL_BLEU:.0f}, as no NVAE row keeps at most {FEW:.0%}"
    else:
        row, bleu, kept = max(known, key=lambda entry: entry[1])
        why = f"has the highest BLEU, as no NVAE row keeps at most {FEW:.0%} or has a BLEU of {USEFUL_BLEU:.0f}"
    return Best(row, f"{row.title}, which {why} (BLEU {bleu:.1f}, ν = {kept:.2f})")
