"""Draw the figures of pretrained models from what `tools.measure_pretrained` wrote.

python -m tools.figures_of_docs.pretrained docs/results/pretrained

`retrieval`: recall at 10 over the bytes of a text. `curve`: BLEU of OPUS-MT over the dials of each section.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from open_nvib.report.figures.style import EDGE, LOOKS, canvas, style, to_svg
from open_nvib.text.drawing import BLUE, MUTED, ORANGE, VERMILION
from tools.measure_pretrained.noise import CURVE, ORIGINAL, name

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
                linewidth=1.3,
                label=title,
                **EDGE,
            )
        for method, title in (("mean", "mean, 1 vector"), ("all", "all vectors")):
            (cell,) = [cell for cell in found.values() if cell.get("method") == method]
            axes.plot(
                cell["bytes"] / 1024, cell["recall at 10"], "D" if method == "mean" else "*", color=MUTED, label=title
            )
        axes.set(xlabel="KiB of a text", ylabel="recall at 10, %", xlim=(0, None))
        figure.legend(loc="outside right center")
        return to_svg(figure)


def draw_curve(found: dict[str, Any]) -> str:
    """Draw a line for each section over each dial, on clean sources and, dashed, on noisy ones."""
    colours = {"encoder": BLUE, "cross": ORANGE, "decoder": LOOKS["NVAE"].colour}
    original = found[name(ORIGINAL)]
    with style():
        figure, axes = canvas(3.4, width=7.2, columns=2)
        for place, (dial, values) in zip(axes, CURVE.items(), strict=True):
            for section, colour in colours.items():
                for part, line in (("clean", "-o"), ("noisy", "--o")):
                    settings = [(section, x, 0.0) if dial == "tau_alpha" else (section, math.inf, x) for x in values]
                    bleu = [found[name(setting)][part]["bleu"] for setting in settings]
                    label = f"{section}, {part}" if dial == "tau_alpha" else None
                    place.plot(values, bleu, line, color=colour, markersize=3.5, linewidth=1.2, label=label)
            for part in ("clean", "noisy"):
                label = "the original" if (dial, part) == ("tau_alpha", "clean") else None
                place.axhline(original[part]["bleu"], color=MUTED, linestyle=":", linewidth=1, label=label)
            place.set(xlabel={"tau_alpha": "τ_α", "tau_sigma": "τ_σ"}[dial], ylabel="BLEU", ylim=(0, None))
        axes[0].invert_xaxis()
        figure.legend(loc="outside upper center", ncols=4)
        return to_svg(figure)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for title, draw in {"retrieval": draw_retrieval, "curve": draw_curve}.items():
        file = Path(sys.argv[1]) / f"{title}.json"
        file.with_suffix(".svg").write_text(draw(json.loads(file.read_text())))
