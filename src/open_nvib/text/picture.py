"""A picture of what the latent kept of a text."""

from collections.abc import Sequence
from pathlib import Path

from open_nvib.errors import InputError
from open_nvib.text.run import TextReport

BAR, DROPPED = "#0072B2", "#999999"


def draw_reports(reports: Sequence[TextReport], path: str | Path) -> Path:
    """Bars for each vector, over its tokens: its share of the weight, and its KL. Dropped tokens are struck out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path = Path(path)
    widest = max(len(report.tokens) for report in reports)
    figure, axes = plt.subplots(
        2 * len(reports), 1, figsize=(max(6.0, 0.55 * widest), 3.6 * len(reports)), layout="constrained", squeeze=False
    )
    for row, report in enumerate(reports):
        places = range(len(report.tokens))
        upper, lower = axes[2 * row, 0], axes[2 * row + 1, 0]
        firsts = [index for index, token in enumerate(report.tokens) if not token.shared]
        lasts = {token.place: index for index, token in enumerate(report.tokens) if token.present}
        ends = [lasts.get(report.tokens[index].place, index) for index in firsts]
        centres = [(first + last) / 2 for first, last in zip(firsts, ends, strict=True)]
        bars = [last - first + 0.8 for first, last in zip(firsts, ends, strict=True)]
        upper.bar(centres, [100 * report.tokens[index].weight for index in firsts], bars, color=BAR)
        upper.set_ylabel("weight (%)")
        upper.set_title(f"{report.text}\n→ {report.reconstruction}", fontsize=9, loc="left", wrap=True)
        upper.set_xticks([])
        lower.bar(centres, [report.tokens[index].kl or 0.0 for index in firsts], bars, color="#E69F00")
        lower.set_ylabel("KL (nats)")
        lower.set_xticks(
            list(places),
            [_label(token.token, token.present) for token in report.tokens],
            rotation=60,
            ha="right",
        )
        for label, token in zip(lower.get_xticklabels(), report.tokens, strict=True):
            label.set_color("black" if token.present else DROPPED)
        for one in (upper, lower):
            one.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: the picture cannot be written ({error}). Give a path that ends in .png or .svg."
        ) from error
    finally:
        plt.close(figure)
    return path


def _label(token: str, kept: bool) -> str:
    """A stroke through every letter of what was dropped."""
    text = token.replace("$", r"\$")
    return text if kept else "".join(f"{letter}\u0336" for letter in text)
