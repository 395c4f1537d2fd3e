"""Figures that compare rows: scatter plots with a point for each cell, and numbers of vectors.

The paper's `fig:bleu-rppl-short`, `fig:fppl-rppl-vectors` and `fig:bleu-seq-vectors` (left).
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from open_nvib.report.figures.style import EDGE, REAL_TEXT, canvas, fit_perplexity, look_of, style, to_svg
from open_nvib.report.measures import BLEU, FORWARD, KEPT, REVERSE, Measure
from open_nvib.report.results import FAMILIES, Results, RowResults, SelectedNVAE
from open_nvib.store.evaluations import AtShare, Chosen
from open_nvib.text.drawing import INK, MUTED

MOST_LABELS = 18  # rows above which points are not labelled: a reader points at them instead
AXES = {
    BLEU: "reconstruction BLEU",
    KEPT: "ν, share of vectors kept",
    FORWARD: "F-PPL (perplexity of samples)",
    REVERSE: "R-PPL (perplexity from samples)",
}
LIMITS = {BLEU: (-4, 104), KEPT: (-0.05, 1.08)}
SCATTER_PLOTS = {
    "bleu_perplexity": ((FORWARD, BLEU), (REVERSE, BLEU)),
    "bleu_kept": ((KEPT, BLEU),),
    "perplexity_kept": ((KEPT, FORWARD), (KEPT, REVERSE)),
}
OF_NUMBERS = {"bleu": (AXES[BLEU], 1.0), "exact": ("exact (%)", 100.0)}
"""Title and scale of what is drawn of different numbers of vectors."""
CHOSEN = {"fewest": ("*", 12.0, "fewest"), "auto": ("D", 7.0, "auto")}
"""Marker, size and name of numbers of vectors that are chosen for each text."""
LINES = ("-", "--", ":", "-.")  # of one model after the other
Point = tuple[float, float]  # both numbers of a cell, across and up


def draw_points(
    results: Results, selected: SelectedNVAE | None, panels: Sequence[tuple[Measure, Measure]]
) -> str | None:
    """Draw a panel for each pair of measures (across, up); None where no cell has both of one."""
    found = [[(row, there) for row in results.rows if (there := _points(row, x, y))] for x, y in panels]
    if not any(found):
        return None
    tips: dict[str, str] = {}
    with style():
        figure, grid = canvas(3.7, columns=len(panels), width=7.2 if len(panels) > 1 else 5.2, squeeze=False)
        for index, ((x, y), rows) in enumerate(zip(panels, found, strict=True)):
            axes, points = grid[0, index], [point for _, there in rows for point in there.values()]
            fit_axis(axes, "x", results, x, [across for across, _ in points])
            fit_axis(axes, "y", results, y, [up for _, up in points])
            for row, there in rows:
                look = look_of(row.family)
                for seed, (across, up) in there.items():
                    tip = f"cell-{index}-{row.name}-{seed}"
                    tips[tip] = f"{row.title}, seed {seed}: {x.title} {across:.4g}, {y.title} {up:.4g}"
                    if selected is not None and selected.row is row:
                        ring: Any = {"markersize": 11.5, "markeredgecolor": INK, "markeredgewidth": 1.1}
                        axes.plot([across], [up], "o", color="none", **ring)
                    axes.plot([across], [up], look.marker, color=look.colour, alpha=0.9, gid=tip, **EDGE)
            if len(results.rows) <= MOST_LABELS:
                middle = [(row, sorted(there.values())[len(there) // 2]) for row, there in rows]  # of the seeds
                place_labels(figure, axes, [(results.short_titles[row.name], point) for row, point in middle], points)
        shown = [row for rows in found for row, _ in rows]
        _legend(figure, shown, selected, real=any(measure.real for panel in panels for measure in panel))
        return to_svg(figure, tips)


def draw_number(results: Results) -> str | None:
    """Draw BLEU and exact texts against ν, a line over shares for each model of which numbers were measured.

    Stars are the fewest vectors of each text, diamonds the quick decision. All are means over seeds. A model that was
    trained for one share is a point at that share, beside models that were trained for any number.
    """
    measured = [
        (row, [part for found in row.evaluations if (part := found.number_trained_on)]) for row in results.measured
    ]
    measured = [(row, parts) for row, parts in measured if parts]
    if not measured:
        return None
    trained_for_any = {row.name for row, _ in measured if row.evaluations[0].config.loss.shares}
    tips: dict[str, str] = {}
    with style():
        figure, grid = canvas(3.7, columns=2)
        for axes, (name, (title, scale)) in zip(grid, OF_NUMBERS.items(), strict=True):
            points, labels = [], []
            for place, (row, parts) in enumerate(measured):
                look, line = look_of(row.family), LINES[place % len(LINES)]
                shares = [(f"share {at[0].share:g}", at) for at in zip(*(part.shares for part in parts), strict=False)]
                chosen = [(who, [getattr(part, who) for part in parts]) for who in CHOSEN]
                if trained_for_any and row.name not in trained_for_any:
                    own = row.evaluations[0].config.loss.at_end().keep_share
                    shares, chosen = [(who, at) for who, at in shares if at[0].share == own], []
                curve = sorted(point for _, at in shares if (point := _mean_point(at, name, scale)))
                axes.plot([x for x, _ in curve], [y for _, y in curve], line, color=look.colour, linewidth=1.4)
                labels += [(results.short_titles[row.name], point) for point in curve[:1]]
                for index, (who, at) in enumerate([*shares, *chosen]):
                    if point := _mean_point(at, name, scale):
                        tip = f"number-{name}-{place}-{index}"
                        tips[tip] = f"{row.title}, {who}: ν {point[0]:.3g}, {title} {point[1]:.4g}"
                        marker, size, _ = CHOSEN.get(who, (look.marker, 5.0, ""))
                        axes.plot(*point, marker, color=look.colour, gid=tip, markersize=size, **EDGE)
                        points.append(point)
            lowest = min([50.0, *(up - 4 for _, up in points)])
            axes.set(xlabel=AXES[KEPT], ylabel=title, xlim=(0, LIMITS[KEPT][1]), ylim=(lowest, 103))
            place_labels(figure, axes, labels, points)
        looks = [("o", 5.0, "fixed shares"), *CHOSEN.values()]
        handles = [Line2D([], [], marker=x, linestyle="", color=INK, markersize=size, label=y) for x, size, y in looks]
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
        return to_svg(figure, tips)


def _mean_point(at: Sequence[AtShare | Chosen], measure: str, scale: float) -> Point | None:
    """ν and a number over seeds, where all have it."""
    values = [value for each in at if (value := getattr(each, measure)) is not None]
    if len(values) < len(at):
        return None
    return fmean(each.kept for each in at), scale * fmean(values)


def _points(row: RowResults, x: Measure, y: Measure) -> dict[int, Point]:
    found = {seed: (x.read(evaluation), y.read(evaluation)) for seed, evaluation in row.by_seed.items()}
    return {seed: (across, up) for seed, (across, up) in found.items() if across is not None and up is not None}


def fit_axis(axes: Axes, which: str, results: Results, measure: Measure, values: list[float]) -> None:
    """Set label and limits of the "x" or "y" axis, with a dashed line where real text is."""
    axes.set(**{f"{which}label": AXES[measure]})
    if measure in LIMITS:
        axes.set(**{f"{which}lim": LIMITS[measure]})
        return
    if real := results.real(measure):
        (axes.axvline if which == "x" else axes.axhline)(real.mean, **REAL_TEXT, zorder=1)
    fit_perplexity(axes, which, [*values, *([real.mean] if real else [])])


def _legend(figure: Figure, rows: Sequence[RowResults], selected: SelectedNVAE | None, *, real: bool) -> None:
    looks = [(family, look_of(family)) for family in FAMILIES if any(row.family == family for row in rows)]
    handles = [Line2D([], [], marker=x.marker, color=x.colour, linestyle="", label=family) for family, x in looks]
    if selected is not None and any(selected.row is row for row in rows):
        ring = {"marker": "o", "color": "none", "markeredgecolor": INK, "markersize": 10}
        handles.append(Line2D([], [], linestyle="", label="best NVAE", **ring))
    if real:
        handles.append(Line2D([], [], **REAL_TEXT, label="real text"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), columnspacing=1.4, handletextpad=0.4)


LABEL: Any = {"va": "center_baseline", "fontsize": 7.0, "color": MUTED}
LABEL_OFFSETS = (
    *((8, 0, "left"), (-8, 0, "right"), (0, 10, "center"), (0, -10, "center"), (6, 7, "left"), (6, -7, "left")),
    *((-6, 7, "right"), (-6, -7, "right"), (0, 15, "center"), (0, -15, "center")),
)
"""Offsets in points from the point to the label's middle line, and its alignment, in the order of trial."""


def place_labels(figure: Figure, axes: Axes, labels: Sequence[tuple[str, Point]], points: Sequence[Point]) -> None:
    """Put each label beside its point where it covers no point and no other label; leave out one without room.

    Call it when limits and scales are set.
    """
    figure.draw_without_rendering()  # which settles where the axes are
    marker = 5 * figure.dpi / 72  # half of its size, in pixels
    inside, centres = axes.get_window_extent(), map(axes.transData.transform, points)
    taken = [Bbox([[x - marker, y - marker], [x + marker, y + marker]]) for x, y in centres]
    for text, point in labels:
        for right, up, side in LABEL_OFFSETS if text else ():
            label = axes.annotate(text, point, (right, up), textcoords="offset points", ha=side, **LABEL)
            box = label.get_window_extent()
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 + 4 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
