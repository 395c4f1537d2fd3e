"""A point for each cell: reconstruction against generation, and both against the share of vectors kept.

The paper's `fig:bleu-rppl-short`, `fig:fppl-rppl-vectors` and `fig:bleu-seq-vectors` (left).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from open_nvib.report.best import Best
from open_nvib.report.cells import number
from open_nvib.report.figures.labels import Label, place_labels
from open_nvib.report.figures.style import (
    INK,
    MUTED,
    PAPER,
    canvas,
    fit_perplexity,
    look_of,
    style,
    to_svg,
)
from open_nvib.report.models import FAMILIES
from open_nvib.report.results import Results, Row

MOST_LABELS = 18
"""Rows above which points are not labelled: a reader points at them instead."""


@dataclass(frozen=True)
class Quantity:
    """What an axis shows: where it is in a record, its name, and the value of real text where there is one."""

    path: str
    name: str
    label: str
    reference: str | None = None


BLEU = Quantity("reconstruction/*/bleu", "BLEU", "reconstruction BLEU")
KEPT = Quantity("reconstruction/*/kept", "ν", "ν, share of vectors kept")
FORWARD = Quantity(
    "generation/forward_perplexity", "F-PPL", "F-PPL (perplexity of samples)", "generation/real_forward_perplexity"
)
REVERSE = Quantity(
    "generation/reverse_perplexity", "R-PPL", "R-PPL (perplexity from samples)", "generation/real_reverse_perplexity"
)


def draw_bleu_perplexity(results: Results, best: Best | None) -> str | None:
    """BLEU against F-PPL and R-PPL."""
    return _draw(results, best, ((FORWARD, BLEU), (REVERSE, BLEU)))


def draw_perplexity_kept(results: Results, best: Best | None) -> str | None:
    """F-PPL and R-PPL against ν."""
    return _draw(results, best, ((KEPT, FORWARD), (KEPT, REVERSE)))


def draw_bleu_kept(results: Results, best: Best | None) -> str | None:
    """BLEU against ν."""
    return _draw(results, best, ((KEPT, BLEU),))


def _draw(results: Results, best: Best | None, panels: Sequence[tuple[Quantity, Quantity]]) -> str | None:
    """None where no cell has the numbers."""
    points = [[_points(row, x, y) for row in results.rows] for x, y in panels]
    if not any(there for rows in points for there in rows):
        return None
    tips: dict[str, str] = {}
    with style():
        width = 7.2 if len(panels) > 1 else 5.2
        figure, grid = canvas(3.7, columns=len(panels), width=width, squeeze=False)
        for index, (x, y) in enumerate(panels):
            axes = grid[0, index]
            _references(axes, results, x, y)
            for row, there in zip(results.rows, points[index], strict=True):
                for seed, (across, up) in there.items():
                    tip = f"cell-{index}-{row.name}-{seed}"
                    tips[tip] = f"{row.title}, seed {seed}: {x.name} {across:.4g}, {y.name} {up:.4g}"
                    _point(axes, row, across, up, chosen=best is not None and best.row is row, gid=tip)
            _axes(axes, points[index], x, y, results)
            if len(results.rows) <= MOST_LABELS:
                labels = [
                    _label(results.short[row.name], there)
                    for row, there in zip(results.rows, points[index], strict=True)
                    if there
                ]
                place_labels(figure, axes, labels, [point for there in points[index] for point in there.values()])
        _legend(figure, [row for row, *there in zip(results.rows, *points, strict=True) if any(there)], best, panels)
        return to_svg(figure, tips)


def _points(row: Row, x: Quantity, y: Quantity) -> dict[int, tuple[float, float]]:
    """Both numbers of each cell that has them, by seed."""
    found = {}
    for cell in row.cells:
        record = cell.evaluation(row.evaluation)
        across, up = number(record, x.path), number(record, y.path)
        if across is not None and up is not None:
            found[cell.seed] = (across, up)
    return found


def _point(axes: Axes, row: Row, x: float, y: float, *, chosen: bool, gid: str) -> None:
    look = look_of(row.family)
    if chosen:
        axes.plot([x], [y], "o", markersize=11.5, color="none", markeredgecolor=INK, markeredgewidth=1.1)
    axes.plot([x], [y], look.marker, color=look.colour, markeredgecolor=PAPER, markeredgewidth=0.7, alpha=0.9, gid=gid)


def _references(axes: Axes, results: Results, x: Quantity, y: Quantity) -> None:
    """Dashed lines where real text is."""
    for quantity, line in ((x, axes.axvline), (y, axes.axhline)):
        real = results.spread(quantity.reference) if quantity.reference else None
        if real:
            line(real.mean, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)


def _axes(
    axes: Axes, points: Sequence[dict[int, tuple[float, float]]], x: Quantity, y: Quantity, results: Results
) -> None:
    for which, quantity in enumerate((x, y)):
        axis = axes.xaxis if which == 0 else axes.yaxis
        set_limits = axes.set_xlim if which == 0 else axes.set_ylim
        axis.set_label_text(quantity.label)
        if quantity is BLEU:
            set_limits(-4, 104)
        elif quantity is KEPT:
            set_limits(-0.05, 1.08)
        else:
            values = [point[which] for there in points for point in there.values()]
            real = results.spread(quantity.reference or "")
            values += [real.mean] if real else []
            fit_perplexity(axes, "x" if which == 0 else "y", values)


def _label(text: str, there: dict[int, tuple[float, float]]) -> Label:
    """A row's label stands at its middle seed."""
    middle = sorted(there.values())[len(there) // 2]
    return Label(text, middle[0], middle[1])


def _legend(
    figure: Figure, rows: Sequence[Row], best: Best | None, panels: Sequence[tuple[Quantity, Quantity]]
) -> None:
    families = [family for family in FAMILIES if any(row.family == family for row in rows)]
    handles = [
        Line2D([], [], marker=look_of(family).marker, color=look_of(family).colour, linestyle="", label=family)
        for family in families
    ]
    if best is not None and any(best.row is row for row in rows):
        ring = {"marker": "o", "color": "none", "markeredgecolor": INK, "markersize": 10}
        handles.append(Line2D([], [], linestyle="", label="best NVAE", **ring))
    if any(quantity.reference for panel in panels for quantity in panel):
        handles.append(Line2D([], [], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label="real text"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), columnspacing=1.4, handletextpad=0.4)
