"""BLEU of every row, beside the paper's."""

from collections.abc import Sequence

from matplotlib.lines import Line2D

from open_nvib.report.figures.style import INK, MUTED, PAPER, canvas, look_of, style, to_svg
from open_nvib.report.results import Row

PATH = "reconstruction/*/bleu"


def draw_rows(rows: Sequence[Row]) -> str | None:
    """A line for each row with a cell, the first on top: mean and deviation over seeds, and the paper's mean."""
    rows = [row for row in rows if row.values(PATH)]
    if not rows:
        return None
    with style():
        figure, axes = canvas(0.9 + 0.25 * len(rows), width=6.4)
        for place, row in enumerate(rows):
            look, mean = look_of(row.family), row.spread(PATH)
            if row.paper:
                axes.plot(
                    [row.paper.bleu.mean], [place], look.marker, color=PAPER, markeredgecolor=MUTED, markersize=6.5
                )
            if mean and mean.sd is not None:
                axes.plot([mean.mean - mean.sd, mean.mean + mean.sd], [place, place], color=look.colour, linewidth=2.2)
            if mean:
                axes.plot([mean.mean], [place], look.marker, color=look.colour, markeredgecolor=PAPER, markersize=7.5)
        axes.set_yticks(range(len(rows)), [row.title.replace("_", "") for row in rows])
        axes.set(xlabel="reconstruction BLEU", xlim=(-2, 104), ylim=(len(rows) - 0.4, -0.6))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        handles = [
            Line2D([], [], marker="o", linestyle="-", color=INK, label="this report: mean and deviation over seeds")
        ]
        if any(row.paper for row in rows):
            handles.append(
                Line2D([], [], marker="o", linestyle="", color=PAPER, markeredgecolor=MUTED, label="paper: other scale")
            )
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
        return to_svg(figure)
