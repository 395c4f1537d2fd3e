"""`fig:approximation`: how far the two approximations of the paper are from the true inverse CDF of a Gamma.

python -m open_nvib.experiments.gamma_figure docs/figures/gamma_approximation.svg
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import gammaincinv
from torch import Tensor

from open_nvib.gamma import SWITCH, gaussian_log_quantile, gaussian_quantile, small_alpha_log_quantile

Quantile = Callable[[Tensor, Tensor], Tensor]


def small_alpha_quantile(alpha: Tensor, u: Tensor) -> Tensor:
    return small_alpha_log_quantile(alpha, u).exp()


def truncated_gaussian_quantile(alpha: Tensor, u: Tensor) -> Tensor:
    return gaussian_log_quantile(alpha, u).exp()


CURVES: dict[str, Quantile] = {
    "inverse CDF approximation": small_alpha_quantile,
    "Gaussian approximation": gaussian_quantile,
    "Gaussian, truncated above zero as sampled": truncated_gaussian_quantile,
}


def mean_absolute_difference(quantile: Quantile, alpha: float) -> float:
    """∫₀¹ |F⁻¹(u) − approximation(u)| du. The integral is over Φ⁻¹(u), which resolves both tails."""

    def integrand(epsilon: float) -> float:
        u = torch.special.ndtr(torch.tensor(epsilon, dtype=torch.float64))
        approximate = quantile(torch.tensor(alpha, dtype=torch.float64), u).item()
        density = math.exp(-0.5 * epsilon**2) / math.sqrt(2 * math.pi)
        return abs(gammaincinv(alpha, u.item()) - approximate) * density

    where_truncation_begins = -math.sqrt(alpha)
    return quad(integrand, -8, 8, limit=400, points=[where_truncation_begins, 0.0])[0]


def crossing(gaussian: Quantile = gaussian_quantile) -> float:
    """The α at which the two approximations are equally far from the truth.

    The paper prints 0.6363, which the average over the grid u = 1/150, 2/150, … gives; the integral itself gives
    0.6334. With the Gaussian truncated above zero, as it must be to sample, the two are equal at 0.4074.
    """

    def lead(alpha: float) -> float:
        return mean_absolute_difference(small_alpha_quantile, alpha) - mean_absolute_difference(gaussian, alpha)

    low, high = 0.1, 1.5
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if lead(middle) < 0 else (low, middle)
    return (low + high) / 2


def draw(path: Path) -> None:
    """Draw the figure to `path`, in the format of its ending."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    alphas = np.linspace(0.02, 1.5, 75)
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    looks = (("#0072B2", "-"), ("#009E73", "--"), ("#D55E00", "-."))
    for (name, quantile), (colour, style) in zip(CURVES.items(), looks, strict=True):
        values = [mean_absolute_difference(quantile, alpha) for alpha in alphas]
        axes.plot(alphas, values, style, color=colour, label=name, linewidth=2)
    for gaussian in (gaussian_quantile, truncated_gaussian_quantile):
        equal = crossing(gaussian)
        height = mean_absolute_difference(small_alpha_quantile, equal)
        axes.plot([equal], [height], "o", color="0.2")
        axes.annotate(f"α = {equal:.4f}", (equal, height), (8, -12), textcoords="offset points", fontsize=9)
    axes.set(xlabel="α", ylabel="mean |difference| from the\ntrue inverse CDF", xlim=(0, 1.5), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw how far the Gamma approximations are from the truth.")
    parser.add_argument("output", type=Path, help="where to write the figure, such as gamma.svg or gamma.png")
    path = parser.parse_args().output
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(path)
    print(f"{path}: the approximations are equally good at α = {crossing():.4f}; the sampler switches at {SWITCH}")


if __name__ == "__main__":
    main()
