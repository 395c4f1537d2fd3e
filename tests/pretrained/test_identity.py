"""The empirical prior, and the NVIB that starts as the identity."""

import math

import pytest
import torch

from open_nvib import DenoisingAttention, EmpiricalPrior, IdentityNVIB

B, N, P, HEADS = 3, 7, 10, 2
D = P // HEADS
MASK = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 1 + [False] * 6])


@pytest.fixture
def x():
    return 1.5 * torch.randn(B, N, P, generator=torch.Generator().manual_seed(0)) + 0.3


@pytest.fixture
def nvib(x):
    layer = IdentityNVIB(P, d=D)
    layer.set_prior(EmpiricalPrior.measure([x], d=D))
    return layer


def test_the_prior_is_that_of_all_batches(x):
    prior = EmpiricalPrior.measure([x[:1], x[1:]], d=D)
    flat = x.flatten(0, 1)
    height = flat.square().sum(-1) / (2 * math.sqrt(D))
    torch.testing.assert_close(prior.mu, flat.mean(0))
    torch.testing.assert_close(prior.sigma, flat.std(0, correction=0))
    torch.testing.assert_close(prior.log_alpha0, height.mean())
    torch.testing.assert_close(prior.spread, height.std(correction=0))


def test_a_dimension_that_never_varies_has_a_finite_kl(x, nvib):
    constant = torch.cat([x[..., :-1], torch.ones(B, N, 1)], -1)
    nvib.set_prior(EmpiricalPrior.measure([constant], d=D))
    nvib.set_tau(alpha=1.0, sigma=0.1)
    assert nvib.posterior(constant, MASK).kl().gaussian.isfinite().all()


@pytest.mark.parametrize("tau_alpha", [math.inf, 40.0])
def test_attention_over_the_mean_is_ordinary_attention(x, nvib, tau_alpha):
    """Against torch's own attention, with padding."""
    torch.manual_seed(0)
    attention = DenoisingAttention(P, HEADS)
    nvib.set_tau(alpha=tau_alpha)
    found = attention(x, nvib.mean(x, MASK))
    q, k, v = (
        linear(x).unflatten(-1, (HEADS, D)).transpose(1, 2)
        for linear in (attention.to_query, attention.to_key, attention.to_value)
    )
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=MASK[:, None, None])
    torch.testing.assert_close(found, attention.to_output(plain.transpose(1, 2).flatten(2)), atol=1e-5, rtol=1e-5)


def test_a_layer_norm_leaves_the_dial_a_unit(x):
    normed = torch.nn.functional.layer_norm(x, (P,))
    prior = EmpiricalPrior.measure([normed], d=D)
    assert prior.spread < 1e-3
    layer = IdentityNVIB(P, d=D)
    layer.set_prior(prior)
    assert layer.tau_unit == 1.0


def test_the_posterior_is_the_mean_with_pseudo_counts(x, nvib):
    nvib.set_tau(alpha=0.5, sigma=0.2)
    posterior, mean = nvib.posterior(x, MASK), nvib.mean(x, MASK)
    torch.testing.assert_close(posterior.mean().log_alpha, mean.log_alpha)
    torch.testing.assert_close(posterior.mu[:, :-1][MASK], mean.mu[:, :-1][MASK])
    torch.testing.assert_close(posterior.log_sigma, mean.log_sigma)
    assert (posterior.alpha[:, -1] == 1).all()


@pytest.mark.parametrize("taus", [{"alpha": math.inf, "sigma": 0.1}, {"alpha": 1.0, "sigma": 0.0}])
def test_a_posterior_needs_noise_and_a_prior(x, nvib, taus):
    nvib.set_tau(**taus)
    with pytest.raises(ValueError, match="tau_alpha"):
        nvib.posterior(x)


def test_bad_dials_are_refused(nvib):
    for taus in ({"alpha": math.nan}, {"alpha": -math.inf}, {"sigma": -0.1}, {"delta": math.inf}):
        with pytest.raises(ValueError, match="IdentityNVIB"):
            nvib.set_tau(**taus)
    with pytest.raises(ValueError, match="vectors"):
        EmpiricalPrior.measure([], d=D)
