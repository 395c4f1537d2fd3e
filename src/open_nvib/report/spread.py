"""A value with its spread over seeds, and how it is written."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MINUS = "−"
LARGE = 1e7
"""From here on, as the perplexity of a model that has not learned yet can be, digits say nothing."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and the sample standard deviation (n − 1), which one seed does not have."""

    mean: float
    sd: float | None
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """None where nothing was measured."""
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def decimals_of_perplexity(value: float) -> int:
    """A perplexity near 1 and one in the thousands share a column: fewer decimals the larger it is."""
    return 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def write(value: float, decimals: int) -> str:
    """With thousands parted by commas, a power of ten where it is large, a true minus, and no negative zero."""
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if abs(value) >= LARGE:
        digits, _, power = f"{value:.1e}".replace("-", MINUS).partition("e+")
        return f"{digits}×10{power.lstrip('0').translate(_RAISED)}"
    text = f"{value:,.{decimals}f}"
    if text.startswith("-"):
        text = text[1:] if not float(text.replace(",", "")) else MINUS + text[1:]
    return text
