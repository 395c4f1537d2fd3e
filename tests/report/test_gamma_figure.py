import numpy as np
import pytest
from scipy.special import gamma as gamma_function
from scipy.special import gammaincinv, ndtri

from open_nvib.report.figures.gamma import (
    crossing,
    draw_gamma,
    gaussian_quantile,
    mean_absolute_difference,
    small_alpha_quantile,
    truncated_gaussian_quantile,
)


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


def test_the_figure_is_drawn():
    text = draw_gamma()
    assert text.startswith("<svg")
    assert "α = 0.6334" in text
    assert "α = 0.4074" in text
    assert len(text) < 150_000
