"""The course of a training run, from its log."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from open_nvib.report.figures.style import BLUE, GREEN, ORANGE, PINK, VERMILION, canvas, style, to_svg

Entry = dict[str, Any]


def draw_training(log: Sequence[Entry]) -> str | None:
    """Cross-entropy, the two KL divergences, and what is kept and reconstructed, over steps."""
    if not any("cross_entropy" in entry for entry in log):
        return None
    with style():
        figure, (loss, kl, kept) = canvas(3.5, columns=3, width=7.6)
        _curve(loss, log, "cross_entropy", "training", BLUE, "-")
        _curve(loss, log, "eval_loss", "validation", VERMILION, "o--")
        loss.set(title="cross-entropy (nats per token)", ylim=(0, None))
        _curve(kl, log, "kl_gaussian", "L_G / nd", GREEN, "-")
        _curve(kl, log, "kl_dirichlet", "L_D / n", PINK, "--")
        kl.set(title="KL divergences (nats)", ylim=(0, None))
        _curve(kept, log, "kept", "ν, vectors kept", ORANGE, "-", 100)
        _curve(kept, log, "eval_bleu", "BLEU", BLUE, "s--")
        _curve(kept, log, "eval_exact", "exact", VERMILION, "^:", 100)
        kept.set(title="kept and reconstructed (%, BLEU)", ylim=(-3, 104))
        for axes in (loss, kl, kept):
            axes.set_xlabel("step")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))  # below: the curves may go anywhere
        return to_svg(figure)


def _curve(axes: Axes, log: Sequence[Entry], name: str, label: str, colour: str, line: str, scale: float = 1.0) -> None:
    points = [(entry["step"], scale * entry[name]) for entry in log if isinstance(entry.get(name), (int, float))]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, line, color=colour, label=label, linewidth=1.6, markersize=5)
