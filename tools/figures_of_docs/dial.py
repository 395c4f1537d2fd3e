"""Figures of a dial: what is reconstructed from how many vectors, and which tokens the vectors are spent on."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from open_nvib.evaluation.reconstruction import TokenGroup
from open_nvib.report.figures.comparisons import AXES, LIMITS
from open_nvib.report.figures.style import REAL_TEXT, canvas, fit_perplexity, look_of, style, to_svg
from open_nvib.report.measures import BLEU, FORWARD, KEPT, REVERSE, Measure, mean_and_deviation
from open_nvib.report.results import Results
from open_nvib.text.drawing import MUTED, PAPER

TITLES = {"frequency": "by frequency", "kind": "by kind of token", "place": "by place"}


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


def draw_tokens(seeds: Sequence[Sequence[TokenGroup]], *, family: str) -> str | None:
    """Draw bars for each group of tokens: means over seeds, their deviations, and the mean of all tokens."""
    panels = [by for by in TITLES if any(group.by == by for groups in seeds for group in groups)]
    if not panels:
        return None
    with style():
        figure, grid = canvas(3.0, columns=len(panels), width=7.2, sharex=True, squeeze=False)
        for axes, by in zip(grid[0], panels, strict=True):
            groups = [group for groups in seeds for group in groups if group.by == by]
            names = list(dict.fromkeys(group.name for group in groups))
            found = [mean_and_deviation([group.vectors for group in groups if group.name == name]) for name in names]
            means = [value.mean if value else 0.0 for value in found]
            errors = [(value.sd or 0.0) if value else 0.0 for value in found]
            all_tokens = sum(group.tokens * group.vectors for group in groups) / sum(group.tokens for group in groups)
            colour = look_of(family).colour
            axes.barh(names, means, xerr=errors, color=colour, height=0.62, error_kw={"lw": 1, "ecolor": MUTED})
            axes.axvline(all_tokens, **REAL_TEXT)
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
            axes.set_title(TITLES[by])
        figure.supxlabel("vectors for a token (dashed: of all tokens)", fontsize=9)
        return to_svg(figure)
