"""How fluent the texts are on the path from one text to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from open_nvib.report.cells import find
from open_nvib.report.figures.style import MUTED, PAPER, canvas, fit_perplexity, look_of, style, to_svg

PATH = "interpolation/perplexity"


@dataclass(frozen=True, eq=False)
class Path:
    """Perplexity at each point of the path, a line for each seed."""

    title: str
    family: str
    perplexity: np.ndarray


def path_of(title: str, family: str, records: Sequence[dict[str, Any]]) -> Path | None:
    """None where nothing was interpolated, or seeds took different numbers of steps."""
    lines = [line for record in records if (line := find(record, PATH)) and None not in line]
    if not lines or len({len(line) for line in lines}) > 1:
        return None
    return Path(title, family, np.array(lines, dtype=float))


def draw_interpolation(paths: Sequence[Path], real: float | None) -> str | None:
    """A line for each model over the weight of the second text; `real` is the perplexity of held-out text."""
    if not paths:
        return None
    with style():
        figure, axes = canvas(3.4, width=5.6)
        for path in paths:
            look = look_of(path.family)
            across = np.linspace(0, 1, path.perplexity.shape[1])
            mean = path.perplexity.mean(0)
            if len(path.perplexity) > 1:
                sd = path.perplexity.std(0, ddof=1)
                axes.fill_between(across, mean - sd, mean + sd, color=look.colour, alpha=0.16, linewidth=0)
            axes.plot(across, mean, marker=look.marker, color=look.colour, markeredgecolor=PAPER, label=path.title)
        if real is not None:
            axes.axhline(real, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label="real text")
        axes.set(xlabel="weight of the second text", ylabel="perplexity of the texts")
        values = [value for path in paths for value in path.perplexity.flat] + ([] if real is None else [real])
        fit_perplexity(axes, "y", values)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0\nfirst text", "0.25", "0.5", "0.75", "1\nsecond text"])
        figure.legend(loc="outside upper center", ncols=min(3, len(paths) + 1))
        return to_svg(figure)
