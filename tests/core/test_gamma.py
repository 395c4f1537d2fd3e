import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import open_nvib as nv
from open_nvib import distributions

ALPHAS = [1e-3, 0.1, 0.6362, 0.6364, 1.0, 5.0, 1e3]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_paper_sample_has_the_quantiles_of_the_paper(alpha):
    """Kolmogorov-Smirnov against the CDF that the printed formulas imply; a false alarm in 1 of 1000 seeds."""
    count = 20_000
    log_gamma = nv.sample_log_gamma(torch.full((count,), alpha, dtype=torch.float64), generator=generator()).numpy()
    if alpha < 0.6363:  # γ = (u α Γ(α))^(1/α), solved for u
        u = np.clip(np.exp(alpha * log_gamma - special.gammaln(1 + alpha)), 0, 1)
    else:  # γ = α + √α ε, truncated above zero: an atom at the floor, then the rest of the Gaussian
        truncated = log_gamma <= math.log(distributions.GAUSSIAN_FLOOR) + 1e-9
        atom = stats.norm.cdf(-math.sqrt(alpha))
        assert abs(truncated.mean() - atom) < 4 * math.sqrt(atom * (1 - atom) / count) + 1e-12
        below = stats.norm.cdf((np.exp(log_gamma[~truncated]) - alpha) / math.sqrt(alpha))
        u = (below - atom) / (1 - atom)
    assert stats.kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-8, *ALPHAS, 1e6])
def test_implicit_sample_is_a_gamma(alpha):
    """Kolmogorov-Smirnov against scipy's log-Gamma; a false alarm in 1 of 1000 seeds."""
    drawn = nv.sample_log_gamma(
        torch.full((20_000,), alpha).double(), method="implicit", generator=generator(1)
    ).numpy()
    if alpha < 1e-2:  # scipy's CDF underflows; there α log γ is -Exponential(1) to within O(α)
        assert stats.kstest(-alpha * drawn, "expon").pvalue > 1e-3
    else:
        assert stats.kstest(np.exp(drawn), stats.gamma(alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0])
def test_implicit_gradient_is_that_of_the_expectation(alpha):
    """d/dα E[log γ] = ψ₁(α), by the mean of pathwise gradients; 5 standard errors, seed 2."""
    shape = torch.full((200_000,), alpha, dtype=torch.float64, requires_grad=True)
    nv.sample_log_gamma(shape, method="implicit", generator=generator(2)).sum().backward()
    assert shape.grad is not None
    error = shape.grad.std() / math.sqrt(len(shape))
    assert abs(shape.grad.mean().item() - special.polygamma(1, alpha)) < 5 * error.item()


def test_paper_gradient_is_the_derivative_of_the_printed_formula():
    u = torch.linspace(0.05, 0.95, 7, dtype=torch.float64)
    for alpha in (0.1, 0.5, 2.0, 40.0):
        shape = torch.full_like(u, alpha, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a: distributions.paper_log_quantile(a, u), shape)
        assert torch.autograd.gradgradcheck(lambda a: distributions.paper_log_quantile(a, u), shape)


def test_paper_log_quantile_matches_the_formula_in_numpy():
    u = np.linspace(0.3, 0.99, 9)
    for alpha in (0.01, 0.4, 0.636, 0.637, 9.0):
        if alpha < 0.6363:
            expected = (u * alpha * special.gamma(alpha)) ** (1 / alpha)
        else:
            expected = alpha + math.sqrt(alpha) * stats.norm.ppf(u)
        got = distributions.paper_log_quantile(torch.tensor(alpha, dtype=torch.float64).expand(9), torch.tensor(u))
        np.testing.assert_allclose(np.exp(got.numpy()), expected, rtol=1e-9)


@pytest.mark.parametrize(("method", "tolerance"), [("paper", 0.03), ("implicit", 0.004)])
def test_mean_weight_is_the_share_of_alpha(method, tolerance):
    """E π = α/α₀: within 5 standard errors (0.004) for the exact sample, and nearly so for the approximation."""
    alpha = torch.tensor([0.2, 0.5, 0.0, 1.5, 4.0], dtype=torch.float64)
    log_pi = nv.sample_log_dirichlet(alpha.expand(100_000, -1), method=method, generator=generator(3))
    torch.testing.assert_close(log_pi.exp().mean(0), alpha / alpha.sum(), atol=tolerance, rtol=0)
    torch.testing.assert_close(log_pi.exp().sum(-1), torch.ones(100_000).double())


def test_implicit_dirichlet_has_the_variance_of_a_dirichlet():
    """Var π = m(1 − m)/(α₀ + 1); 5 % at 100,000 draws is over 5 standard errors here."""
    alpha = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    pi = nv.sample_log_dirichlet(alpha.expand(100_000, -1), method="implicit", generator=generator(4)).exp()
    mean = alpha / alpha.sum()
    torch.testing.assert_close(pi.var(0), mean * (1 - mean) / (alpha.sum() + 1), rtol=0.05, atol=0)


@pytest.mark.parametrize("method", ["paper", "implicit"])
def test_zero_alpha_has_no_weight_and_no_gradient(method):
    alpha = torch.tensor([[0.0, 0.3, 2.0], [0.0, 0.0, 1e-30]], requires_grad=True)
    log_pi = nv.sample_log_dirichlet(alpha, method=method, generator=generator())
    assert log_pi[alpha == 0].isneginf().all()
    assert log_pi[alpha > 0].isfinite().all()
    assert log_pi[1, 2] == 0
    log_pi.exp().square().sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()
    assert (alpha.grad[alpha == 0] == 0).all()


@pytest.mark.parametrize("method", ["paper", "implicit"])
def test_seeds_repeat_and_dtypes_are_at_least_float32(method):
    alpha = torch.rand(4, 5, generator=generator())
    draws = [nv.sample_log_dirichlet(alpha, method=method, generator=generator(7)) for _ in range(2)]
    assert torch.equal(*draws)
    assert not torch.equal(draws[0], nv.sample_log_dirichlet(alpha, method=method, generator=generator(8)))
    assert nv.sample_log_gamma(alpha.bfloat16(), method=method).dtype == torch.float32
    assert nv.sample_log_gamma(alpha.double(), method=method).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nv.sample_log_dirichlet(alpha, method=method).dtype == torch.float32
