"""Why a small pseudo-count is silent: the spread of log π in a sample, against what attention has to tell tokens apart.

python -m tools.figures_of_docs.silence RUN RUN --output docs/results/dropping/silence

Runs are NVAEs without `keep_share`. Writes the figure as .svg and the numbers in it as .json.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import polygamma

from open_nvib.report.figures.style import canvas, style, to_svg
from open_nvib.store.files import write_json, write_text
from open_nvib.text import Run, load_prepared, load_run
from open_nvib.text.drawing import BLUE, GREEN, MUTED, VERMILION
from open_nvib.text.model.autoencoder import IGNORED
from open_nvib.text.model.decoding import make_batch

SENTENCES = 400
QUANTILES = (0.1, 0.5, 0.9)
DELTAS = (0.3, 0.1, 0.05, 0.03)


@torch.no_grad()
def measure_leads(run: Run) -> list[float]:
    """Quantiles of the lead of the best key over the next one, without log α, at the first cross-attention, in nats."""
    model: Any = run.model
    texts = load_prepared(run.config.data).split(run.config.partition, "validation")["input_ids"][:SENTENCES]
    batch = make_batch(model, [list(text) for text in texts])
    mixture = model.encoder.posterior(batch["input_ids"], batch["attention_mask"]).mean()
    layer = model.decoder.layers[0]
    written = layer.recall(model.embed(model.shift_right(batch["labels"])))
    weights = layer.cross_attention.weights(layer.norms[1](written), layer.cross_attention.project(mixture)).mean(1)
    match = weights.clamp(min=1e-37).log() - mixture.log_alpha.unsqueeze(1)
    best, second = match.masked_fill(mixture.log_alpha.unsqueeze(1).isneginf(), -torch.inf).topk(2).values.unbind(-1)
    return (best - second)[batch["labels"] != IGNORED].quantile(torch.tensor(QUANTILES)).tolist()


def deviation_of_log(alpha: Any) -> Any:
    """The standard deviation of log x for x ~ Gamma(α, 1): √ψ′(α)."""
    return np.sqrt(polygamma(1, alpha))


def draw_silence(leads: Mapping[str, Sequence[float]]) -> str:
    """The figure as SVG; `leads` are the quantiles of each model, by what the legend calls it."""
    alphas = np.geomspace(0.02, 2, 100)
    with style():
        figure, axes = canvas(3.6, width=6)
        for (name, (low, middle, high)), colour in zip(leads.items(), (GREEN, VERMILION), strict=False):
            axes.axhspan(low, high, color=colour, alpha=0.15, linewidth=0)
            axes.axhline(middle, color=colour, linewidth=1.2, label=f"lead of the best key, {name}")
        axes.plot(alphas, deviation_of_log(alphas), color=BLUE, label="standard deviation of log π in a sample")
        for delta in DELTAS:
            axes.axvline(delta, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="pseudo-count α of a token", ylabel="nats", ylim=(0.6, 400))
        axes.set_xticks([*DELTAS, 1], [*map(str, DELTAS), "1"])
        axes.set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axes.minorticks_off()
        axes.legend(loc="upper right")
        return to_svg(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw why a small pseudo-count is silent.")
    parser.add_argument("runs", type=Path, nargs="+", help="one or two runs of an NVAE without keep_share")
    parser.add_argument("--output", type=Path, required=True, help="the files to write, without .svg and .json")
    given = parser.parse_args()
    runs: list[Any] = [load_run(path) for path in given.runs]
    leads = {f"Δ = {run.model.encoder.bottleneck.nvib.prior.delta.item():.2g}": measure_leads(run) for run in runs}
    quantiles = {name: dict(zip(map(str, QUANTILES), values, strict=True)) for name, values in leads.items()}
    spread = {str(delta): float(deviation_of_log(delta)) for delta in DELTAS}
    numbers = {"lead of the best key, nats": quantiles, "sd of log π": spread}
    write_text(given.output.with_suffix(".svg"), draw_silence(leads))
    write_json(given.output.with_suffix(".json"), numbers, indent=1)
    print(numbers)


if __name__ == "__main__":
    main()
