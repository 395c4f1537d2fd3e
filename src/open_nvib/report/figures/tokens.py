"""Which tokens the vectors are spent on: bars for each group, a panel for each way of grouping."""

from collections.abc import Sequence

from open_nvib.evaluation.reconstruction import TokenGroup
from open_nvib.report.figures.style import MUTED, canvas, look_of, style, to_svg
from open_nvib.report.spread import spread

TITLES = {"frequency": "by frequency", "kind": "by kind of token", "place": "by place"}


def draw_tokens(seeds: Sequence[Sequence[TokenGroup]], *, family: str) -> str | None:
    """Means over seeds with their deviations, and that of all tokens, which a stride gives to each."""
    panels = [by for by in TITLES if any(group.by == by for groups in seeds for group in groups)]
    if not panels:
        return None
    with style():
        figure, grid = canvas(3.0, columns=len(panels), width=7.2, sharex=True, squeeze=False)
        for axes, by in zip(grid[0], panels, strict=True):
            names = list(dict.fromkeys(group.name for groups in seeds for group in groups if group.by == by))
            found = [
                spread([group.vectors for groups in seeds for group in groups if (group.by, group.name) == (by, name)])
                for name in names
            ]
            means = [value.mean if value else 0.0 for value in found]
            errors = [(value.sd or 0.0) if value else 0.0 for value in found]
            groups = [group for groups in seeds for group in groups if group.by == by]
            all_tokens = sum(group.tokens * group.vectors for group in groups) / sum(group.tokens for group in groups)
            colour = look_of(family).colour
            axes.barh(names, means, xerr=errors, color=colour, height=0.62, error_kw={"lw": 1, "ecolor": MUTED})
            axes.axvline(all_tokens, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1)
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
            axes.set_title(TITLES[by])
        figure.supxlabel("vectors for a token (dashed: of all tokens)", fontsize=9)
        return to_svg(figure)
