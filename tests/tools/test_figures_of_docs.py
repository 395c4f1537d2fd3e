"""Figures of the documentation: what they draw by other means, and that the committed ones are these."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import gamma as gamma_function
from scipy.special import gammaincinv, ndtri

from open_nvib.attention import attend_gaussians
from tools.figures_of_docs.attention import QUERIES, D, draw_attention, example
from tools.figures_of_docs.gamma import (
    crossing,
    draw_gamma,
    gaussian_quantile,
    mean_absolute_difference,
    small_alpha_quantile,
    truncated_gaussian_quantile,
)

ROOT = Path(__file__).parents[2]
FIGURES = {"denoising_attention": draw_attention, "gamma_approximation": draw_gamma}


def average_over_a_grid(alpha, truncate=False, u=(np.arange(200_000) + 0.5) / 200_000):  # noqa: B008
    """Both differences as the paper describes them, in numpy: the mean over values of u."""
    truth = gammaincinv(alpha, u)
    gaussian = alpha + np.sqrt(alpha) * ndtri(u)
    gaussian = np.maximum(gaussian, 1e-6) if truncate else gaussian
    small = (u * alpha * gamma_function(alpha)) ** (1 / alpha)
    return np.abs(truth - small).mean(), np.abs(truth - gaussian).mean()


@pytest.mark.parametrize("alpha", [0.2, 0.6363, 1.2])
def test_differences_are_the_average_over_a_grid(alpha):
    small, gaussian = average_over_a_grid(alpha)
    assert mean_absolute_difference(small_alpha_quantile, alpha) == pytest.approx(small, rel=1e-3)
    assert mean_absolute_difference(gaussian_quantile, alpha) == pytest.approx(gaussian, rel=1e-3)
    truncated = average_over_a_grid(alpha, truncate=True)[1]
    assert mean_absolute_difference(truncated_gaussian_quantile, alpha) == pytest.approx(truncated, rel=1e-3)


def test_the_approximations_cross_where_the_paper_says():
    """Printed: 0.6363, as a grid of 150 values of u gives it. The integral gives 0.6334."""
    small, gaussian = average_over_a_grid(0.6363, u=np.arange(1, 150) / 150)
    assert small == pytest.approx(gaussian, rel=2e-4)
    assert crossing() == pytest.approx(0.6363, abs=0.005)
    assert crossing() == pytest.approx(0.63339, abs=1e-4)
    small, gaussian = average_over_a_grid(crossing())
    assert small == pytest.approx(gaussian, rel=1e-3)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_light_the_same_again_and_those_of_the_docs(name):
    text = FIGURES[name]()
    assert text.startswith("<svg")
    assert text == FIGURES[name]()
    assert len(text) < 150_000
    words = {"denoising_attention": ["expected value", "dropped"], "gamma_approximation": ["α = 0.6334", "α = 0.4074"]}
    assert all(word in text for word in words[name])
    committed = (ROOT / "docs" / "figures" / f"{name}.svg").read_text()
    assert len(text) == pytest.approx(len(committed), rel=0.2)  # other versions of matplotlib write other paths


def test_a_figure_is_written_to_a_path(tmp_path):
    path = tmp_path / "new" / "attention.svg"
    command = [sys.executable, "-m", "tools.figures_of_docs.attention", str(path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    assert path.read_text() == draw_attention()


def test_attention_draws_what_bayes_rule_gives():
    """The expected value by quadrature over the plane: E[v | u] with v ~ G₀ and u ~ N(v, √d I)."""
    posterior = example()
    mean = posterior.mean()
    u = torch.tensor(QUERIES)
    drawn = attend_gaussians(u, mean.mu[0], mean.log_sigma[0], mean.log_alpha[0], d=D)
    line = torch.linspace(-12, 12, 481)
    plane = torch.cartesian_prod(line, line)
    gaussians = torch.distributions.Normal(posterior.mu[0], posterior.log_sigma[0].exp())
    prior = (gaussians.log_prob(plane.unsqueeze(1)).sum(-1).exp() * posterior.alpha[0]).sum(-1)
    noise = torch.distributions.Normal(plane.unsqueeze(1), D**0.25).log_prob(u).sum(-1).exp()  # (points, queries)
    weights = noise * prior.unsqueeze(-1)
    torch.testing.assert_close(drawn, (weights.mT @ plane) / weights.sum(0).unsqueeze(-1), atol=1e-3, rtol=1e-3)
