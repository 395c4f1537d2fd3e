"""How many vectors a model keeps of texts of each length.

The paper's `fig:bleu-seq-vectors` (right) and `fig:number_vectors_OOD`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from open_nvib.report.cells import find, number
from open_nvib.report.figures.style import MUTED, ORANGE, PAPER, canvas, look_of, style, to_svg

HAND_CODED = 0.5
"""The stride of the baseline beside which the paper draws its model: every second vector is dropped."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Vectors kept of the texts of each length: how many texts there are, the mean number and its deviation."""

    lengths: np.ndarray
    sentences: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    def fit(self) -> tuple[float, float]:
        """Slope and intercept of the least squares over texts; the mean alone where all are of one length."""
        if len(self.lengths) < 2:
            return 0.0, float(self.mean.mean())
        slope, intercept = np.polyfit(self.lengths, self.mean, 1, w=np.sqrt(self.sentences))
        return float(slope), float(intercept)


def kept_by_length(records: Sequence[dict[str, Any]], partition: str) -> Kept | None:
    """All texts of several records (seeds) together: the deviation has that within seeds and that between them."""
    sums: dict[int, np.ndarray] = {}
    for record in records:
        for row in find(record, f"reconstruction/{partition}/by_length") or []:
            length, count, mean = (number(row, name) for name in ("length", "sentences", "kept"))
            if length is None or count is None or mean is None:
                continue
            sd = number(row, "sd") or 0.0
            moments = count * np.array([1.0, mean, sd**2 + mean**2])
            sums[int(length)] = sums.get(int(length), 0.0) + moments
    lengths = sorted(length for length, moments in sums.items() if moments[0] > 0)
    if not lengths:
        return None
    count, first, second = np.stack([sums[length] for length in lengths], 1)
    mean = first / count
    return Kept(np.array(lengths), count, mean, np.sqrt(np.maximum(0.0, second / count - mean**2)))


def draw_vectors(records: Sequence[dict[str, Any]], *, family: str, name: str) -> str | None:
    """A panel for each partition: the one that was trained on, then those that the model never saw."""
    names = list(find(records[0], "reconstruction") or {}) if records else []
    found = {partition: kept for partition in names if (kept := kept_by_length(records, partition))}
    if not found:
        return None
    seen = names[0]
    line = found[seen].fit() if seen in found else None
    with style():
        figure, grid = canvas(3.5, columns=len(found), width=7.2 if len(found) > 1 else 4.8, squeeze=False)
        for axes, (partition, kept) in zip(grid[0], found.items(), strict=True):
            _panel(axes, kept, family=family, name=name, learned=None if partition == seen else line)
            lengths = f"{kept.lengths[0]}–{kept.lengths[-1]} tokens"
            known = "as trained on" if partition == seen else "never seen in training"
            axes.set_title(f"{partition} ({lengths}), {known}")
            axes.set(xlabel="input length n (tokens)", ylabel="vectors kept")
        handles = {text: handle for axes in grid[0] for handle, text in zip(*axes.get_legend_handles_labels())}  # noqa: B905
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, columnspacing=1.6)
        return to_svg(figure)


def _panel(axes: Axes, kept: Kept, *, family: str, name: str, learned: tuple[float, float] | None) -> None:
    look = look_of(family)
    ends = np.array([kept.lengths[0], kept.lengths[-1]], dtype=float)
    axes.plot(ends, ends, color=MUTED, linewidth=1.2, linestyle=(0, (1, 1.6)), label="all: y = n")
    axes.plot(
        ends, (1 - HAND_CODED) * ends, color=ORANGE, linewidth=1.6, linestyle=(0, (5, 2)), label="VTS S=0.5: y = n/2"
    )
    if learned is not None:
        axes.plot(
            ends,
            learned[0] * ends + learned[1],
            color=look.colour,
            linewidth=1.3,
            linestyle=(0, (3, 1.5, 1, 1.5)),
            label="fit of the trained lengths, continued",
        )
    slope, intercept = kept.fit()
    axes.plot(ends, slope * ends + intercept, color=look.colour, linewidth=1.4, label="linear fit")
    low = np.maximum(0, kept.mean - kept.sd)
    axes.fill_between(kept.lengths, low, kept.mean + kept.sd, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(
        kept.lengths,
        kept.mean,
        look.marker,
        color=look.colour,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
        markersize=5,
        label=f"{name}: mean and deviation",
    )
    sign = "+" if intercept >= 0 else "−"
    axes.annotate(
        f"y = {slope:.2f} n {sign} {abs(intercept):.1f}",
        (0.04, 0.94),
        xycoords="axes fraction",
        va="top",
        color=look.colour,
        fontsize=9,
    )
    axes.set_ylim(0, None)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
