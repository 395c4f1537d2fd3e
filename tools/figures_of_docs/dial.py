"""The figure of a dial: what is reconstructed from how many vectors."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from open_nvib.report.figures.comparisons import AXES, LIMITS
from open_nvib.report.figures.style import REAL_TEXT, canvas, fit_perplexity, look_of, style, to_svg
from open_nvib.report.measures import BLEU, FORWARD, KEPT, REVERSE, Measure
from open_nvib.report.results import Results
from open_nvib.text.drawing import PAPER


def draw_dial(
    results: Results, *, families: Sequence[str] = ("NVAE", "VTS"), without: Sequence[str] = ()
) -> str | None:
    """Draw BLEU, F-PPL and R-PPL against ν, a line for each family; rows `without` differ in more than the dial."""
    rows = [(row, kept) for row in results.measured if row.name not in without and (kept := row.mean(KEPT.read))]
    rows = sorted((pair for pair in rows if pair[0].family in families), key=lambda pair: pair[1].mean)
    if not rows:
        return None
    with style():
        figure, grid = canvas(3.2, columns=3, width=9.0)
        for axes, measure in zip(grid, (BLEU, FORWARD, REVERSE), strict=True):
            values = []
            for family in families:
                points = [(x, row.mean(measure.read)) for row, x in rows if row.family == family]
                there = [(x, y) for x, y in points if y]
                look = look_of(family)
                axes.errorbar(
                    [x.mean for x, _ in there],
                    [y.mean for _, y in there],
                    xerr=[x.sd or 0.0 for x, _ in there],
                    yerr=[y.sd or 0.0 for _, y in there],
                    fmt=f"-{look.marker}",
                    color=look.colour,
                    markeredgecolor=PAPER,
                    markeredgewidth=0.7,
                    linewidth=1.3,
                    elinewidth=1.0,
                    capsize=2.5,
                    label=family,
                )
                values += [y.mean for _, y in there]
            _fit(axes, results, measure, values)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return to_svg(figure)


def _fit(axes: Axes, results: Results, measure: Measure, values: Sequence[float]) -> None:
    """Set labels and limits, with a dashed line where real text is."""
    axes.set(xlabel=AXES[KEPT], ylabel=AXES[measure], xlim=(0, 1.05))
    real = results.real(measure)
    if real:
        axes.axhline(real.mean, **REAL_TEXT, zorder=1)
    if measure in LIMITS:
        axes.set_ylim(*LIMITS[measure])
    else:
        fit_perplexity(axes, "y", [*values, *([real.mean] if real else [])])
