"""Words beside points, where there is room for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from open_nvib.report.figures.style import MUTED

SIZE = 7.0
PLACES = ((8, 0, "left"), (-8, 0, "right"), (0, 10, "center"), (0, -10, "center"), (6, 7, "left"), (6, -7, "left"))
PLACES += ((-6, 7, "right"), (-6, -7, "right"), (0, 15, "center"), (0, -15, "center"))
"""Offsets in points from the point to the label's middle line, and its alignment, in the order of trial."""


@dataclass(frozen=True)
class Label:
    """A word for the point at (x, y), in the units of the axes."""

    text: str
    x: float
    y: float


def place_labels(figure: Figure, axes: Axes, labels: Sequence[Label], points: Sequence[tuple[float, float]]) -> None:
    """Put each label beside its point where it covers no point and no other label; one that finds no room is left out.

    Call it when limits and scales are set.
    """
    figure.draw_without_rendering()  # which settles where the axes are
    scale = figure.dpi / 72
    taken = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in map(_at(axes), points)]
    inside = axes.get_window_extent()
    for label in labels:
        if not label.text:
            continue
        x, y = _at(axes)((label.x, label.y))
        width, height = 0.62 * SIZE * scale * len(label.text), 1.25 * SIZE * scale
        for right, up, side in PLACES:
            left = x + right * scale - {"left": 0, "right": width, "center": width / 2}[side]
            box = Bbox.from_bounds(left, y + up * scale - height / 2, width, height)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 + 4 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                axes.annotate(
                    label.text,
                    (label.x, label.y),
                    (right, up),
                    textcoords="offset points",
                    ha=side,
                    va="center_baseline",
                    fontsize=SIZE,
                    color=MUTED,
                )
                taken.append(box)
                break


def _at(axes: Axes):
    """From the units of the axes to pixels."""

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = axes.transData.transform(point)
        return float(x), float(y)

    return place
