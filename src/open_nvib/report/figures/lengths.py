"""How long samples are, beside how long the data's sentences are: a small panel for each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from open_nvib.report.cells import find
from open_nvib.report.figures.style import LINE, MUTED, canvas, look_of, style, to_svg

MOST_PANELS = 16
COLUMNS = 4
SHOWN = 0.999
"""The share of samples that the axis reaches; the rest is a long thin tail."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Shares of sentences by number of tokens, in percent."""

    title: str
    family: str
    samples: np.ndarray
    data: np.ndarray


def lengths_of(title: str, family: str, records: Sequence[dict[str, Any]]) -> Lengths | None:
    """Of all seeds together; None for a model that was not sampled."""
    samples = _total([find(record, "generation/lengths") for record in records])
    data = _total([find(record, "generation/real_lengths") for record in records])
    return None if samples is None or data is None else Lengths(title, family, samples, data)


def _total(histograms: Sequence[Any]) -> np.ndarray | None:
    there = [histogram for histogram in histograms if histogram]
    if not there:
        return None
    total = np.zeros(max(map(len, there)))
    for histogram in there:
        total[: len(histogram)] += histogram
    return 100 * total / max(1.0, total.sum())


def draw_lengths(rows: Sequence[Lengths]) -> str | None:
    """At most 16 panels, in the order given."""
    rows = rows[:MOST_PANELS]
    if not rows:
        return None
    columns = min(COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    last = max(int(np.searchsorted(shares.cumsum(), 100 * SHOWN)) for row in rows for shares in (row.samples, row.data))
    highest = max(float(shares.max()) for row in rows for shares in (row.samples, row.data))
    with style():
        width, height = (4.8, 2.8) if len(rows) == 1 else (7.2, 0.55 + 1.35 * lines)
        shared = {"sharex": True, "sharey": True, "squeeze": False}
        figure, grid = canvas(height, columns=columns, rows=lines, width=width, **shared)
        for axes, row in zip(grid.flat, rows, strict=False):
            axes.fill_between(
                np.arange(len(row.data)), row.data, step="mid", color=LINE, edgecolor=MUTED, linewidth=0.6, label="data"
            )
            axes.step(np.arange(len(row.samples)), row.samples, where="mid", color=look_of(row.family).colour, lw=1.5)
            axes.set_title(row.title, fontsize=7.5, pad=3)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set(xlim=(0, last + 1), ylim=(0, 1.06 * highest))
        for axes in grid.flat[len(rows) :]:
            axes.set_axis_off()
        figure.supxlabel("tokens in a sentence (filled: data, line: samples)", fontsize=9)
        figure.supylabel("share of sentences (%)", fontsize=9)
        return to_svg(figure)
