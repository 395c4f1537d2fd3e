"""What is reconstructed from how many vectors: a line for each family, mean and deviation over seeds."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from open_nvib.report.figures.points import BLEU, FORWARD, KEPT, REVERSE, Quantity
from open_nvib.report.figures.style import MUTED, PAPER, canvas, fit_perplexity, look_of, style, to_svg
from open_nvib.report.results import Results, Row


def draw_dial(
    results: Results, *, families: Sequence[str] = ("NVAE", "VTS"), without: Sequence[str] = ()
) -> str | None:
    """BLEU, F-PPL and R-PPL against ν; rows `without` differ in more than the dial and are left out."""
    rows = {family: _ordered(results, family, without) for family in families}
    if not any(rows.values()):
        return None
    with style():
        figure, grid = canvas(3.2, columns=3, width=9.0)
        for axes, quantity in zip(grid, (BLEU, FORWARD, REVERSE), strict=True):
            values = []
            for family, members in rows.items():
                points = [(row.spread(KEPT.path), row.spread(quantity.path)) for row in members]
                there = [(x, y) for x, y in points if x and y]
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
            _finish(axes, results, quantity, values)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return to_svg(figure)


def _ordered(results: Results, family: str, without: Sequence[str]) -> list[Row]:
    measured = [row for row in results.measured if row.name not in without and row.spread(KEPT.path)]
    rows = [row for row in measured if row.family == family]
    return sorted(rows, key=lambda row: row.spread(KEPT.path).mean)  # pyright: ignore[reportOptionalMemberAccess]


def _finish(axes: Axes, results: Results, quantity: Quantity, values: Sequence[float]) -> None:
    axes.set(xlabel=KEPT.label, ylabel=quantity.label, xlim=(0, 1.05))
    real = results.spread(quantity.reference) if quantity.reference else None
    if real:
        axes.axhline(real.mean, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)
    if quantity is BLEU:
        axes.set_ylim(-4, 104)
    else:
        fit_perplexity(axes, "y", [*values, *([real.mean] if real else [])])
