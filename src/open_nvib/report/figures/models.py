"""Figures of single models: vectors kept by length, lengths of samples, paths between texts, the course of training.

The paper's `fig:bleu-seq-vectors` (right) and `fig:number_vectors_OOD`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from open_nvib.report.figures.style import REAL_TEXT, canvas, fit_perplexity, look_of, style, to_svg
from open_nvib.report.results import Results, RowResults
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.runs import LogEntry
from open_nvib.text.drawing import BLUE, GREEN, LINE, MUTED, ORANGE, PALETTE, PAPER, PINK, VERMILION, save_figure

if TYPE_CHECKING:  # it imports datasets
    from open_nvib.text.data import Prepared

STRIDE = 0.5  # of the baseline beside which the paper draws its model: every second vector is dropped


@dataclass(frozen=True, eq=False)
class KeptByLength:
    """Vectors kept of the texts of each length: how many texts there are, the mean number and its deviation."""

    lengths: np.ndarray
    sentences: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    def fit(self) -> tuple[float, float]:
        """Slope and intercept of the least squares over texts; the mean alone where all are of one length."""
        if len(self.lengths) < 2:
            return 0.0, float(self.mean.mean())
        slope, intercept = np.polyfit(self.lengths, self.mean, 1, w=np.sqrt(self.sentences))
        return float(slope), float(intercept)


def kept_by_length(evaluations: Sequence[Evaluation], partition: str) -> KeptByLength | None:
    """Pool the texts of several seeds: the deviation has that within seeds and that between them."""
    sums: dict[int, np.ndarray] = {}
    for evaluation in evaluations:
        found = (evaluation.reconstruction or {}).get(partition)
        for entry in found.by_length if found else ():
            moments = entry.sentences * np.array([1.0, entry.kept, entry.sd**2 + entry.kept**2])
            sums[entry.length] = sums.get(entry.length, 0.0) + moments
    lengths = sorted(length for length, moments in sums.items() if moments[0] > 0)
    if not lengths:
        return None
    count, first, second = np.stack([sums[length] for length in lengths], 1)
    mean = first / count
    return KeptByLength(np.array(lengths), count, mean, np.sqrt(np.maximum(0.0, second / count - mean**2)))


def draw_vectors(evaluations: Sequence[Evaluation], *, family: str, name: str) -> str | None:
    """Draw a panel for each partition: the one that was trained on, then those that the model never saw."""
    names = list(evaluations[0].reconstruction or {}) if evaluations else []
    found = {partition: kept for partition in names if (kept := kept_by_length(evaluations, partition))}
    if not found:
        return None
    seen = names[0]
    line = found[seen].fit() if seen in found else None
    with style():
        figure, grid = canvas(3.5, columns=len(found), width=7.2 if len(found) > 1 else 4.8, squeeze=False)
        for axes, (partition, kept) in zip(grid[0], found.items(), strict=True):
            _draw_kept(axes, kept, family=family, name=name, learned=None if partition == seen else line)
            lengths = f"{kept.lengths[0]}–{kept.lengths[-1]} tokens"
            known = "as trained on" if partition == seen else "never seen in training"
            axes.set_title(f"{partition} ({lengths}),\n{known}")  # one line is wider than a panel
            axes.set(xlabel="input length n (tokens)", ylabel="vectors kept")
        handles = {text: handle for axes in grid[0] for handle, text in zip(*axes.get_legend_handles_labels())}  # noqa: B905
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, columnspacing=1.6)
        return to_svg(figure)


def _draw_kept(axes: Axes, kept: KeptByLength, *, family: str, name: str, learned: tuple[float, float] | None) -> None:
    """Draw mean and deviation with a linear fit, and the fit of the trained lengths, `learned`, continued."""
    look = look_of(family)
    ends = np.array([kept.lengths[0], kept.lengths[-1]], dtype=float)
    axes.plot(ends, ends, color=MUTED, linewidth=1.2, linestyle=(0, (1, 1.6)), label="all: y = n")
    axes.plot(ends, (1 - STRIDE) * ends, color=ORANGE, linewidth=1.6, linestyle=(0, (5, 2)), label="VTS S=0.5: y = n/2")
    if learned is not None:
        dashes: Any = {"linewidth": 1.3, "linestyle": (0, (3, 1.5, 1, 1.5))}
        label = "fit of the trained lengths, continued"
        axes.plot(ends, learned[0] * ends + learned[1], color=look.colour, label=label, **dashes)
    slope, intercept = kept.fit()
    axes.plot(ends, slope * ends + intercept, color=look.colour, linewidth=1.4, label="linear fit")
    low = np.maximum(0, kept.mean - kept.sd)
    axes.fill_between(kept.lengths, low, kept.mean + kept.sd, color=look.colour, alpha=0.18, linewidth=0)
    marks: Any = {"markeredgecolor": PAPER, "markeredgewidth": 0.6, "markersize": 5}
    label = f"{name}: mean and deviation"
    axes.plot(kept.lengths, kept.mean, look.marker, color=look.colour, label=label, **marks)
    line = f"y = {slope:.2f} n {'+' if intercept >= 0 else '−'} {abs(intercept):.1f}"
    axes.annotate(line, (0.04, 0.94), xycoords="axes fraction", va="top", color=look.colour, fontsize=9)
    axes.set_ylim(0, None)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))


MOST_PANELS = 16
PANELS_IN_A_LINE = 4
SHARE_SHOWN = 0.999  # of the samples, the share that the axis reaches; the rest is a long thin tail
SHARE_OF_DATA_SHOWN = 0.995
HATCHES = ("", "//", "..", "xx", "\\\\", "++")  # of one partition after the other


def sample_lengths(evaluations: Sequence[Evaluation]) -> tuple[np.ndarray, np.ndarray] | None:
    """Share of samples, and of data, by number of tokens, in percent over all seeds; None for a model not sampled."""
    parts = [evaluation.generation for evaluation in evaluations if evaluation.generation]
    samples, data = _shares([part.lengths for part in parts]), _shares([part.real.lengths for part in parts])
    return None if samples is None or data is None else (samples, data)


def _shares(histograms: Sequence[Sequence[int]]) -> np.ndarray | None:
    """Percent of all histograms together; None where all are empty."""
    total = np.array([sum(counts) for counts in zip_longest(*histograms, fillvalue=0)])
    return 100 * total / max(1.0, total.sum()) if total.size else None


def draw_sample_lengths(results: Results) -> str | None:
    """Draw a small panel for each row that was sampled, at most 16, in their order."""
    found = [(row, sample_lengths(row.evaluations)) for row in results.measured]
    rows = [(row, *shares) for row, shares in found if shares][:MOST_PANELS]
    if not rows:
        return None
    columns = min(PANELS_IN_A_LINE, len(rows))
    lines = -(-len(rows) // columns)
    shown = [shares for _, *both in rows for shares in both]
    last = max(int(np.searchsorted(shares.cumsum(), 100 * SHARE_SHOWN)) for shares in shown)
    highest = max(float(shares.max()) for shares in shown)
    with style():
        width, height = (4.8, 2.8) if len(rows) == 1 else (7.2, 0.55 + 1.35 * lines)
        figure, grid = canvas(height, columns=columns, rows=lines, width=width, sharex=True, sharey=True, squeeze=False)
        for axes, (row, samples, data) in zip(grid.flat, rows, strict=False):
            axes.fill_between(np.arange(len(data)), data, step="mid", color=LINE, edgecolor=MUTED, lw=0.6, label="data")
            axes.step(np.arange(len(samples)), samples, where="mid", color=look_of(row.family).colour, lw=1.5)
            axes.set_title(f"{row.family} {results.short_titles[row.name]}", fontsize=7.5, pad=3)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set(xlim=(0, last + 1), ylim=(0, 1.06 * highest))
        for axes in grid.flat[len(rows) :]:
            axes.set_axis_off()
        figure.supxlabel("tokens in a sentence (filled: data, line: samples)", fontsize=9)
        figure.supylabel("share of sentences (%)", fontsize=9)
        return to_svg(figure)


def path_perplexity(evaluations: Sequence[Evaluation]) -> np.ndarray | None:
    """Perplexity along the path from one text to another, a line for each seed.

    None where nothing was interpolated, or seeds took different numbers of steps.
    """
    found = [evaluation.interpolation.perplexity for evaluation in evaluations if evaluation.interpolation]
    lines = [line for line in found if line and None not in line]
    return np.array(lines, dtype=float) if len({len(line) for line in lines}) == 1 else None


def draw_paths(rows: Sequence[RowResults], real: float | None) -> str | None:
    """Draw a line for each row over the weight of the second text; `real` is the perplexity of held-out text."""
    paths = [(row, lines) for row in rows if (lines := path_perplexity(row.evaluations)) is not None]
    if not paths:
        return None
    with style():
        figure, axes = canvas(3.4, width=5.6)
        for row, lines in paths:
            look, title = look_of(row.family), row.title.replace("_", "")
            across, mean = np.linspace(0, 1, lines.shape[1]), lines.mean(0)
            if len(lines) > 1:
                sd = lines.std(0, ddof=1)
                axes.fill_between(across, mean - sd, mean + sd, color=look.colour, alpha=0.16, linewidth=0)
            axes.plot(across, mean, marker=look.marker, color=look.colour, markeredgecolor=PAPER, label=title)
        if real is not None:
            axes.axhline(real, **REAL_TEXT, label="real text")
        axes.set(xlabel="weight of the second text", ylabel="perplexity of the texts")
        values = [value for _, lines in paths for value in lines.flat] + ([] if real is None else [real])
        fit_perplexity(axes, "y", values)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0\nfirst text", "0.25", "0.5", "0.75", "1\nsecond text"])
        figure.legend(loc="outside upper center", ncols=min(3, len(paths) + 1))
        return to_svg(figure)


def draw_training(log: Sequence[LogEntry]) -> str | None:
    """Draw cross-entropy, the two KL divergences, and what is kept and reconstructed, over steps."""
    if not any("cross_entropy" in entry.values for entry in log):
        return None
    with style():
        figure, (loss, kl, kept) = canvas(3.5, columns=3, width=7.6)
        _curve(loss, log, "cross_entropy", "training", BLUE, "-")
        _curve(loss, log, "eval_loss", "validation", VERMILION, "o--")
        loss.set(title="cross-entropy\n(nats per token)", ylim=(0, None))
        _curve(kl, log, "kl_gaussian", "L_G / nd", GREEN, "-")
        _curve(kl, log, "kl_dirichlet", "L_D / n", PINK, "--")
        kl.set(title="KL divergences\n(nats)", ylim=(0, None))
        _curve(kept, log, "kept", "ν, vectors kept", ORANGE, "-", 100)
        _curve(kept, log, "eval_bleu", "BLEU", BLUE, "s--")
        _curve(kept, log, "eval_exact", "exact", VERMILION, "^:", 100)
        kept.set(title="kept and reconstructed\n(%, BLEU)", ylim=(-3, 104))
        for axes in (loss, kl, kept):
            axes.set_xlabel("step")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))  # below: the curves may go anywhere
        return to_svg(figure)


def _curve(
    axes: Axes, log: Sequence[LogEntry], name: str, label: str, colour: str, line: str, scale: float = 1.0
) -> None:
    points = [(entry.step, scale * entry.values[name]) for entry in log if name in entry.values]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, line, color=colour, label=label, linewidth=1.6, markersize=5)


def draw_lengths(prepared: "Prepared", path: str | Path) -> Path:
    """Draw the distribution of sentence lengths, with the partitions in colour, to a file.

    The ending of `path` decides the format.
    """
    lengths, bounds = prepared.lengths, prepared.recipe.settings["partitions"]
    partitions = {name: bounds[name] for name in prepared.partitions}
    total = int(lengths.sum())
    widest = max(high for _, high in partitions.values())
    last = max(int(np.searchsorted(lengths.cumsum(), SHARE_OF_DATA_SHOWN * total)), widest) + 1
    tokens = np.arange(1, min(last, len(lengths) - 1) + 1)
    shares = 100 * lengths[tokens] / total
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(tokens, shares, width=1, color="0.82", label="not used")
    for index, (name, (low, high)) in enumerate(partitions.items()):
        inside = (tokens >= low) & (tokens <= high)
        label = f"{name}, {low}–{high} tokens: {prepared.counts.partitions[name].available / total:.1%}"
        colour, hatch = PALETTE[index % len(PALETTE)], HATCHES[index % len(HATCHES)]
        look: Any = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(tokens[inside], shares[inside], width=1, label=label, **look)
    axes.set(xlabel="tokens in a sentence", ylabel="share of all sentences (%)", xlim=(0, last))
    name, together = prepared.recipe.source["source"], prepared.counts.in_bounds / total
    axes.set_title(f"{name}: {total:,} sentences, {together:.2%} in use", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)
