import math

import numpy as np
import pytest
import reference
import torch
from scipy.special import digamma, gammaln
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Dirichlet, Normal, kl_divergence

import open_nvib as nv


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_gaussian_kl_is_torchs():
    torch.manual_seed(0)
    mu, log_sigma = torch.randn(2, 3, 5).double(), torch.randn(2, 3, 5).double()
    prior_mu, prior_log_sigma = torch.randn(5).double(), torch.randn(5).double()
    unit = kl_divergence(Normal(mu, log_sigma.exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(nv.gaussian_kl(mu, log_sigma), unit)
    other = kl_divergence(Normal(mu, log_sigma.exp()), Normal(prior_mu, prior_log_sigma.exp())).sum(-1)
    got = nv.gaussian_kl(mu, log_sigma, prior_mu=prior_mu, prior_log_sigma=prior_log_sigma)
    torch.testing.assert_close(got, other)


def test_gaussian_kl_by_monte_carlo():
    """E_q[log q − log p] over 400,000 draws, 5 standard errors, seed 0."""
    generator = torch.Generator().manual_seed(0)
    mu, log_sigma = tensor([0.4, -1.0]), tensor([0.3, -0.5])
    z = mu + log_sigma.exp() * torch.randn(400_000, 2, generator=generator, dtype=torch.float64)
    ratio = (Normal(mu, log_sigma.exp()).log_prob(z) - Normal(0.0, 1.0).log_prob(z)).sum(-1)
    error = ratio.std() / math.sqrt(len(ratio))
    assert abs(nv.gaussian_kl(mu, log_sigma).item() - ratio.mean()) < 5 * error


def test_gaussian_kl_keeps_its_digits_next_to_the_prior():
    """At s = log σ = 1e-4, KL = s² + O(s³) per dimension, from float32 input."""
    got = nv.gaussian_kl(torch.zeros(1, 1), torch.full((1, 1), 1e-4))
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.item(), 1e-8 * (1 + 2 / 3 * 1e-4), rtol=1e-6)
    assert nv.gaussian_kl(torch.zeros(2, 3), torch.zeros(2, 3)).eq(0).all()


@pytest.mark.parametrize("kappa0", [1, 2, 21, 500])
@pytest.mark.parametrize(("alpha0_q", "alpha0_p"), [(0.3, 1.0), (1.0, 1.0), (7.0, 1.0), (7.0, 4.6), (3e4, 2.0)])
def test_dirichlet_kl_is_between_two_symmetric_dirichlets(alpha0_q, alpha0_p, kappa0):
    got = nv.dirichlet_kl(tensor(alpha0_q), alpha0_p, kappa0).item()
    if kappa0 == 1:
        assert abs(got) < 1e-9  # one category has nothing to choose
        return
    q, p = (Dirichlet(torch.full((kappa0,), a / kappa0, dtype=torch.float64)) for a in (alpha0_q, alpha0_p))
    np.testing.assert_allclose(got, kl_divergence(q, p).item(), rtol=1e-9, atol=1e-9)


def test_exact_kl_at_kappa_one_is_between_two_dirichlets():
    alpha = tensor([0.2, 3.0, 1.4, 1.0], [5.0, 1e-3, 0.1, 1.0])
    for alpha0_p in (1.0, 2.7):
        shrunk = alpha * alpha0_p / alpha.sum(-1, keepdim=True)
        expected = kl_divergence(Dirichlet(alpha), Dirichlet(shrunk))
        torch.testing.assert_close(nv.dirichlet_kl_exact(alpha, alpha0_p, 1), expected)


def test_exact_kl_is_the_printed_equation():
    alpha, kappa = tensor(0.7, 2.0, 1.3, 1.0), tensor(1, 4, 2, 9)
    expected = reference.dirichlet_kl_as_printed(alpha.numpy(), 1.9, kappa.numpy())
    np.testing.assert_allclose(nv.dirichlet_kl_exact(alpha, 1.9, kappa).item(), expected, rtol=1e-12)


def test_exact_kl_by_monte_carlo_over_the_factors():
    """KL of the factorised weights, ρ ~ Dir(α) and π′ᵢ ~ Dir(αᵢ/κᵢ, …), from 200,000 draws; 5 errors, seed 0."""
    torch.manual_seed(0)
    alpha, kappa, alpha0_p = tensor(1.5, 3.0, 1.0), [1, 3, 2], 2.0
    shrunk = alpha * alpha0_p / alpha.sum()
    pairs = [(Dirichlet(alpha), Dirichlet(shrunk))]
    for a, s, k in zip(alpha, shrunk, kappa, strict=True):
        if k > 1:
            pairs.append((Dirichlet((a / k).expand(k)), Dirichlet((s / k).expand(k))))
    ratio = torch.zeros(200_000, dtype=torch.float64)
    for q, p in pairs:
        draws = q.sample((len(ratio),)).clamp(min=1e-300)
        ratio += q.log_prob(draws) - p.log_prob(draws)
    error = ratio.std() / math.sqrt(len(ratio))
    got = nv.dirichlet_kl_exact(alpha, alpha0_p, torch.tensor(kappa)).item()
    assert abs(got - ratio.mean()) < 5 * error


def test_expected_kl_is_the_exact_one_at_the_expected_kappa():
    """`eq:KLloss-kappa` is `eq:KLloss` with κᵢ = κ₀ αᵢ/α₀."""
    alpha = tensor(0.4, 2.5, 1.0)
    exact = nv.dirichlet_kl_exact(alpha, 1.3, 12 * alpha / alpha.sum())
    torch.testing.assert_close(nv.dirichlet_kl(alpha.sum(), 1.3, 12), exact)


@pytest.mark.parametrize("kappa", [1.0, 3.0])
def test_exact_kl_at_zero_is_its_limit(kappa):
    """The value at αᵢ = 0 is where the printed equation goes as αᵢ → 0, and padding (κᵢ = 0) adds nothing."""
    kappas = torch.full((3,), kappa, dtype=torch.float64)
    near = reference.dirichlet_kl_as_printed(np.array([2.0, 1e-12, 1.0]), 1.4, kappas.numpy())
    got = nv.dirichlet_kl_exact(tensor(2.0, 0.0, 1.0), 1.4, kappas)
    np.testing.assert_allclose(got.item(), near, rtol=1e-8)
    padded = nv.dirichlet_kl_exact(tensor(2.0, 0.0, 1.0), 1.4, tensor(kappa, 0, kappa))
    torch.testing.assert_close(padded, nv.dirichlet_kl_exact(tensor(2.0, 1.0), 1.4, kappas[:2]))


def test_dirichlet_kl_has_five_digits_at_ten_million_from_float32():
    a, k = 1e7, 21
    expected = (
        gammaln(a) - gammaln(1.0) + (a - 1) * (digamma(a / k) - digamma(a)) + k * (gammaln(1 / k) - gammaln(a / k))
    )
    got = nv.dirichlet_kl(torch.tensor(1e7), 1.0, 21)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.item(), expected, rtol=1e-6)


def test_kl_is_zero_at_the_prior_and_positive_elsewhere():
    for alpha0 in (0.5, 1.0, 40.0):
        torch.testing.assert_close(nv.dirichlet_kl(tensor(alpha0), alpha0, 9), tensor(0.0), atol=1e-12, rtol=0)
    grid = torch.logspace(-3, 5, 60, dtype=torch.float64)
    assert (nv.dirichlet_kl(grid, 1.0, 9) >= -1e-9).all()
    assert (nv.dirichlet_kl_exact(torch.stack([grid, torch.ones_like(grid)], -1), 1.7, 1) >= -1e-9).all()


def test_derivatives():
    alpha = tensor([0.2, 3.0, 1.0], [1.1, 0.4, 1.0]).requires_grad_()
    kappa = tensor(1, 3, 2)
    for function in (lambda a: nv.dirichlet_kl_exact(a, 1.5, kappa), lambda a: nv.dirichlet_kl(a.sum(-1), 1.5, 6)):
        assert gradcheck(function, alpha)
        assert gradgradcheck(function, alpha)
    mu, log_sigma = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert gradcheck(nv.gaussian_kl, (mu, log_sigma))
    assert gradgradcheck(nv.gaussian_kl, (mu, log_sigma))


def test_gradient_at_zero_is_the_one_from_above():
    at_zero, near = tensor(0.0, 2.0, 1.0).requires_grad_(), tensor(1e-9, 2.0, 1.0).requires_grad_()
    for alpha in (at_zero, near):
        nv.dirichlet_kl_exact(alpha, 1.4, 1).backward()
    torch.testing.assert_close(at_zero.grad, near.grad, atol=1e-7, rtol=1e-6)


def test_numbers_follow_the_tensor_to_its_device():
    on_meta = torch.ones(2, device="meta")
    assert nv.dirichlet_kl(on_meta, 1.0, 3).device.type == "meta"
    assert nv.dirichlet_kl_exact(on_meta, 1.0, 3).device.type == "meta"
    assert nv.gaussian_kl(on_meta[None], on_meta[None], prior_mu=1.0).device.type == "meta"
