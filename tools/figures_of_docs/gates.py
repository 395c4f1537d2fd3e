"""Draw BLEU over the vectors kept, for gates with their dial and for other models: docs/results/gates/dial.svg.

python -m tools.figures_of_docs.gates docs/results/gates/dial.svg
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from open_nvib.report.figures.style import EDGE, canvas, style, to_svg
from open_nvib.store.cells import read_cells
from open_nvib.store.files import write_text
from open_nvib.text.drawing import BLUE, GREEN, INK, MUTED, ORANGE, SKY

RESULTS = Path(__file__).parents[2] / "docs" / "results"
GATES = {"gates-0.42-d5": ("gates, s = 0.42", BLUE), "gates-0.26-d5": ("gates, s = 0.26", SKY)}
ANY = {"any": ("NVAE, any number", GREEN), "vts-any": ("pooled VTS, any number", ORANGE)}
ALONE = {"strides-0.47": ("pooled VTS, one stride", "D", ORANGE), "frequency-0.47": ("gates by frequency", "v", MUTED)}
ALONE |= {"random-0.47": ("random gates", "x", INK), "l0drop-0.05-ramp": ("L0Drop", "s", MUTED)}
Curve = dict[Any, list[tuple[float, float]]]
"""For each share that is asked for, ν and BLEU of each seed."""


def gate_cells() -> Iterator[dict[str, Any]]:
    for file in sorted((RESULTS / "gates" / "measured").glob("*.json")):
        cell = json.loads(file.read_text())
        if cell["steps"] == 7500:
            yield cell


def read_curves() -> dict[str, Curve]:
    """Read the curves of models that take any number, by row."""
    curves: dict[str, Curve] = defaultdict(lambda: defaultdict(list))
    for cell in gate_cells():
        for share, found in cell.get("dial", {}).items():
            curves[cell["row"]][float(share)].append((found["kept"], found["bleu"]))
    for cell in read_cells(RESULTS / "number" / "cells"):
        number = cell.evaluations["test-causal"].number_trained_on
        for found in number.shares if number else ():
            if found.bleu is not None:
                curves[cell.row][found.share].append((found.kept, found.bleu))
    return curves


def draw() -> str:
    curves = read_curves()
    with style():
        figure, axes = canvas(3.6, columns=1, width=6.5)
        for row, (label, colour) in (GATES | ANY).items():
            points = sorted(tuple(map(statistics.mean, zip(*seeds, strict=True))) for seeds in curves[row].values())
            x, y = zip(*points, strict=True)
            axes.plot(x, y, "-o", color=colour, linewidth=1.3, label=label, **EDGE)
        for row, (label, marker, colour) in ALONE.items():
            found = [(cell["kept"], cell["bleu_mean"]) for cell in gate_cells() if cell["row"] == row]
            if found:
                x, y = zip(*found, strict=True)
                axes.plot(x, y, marker, color=colour, label=label, zorder=3)
        axes.set(xlabel="ν, vectors per token", ylabel="BLEU", xlim=(0.15, 1.02), ylim=(50, 101))
        axes.legend(loc="lower right")
        return to_svg(figure)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), draw())
