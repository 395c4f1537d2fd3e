"""Draw recall at 10 over the bytes of a text, from the cells of `tools.measure_pretrained retrieval`.

python -m tools.figures_of_docs.pretrained docs/results/pretrained/retrieval.json docs/results/pretrained/retrieval.svg
"""

import json
import sys
from pathlib import Path
from typing import Any

from open_nvib.report.figures.style import LOOKS, canvas, style, to_svg
from open_nvib.text.drawing import BLUE, MUTED, ORANGE, PAPER, VERMILION

LINES = {
    "Ward": ("Ward pooling", BLUE, "s"),
    "random": ("random tokens", MUTED, "X"),
    "NVIB, last states, largest": ("NVIB, largest α", LOOKS["NVAE"].colour, "o"),
    "NVIB, last states, above the prior": ("NVIB, above the prior", VERMILION, "v"),
    "NVIB, learned, largest": ("NVIB, learned α", ORANGE, "^"),
}


def draw_retrieval(found: dict[str, Any]) -> str:
    """Draw a line for each way to choose vectors, and dashed ones at the mean vector and at all vectors."""
    with style():
        figure, axes = canvas(3.2, width=6.4)
        for method, (title, colour, marker) in LINES.items():
            cells = [cell for cell in found.values() if cell.get("method") == method]
            axes.plot(
                [cell["bytes"] / 1024 for cell in cells],
                [cell["recall at 10"] for cell in cells],
                f"-{marker}",
                color=colour,
                markeredgecolor=PAPER,
                markeredgewidth=0.7,
                linewidth=1.3,
                label=title,
            )
        for method, title in (("mean", "mean, 1 vector"), ("all", "all vectors")):
            (cell,) = [cell for cell in found.values() if cell.get("method") == method]
            axes.plot(
                cell["bytes"] / 1024, cell["recall at 10"], "D" if method == "mean" else "*", color=MUTED, label=title
            )
        axes.set(xlabel="KiB of a text", ylabel="recall at 10, %", xlim=(0, None))
        figure.legend(loc="outside right center")
        return to_svg(figure)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(draw_retrieval(json.loads(Path(sys.argv[1]).read_text())))
