"""The readings of a posterior: the closed form of the gap against Monte Carlo, and a case in which they part."""

import math

import pytest
import torch
from torch.distributions import Normal

import open_nvib as nv

BATCH, QUERIES, N, P, D = 2, 3, 5, 7, 4


def test_likelihood_gap_is_that_of_its_definition():
    """log E[g(u; z)] − E[log g(u; z)] by 2,000,000 draws: an error above 0.01 is one of ten standard deviations."""
    torch.manual_seed(0)
    u, mu, sigma = torch.tensor([[1.5]]), torch.tensor([[0.2]]), torch.tensor([[0.8]])
    z = mu + sigma * torch.randn(2_000_000, 1).double()
    log_likelihood = Normal(z, D**0.25).log_prob(u.double()).sum(-1)
    expected = log_likelihood.logsumexp(0) - math.log(len(z)) - log_likelihood.mean()
    gap = nv.likelihood_gap(u, mu, sigma.log(), d=D)
    torch.testing.assert_close(gap.squeeze().double(), expected, atol=0.01, rtol=0)


def test_likelihood_gap_adds_up_over_dimensions_and_batches():
    torch.manual_seed(1)
    u, mu = torch.randn(BATCH, QUERIES, P).double(), torch.randn(BATCH, N, P).double()
    log_sigma = torch.randn(BATCH, N, P).double()
    gap = nv.likelihood_gap(u, mu, log_sigma, d=D)
    parts = [nv.likelihood_gap(u[..., h : h + 1], mu[..., h : h + 1], log_sigma[..., h : h + 1], d=D) for h in range(P)]
    torch.testing.assert_close(gap, sum(parts))
    assert gap.shape == (BATCH, QUERIES, N)
    assert (gap > 0).all()
    torch.testing.assert_close(nv.likelihood_gap(u, mu, log_sigma - 40, d=D), torch.zeros_like(gap))


def posterior(log_sigma: float) -> nv.Posterior:
    prior = nv.ConditionalBDP(torch.zeros(P), torch.zeros(P), torch.tensor(1.0), torch.tensor(1.0))
    mu = torch.cat([torch.randn(BATCH, N, P), torch.zeros(BATCH, 1, P)], 1)
    spread = torch.cat([torch.full((BATCH, N, P), log_sigma), torch.zeros(BATCH, 1, P)], 1)
    alpha = torch.cat([torch.full((BATCH, N), 5.0), torch.ones(BATCH, 1)], 1)
    return nv.Posterior(alpha=alpha, mu=mu, log_sigma=spread, mask=torch.ones(BATCH, N + 1).bool(), prior=prior)


def test_points_are_the_mean_without_noise():
    torch.manual_seed(2)
    attention, query, latent = nv.DenoisingAttention(P), torch.randn(BATCH, QUERIES, P), posterior(-40.0)
    latent = latent.prune(0.0)
    sure = nv.GaussianMixture(latent.mu, torch.full_like(latent.mu, -40.0), latent.alpha.log())
    torch.testing.assert_close(attention(query, sure.points()), attention(query, sure))
    wide = nv.GaussianMixture(latent.mu, torch.ones_like(latent.mu), latent.alpha.log() + 7)  # not normalised
    torch.testing.assert_close(attention(query, wide.points()), attention(query, sure))  # all are as wide: it cancels


@pytest.mark.parametrize("heads", [1, 2])
def test_points_have_the_average_log_likelihood_of_draws(heads):
    """log α + E[log g(u; z)] by 200,000 pairs z, 2μ − z: an error of 0.01 is over ten standard deviations."""
    torch.manual_seed(5)
    p, attention = 6, nv.DenoisingAttention(6, heads)
    mu, log_sigma, log_alpha = torch.randn(1, N, p), 0.5 * torch.randn(1, N, p), torch.randn(1, N)
    query = torch.randn(1, QUERIES, p)
    u = attention.latent_queries(query)  # (1, heads, queries, p)
    noise = log_sigma.exp() * torch.randn(200_000, N, p)
    z = torch.cat([mu + noise, mu - noise])
    scaled = Normal(z, attention.d**0.25).log_prob
    average = torch.stack([scaled(each).sum(-1).mean(0) for each in u.flatten(0, 2)])  # (heads·queries, n)
    expected = (log_alpha + average).softmax(-1).view(1, heads, QUERIES, N)
    points = nv.GaussianMixture(mu, log_sigma, log_alpha).points()
    torch.testing.assert_close(attention.weights(query, points), expected, atol=0.01, rtol=0)
    torch.testing.assert_close(attention.weights(query, points.compact()), attention.weights(query, points))


@pytest.mark.parametrize("heads", [1, 8])
def test_points_of_a_fresh_layer_leave_the_prior_as_samples_do(heads):
    torch.manual_seed(6)
    nvib, attention = nv.NVIB(64), nv.DenoisingAttention(64, heads)
    found = nv.compare_readings(attention, torch.randn(4, 8, 64), nvib(torch.randn(4, 20, 64)))
    assert abs(found.points_prior_weight - found.sample_prior_weight) < 0.02
    assert found.mean_agrees
    assert found.points_agree


def compare(norm: float, log_sigma: float) -> nv.ReadingComparison:
    """Compare the readings with queries of a norm, and an attention whose four matrices are the identity."""
    torch.manual_seed(3)
    attention, latent = nv.DenoisingAttention(P), posterior(log_sigma)
    with torch.no_grad():
        for linear in (attention.to_query, attention.to_key, attention.to_value, attention.to_output):
            linear.weight.copy_(torch.eye(P))
    query = torch.randn(BATCH, QUERIES, P)
    query *= norm / query.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(attention.latent_queries(query)[:, 0], query)
    return nv.compare_readings(attention, query, latent, samples=200)


def test_the_mean_parts_from_samples_where_the_query_is_long():
    """Queries of norm 50 and sure components: the mean gives the prior what no sample gives it."""
    near, far = compare(1.0, -3.0), compare(50.0, -3.0)
    assert near.mean_agrees
    assert not far.mean_agrees
    assert near.gap < 3 < far.gap
    assert far.mean_prior_weight > 0.9 > far.sample_prior_weight
    assert far.points_distance < far.mean_distance
    assert near.points_agree
    assert far.points_agree


def test_a_mean_that_attends_to_the_prior_does_not_agree():
    """Noisy samples are far from their average, too; the prior's component tells the mean apart from them."""
    found = compare(10.0, -1.0)
    assert found.mean_distance < found.sample_distance
    assert found.mean_prior_weight > found.sample_prior_weight + 0.05
    assert not found.mean_agrees


def test_compare_readings_needs_two_samples():
    with pytest.raises(ValueError, match="samples"):
        nv.compare_readings(nv.DenoisingAttention(P), torch.randn(BATCH, QUERIES, P), posterior(0.0), samples=1)


def test_compare_readings_takes_half_precision_and_wants_a_query():
    torch.manual_seed(4)
    attention, nvib = nv.DenoisingAttention(8, 2).bfloat16(), nv.NVIB(8).bfloat16()
    latent, query = nvib(torch.randn(BATCH, N, 8).bfloat16()), torch.randn(BATCH, QUERIES, 8).bfloat16()
    assert math.isfinite(nv.compare_readings(attention, query, latent).gap)
    with pytest.raises(ValueError, match="at least one query"):
        nv.compare_readings(attention, query[:, :0], latent)
