"""The paper's figure of the data: how sentence lengths are distributed, and which the partitions take."""

from pathlib import Path

import numpy as np

from open_nvib.text.data.prepared import Prepared

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")  # told apart by colour-blind eyes
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")
_SHOWN = 0.995  # the share of sentences that the axis reaches; the rest is a long thin tail


def draw_lengths(prepared: Prepared, path: str | Path) -> Path:
    """Draw the distribution of sentence lengths to `path`, in the format of its ending. Needs matplotlib."""
    from matplotlib.figure import Figure

    path = Path(path)
    lengths, config = prepared.lengths, prepared.recipe["config"]
    total = int(lengths.sum())
    widest = max(high for _, high in config["partitions"].values())
    last = max(int(np.searchsorted(lengths.cumsum(), _SHOWN * total)), widest) + 1
    tokens = np.arange(1, min(last, len(lengths) - 1) + 1)
    shares = 100 * lengths[tokens] / total
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(tokens, shares, width=1, color="0.82", label="not used")
    for index, (name, (low, high)) in enumerate(config["partitions"].items()):
        inside = (tokens >= low) & (tokens <= high)
        share = prepared.counts["partitions"][name]["available"] / total
        label = f"{name}, {low}–{high} tokens: {share:.1%}"
        colour, hatch = _COLOURS[index % len(_COLOURS)], _HATCHES[index % len(_HATCHES)]
        bars = axes.bar(tokens[inside], shares[inside], width=1, color=colour, label=label)
        for bar in bars:
            bar.set(hatch=hatch, edgecolor="white", linewidth=0)
    together = prepared.counts["in_bounds"] / total
    axes.set(xlabel="tokens in a sentence", ylabel="share of all sentences (%)", xlim=(0, last))
    axes.set_title(f"{prepared.recipe['source']['source']}: {total:,} sentences, {together:.2%} in use", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
