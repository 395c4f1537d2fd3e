"""Densities against scipy, their ratios against closed forms of the KL, the mutual information of known channels."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Dirichlet, Normal, kl_divergence

from open_nvib.evaluation.densities import (
    SetDensity,
    TextDensities,
    densities,
    dirichlet_log_density,
    mutual_information,
)
from open_nvib.process import ConditionalBDP, ImpulseMixture, Posterior
from open_nvib.text.model.bottlenecks import VectorLatent

P = 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_posterior(alpha: list[list[float]], *, delta: float = 0.3, mask=None, log_sigma: float = -0.5) -> Posterior:
    """Components of a prior N(0.2, 1.1²) with α₀^p = 0.8, which is added as the last component."""
    rows, n = len(alpha), len(alpha[0])
    prior = ConditionalBDP(
        mu=torch.full((P,), 0.2),
        log_sigma=torch.full((P,), math.log(1.1)),
        alpha0_p=torch.tensor(0.8),
        delta=torch.tensor(delta),
    )
    generator = seeded(5)
    mu, noise = (0.5 * torch.randn(rows, n, P, generator=generator) for _ in range(2))
    real = torch.ones(rows, n, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return Posterior(
        alpha=torch.cat([torch.tensor(alpha), prior.alpha0_p.expand(rows, 1)], 1),
        mu=torch.cat([mu, prior.mu.expand(rows, 1, P)], 1),
        log_sigma=torch.cat([log_sigma + 0.3 * noise, prior.log_sigma.expand(rows, 1, P)], 1),
        mask=torch.cat([real, torch.ones(rows, 1, dtype=torch.bool)], 1),
        prior=prior,
    )


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """The mean and five of its standard errors: a test within it fails by chance once in two million seeds."""
    return values.mean().item(), 5 * values.std().item() / math.sqrt(len(values))


def test_gaussian_density_is_scipys():
    z, mu, log_sigma = torch.randn(3, 7, 5, P, generator=seeded(0), dtype=torch.float64)
    expected = scipy.stats.norm.logpdf(z, mu[0], log_sigma[0].exp()).sum((-2, -1))
    density = SetDensity(mu=mu[0], log_sigma=log_sigma[0], alpha=None)
    np.testing.assert_allclose(density.log_density(ImpulseMixture(z=z, log_pi=torch.zeros(7, 5).double())), expected)


def test_dirichlet_density_is_scipys_times_the_jacobian_of_log_ratios():
    alpha = torch.tensor([0.3, 2.0, 1.0, 4.5], dtype=torch.float64)
    pi = torch.from_numpy(np.random.default_rng(0).dirichlet(alpha.numpy(), size=11))
    expected = [scipy.stats.dirichlet.logpdf(row / row.sum(), alpha) + np.log(row).sum() for row in pi.numpy()]
    np.testing.assert_allclose(dirichlet_log_density(pi.log(), alpha), expected)


def test_samples_are_of_the_density():
    """Weights are Beta distributed one by one and vectors Gaussian: Kolmogorov-Smirnov, once in 10⁴ seeds for each."""
    alpha = torch.tensor([0.15, 0.9, 3.0], dtype=torch.float64)
    mu, log_sigma = torch.randn(2, 3, P, generator=seeded(1), dtype=torch.float64)
    sets = SetDensity(mu=mu, log_sigma=log_sigma, alpha=alpha).sample(4000, seeded(2))
    for i in range(3):
        beta = scipy.stats.beta(alpha[i], alpha.sum() - alpha[i])
        assert scipy.stats.kstest(sets.log_pi[:, i].exp().numpy(), beta.cdf).pvalue > 1e-4
        gaussian = scipy.stats.norm(mu[i, 0], log_sigma[i, 0].exp())
        assert scipy.stats.kstest(sets.z[:, i, 0].numpy(), gaussian.cdf).pvalue > 1e-4


def test_weights_that_underflow_have_finite_densities():
    alpha = torch.tensor([1e-30, 1e-5, 2.0], dtype=torch.float64)
    density = SetDensity(mu=torch.zeros(3, P).double(), log_sigma=torch.full((3, P), -40.0).double(), alpha=alpha)
    sets = density.sample(50, seeded(3))
    assert (sets.log_pi[:, 0] < -1e20).all()
    assert density.log_density(sets).isfinite().all()


@pytest.mark.parametrize("kappa", [1, 2])
def test_mean_ratio_to_the_prior_of_the_papers_kl_is_that_kl(kappa):
    """`eq:KLloss` has a prior with the concentrations α₀^{p′} αᵢ/α₀^q: −KL is the mean of the log-ratio."""
    posterior = make_posterior([[0.4, 1.7, 3.1, 0.9]])
    (pair,) = densities(posterior, kappa=kappa, faint=0.0)
    q = pair.posterior
    assert q.alpha is not None
    assert len(q) == 5 * kappa
    alpha0_p = 0.8 + 4 * 0.3
    prior = SetDensity(mu=pair.prior.mu, log_sigma=pair.prior.log_sigma, alpha=q.alpha * alpha0_p / q.alpha.sum())
    sets = q.sample(40_000, seeded(4))
    mean, error = mean_and_error(prior.log_density(sets) - q.log_density(sets))
    kl = posterior.kl("exact", kappa=kappa)
    assert error < 0.1
    assert mean == pytest.approx(-(kl.dirichlet + kl.gaussian).item(), abs=error)


def test_mean_ratio_to_the_prior_of_generation_is_its_kl():
    """torch's KL of two Dirichlets and of Gaussians, with the symmetric prior that texts are generated from."""
    posterior = make_posterior([[0.4, 1.7, 3.1, 0.9]])
    (pair,) = densities(posterior)
    mean, error = mean_and_error(pair.log_ratio(pair.posterior.sample(40_000, seeded(5))))
    weights = kl_divergence(Dirichlet(posterior.alpha[0]), Dirichlet(torch.full((5,), (0.8 + 4 * 0.3) / 5)))
    gaussians = Normal(posterior.mu[0], posterior.log_sigma[0].exp())
    vectors = kl_divergence(gaussians, Normal(torch.tensor(0.2), torch.tensor(1.1))).sum()
    assert error < 0.1
    assert mean == pytest.approx(-(weights + vectors).item() - math.log(4 + 1), abs=error)


def test_both_priors_are_one_where_all_pseudo_counts_are_equal():
    posterior = make_posterior([[0.8, 0.8, 0.8]])
    (pair,) = densities(posterior)
    assert pair.prior.alpha is not None
    torch.testing.assert_close(pair.prior.alpha, torch.full((4,), (0.8 + 3 * 0.3) / 4, dtype=torch.float64))
    mean, error = mean_and_error(pair.log_ratio(pair.posterior.sample(40_000, seeded(6))))
    kl = posterior.kl("exact")
    assert mean == pytest.approx(-(kl.dirichlet + kl.gaussian).item() - math.log(4), abs=error)


@pytest.mark.parametrize("kappa", [1, 2])
def test_mean_weight_is_the_probability_of_the_number_of_vectors(kappa):
    """E_q[p/q] = 1 for the density given the number; the posterior is wider than the prior, so weights are bounded."""
    posterior = make_posterior([[0.35, 0.3]], delta=1.0, log_sigma=0.3)
    (pair,) = densities(posterior, kappa=kappa)
    weights = pair.log_ratio(pair.posterior.sample(200_000, seeded(7))).exp()
    mean, error = mean_and_error(weights)
    effective = weights.sum().square() / weights.square().sum()
    assert effective > 1000
    assert error < 0.05
    assert mean == pytest.approx(1 / 3, abs=error)


def test_dropped_and_faint_vectors_are_not_there():
    """The prior is bounded at those left, and its concentration is still that of the length."""
    posterior = make_posterior([[0.0, 1.7, 0.09, 0.9, 0.05]])
    (pair,) = densities(posterior, kappa=2)
    kept = [1, 1, 3, 3, 5, 5]
    assert pair.posterior.alpha is not None
    assert pair.prior.alpha is not None
    torch.testing.assert_close(pair.posterior.alpha, posterior.alpha[0, kept].double() / 2)
    torch.testing.assert_close(pair.posterior.mu, posterior.mu[0, kept].double())
    torch.testing.assert_close(pair.posterior.log_sigma, posterior.log_sigma[0, kept].double())
    torch.testing.assert_close(pair.prior.alpha, torch.full((6,), (0.8 + 5 * 0.3) / 6, dtype=torch.float64))
    assert pair.log_size == pytest.approx(-math.log(6))
    assert len(densities(posterior, faint=0.0)[0].posterior) == 5
    assert len(densities(make_posterior([[0.0, 0.0]]))[0].posterior) == 1  # the prior's component stays


def test_kept_weights_of_a_sample_are_those_of_the_density_without_the_others():
    """Dirichlet: relative to their sum, the weights of some are Dir of their α. Kolmogorov-Smirnov, once in 10⁴."""
    posterior = make_posterior([[0.08, 1.7, 0.05, 0.6]])
    (pair,) = densities(posterior)
    many = posterior[torch.zeros(4000, dtype=torch.long)].sample(method="implicit", generator=seeded(8))
    relative = many.log_pi[:, [1, 3, 4]].log_softmax(-1)
    ours = pair.posterior.sample(4000, seeded(9)).log_pi
    for i in range(3):
        assert scipy.stats.ks_2samp(relative[:, i].numpy(), ours[:, i].numpy()).pvalue > 1e-4  # pyright: ignore[reportAttributeAccessIssue]


def test_density_does_not_depend_on_padding():
    padded = make_posterior([[0.5, 1.2, 0.0, 0.0], [1.0] * 4], mask=[[True, True, False, False], [True] * 4])
    kept = [0, 1, 4]
    alone = Posterior(
        alpha=padded.alpha[:1, kept],
        mu=padded.mu[:1, kept],
        log_sigma=padded.log_sigma[:1, kept],
        mask=padded.mask[:1, kept],
        prior=padded.prior,
    )
    (expected,) = densities(alone)
    sets = expected.posterior.sample(5, seeded(10))
    torch.testing.assert_close(densities(padded)[0].log_ratio(sets), expected.log_ratio(sets))


def make_vectors(mu: list[list[float]], sigma: float, mask: list[list[bool]]) -> list[TextDensities]:
    """Texts with vectors of one dimension."""
    means = torch.tensor(mu, dtype=torch.float32).unsqueeze(-1)
    log_sigma = torch.full_like(means, math.log(sigma))
    real = torch.tensor(mask)
    return densities(VectorLatent(mu=means, log_sigma=log_sigma, mask=real, lengths=real.sum(-1), d=1))


def test_gaussian_latent_has_a_unit_gaussian_prior_and_real_vectors_only():
    pair, _ = make_vectors([[0.3, 9.9, -1.0], [0.0] * 3], 0.5, [[True, False, True], [True] * 3])
    mean, error = mean_and_error(pair.log_ratio(pair.posterior.sample(20_000, seeded(11))))
    one = Normal(torch.tensor([0.3, -1.0]), torch.tensor([0.5, 0.5]))
    kl = kl_divergence(one, Normal(torch.zeros(2), torch.ones(2))).sum()
    assert mean == pytest.approx(-kl.item(), abs=error)


def information(pairs: list[TextDensities], count: int = 8) -> float:
    posteriors = [pair.posterior for pair in pairs]
    sets = [density.sample(count, seeded(index)) for index, density in enumerate(posteriors)]
    return mutual_information(posteriors, sets)


def test_mutual_information_of_texts_told_apart_is_log_n_and_of_equal_ones_zero():
    alike = [[True, True]] * 4
    assert information(make_vectors([[-30, 0], [30, 0], [0, 30], [0, -30]], 0.5, alike)) == pytest.approx(math.log(4))
    assert information(make_vectors([[0.7, -2.0]] * 4, 0.5, alike)) == pytest.approx(0, abs=1e-9)


def test_mutual_information_counts_the_number_of_vectors():
    """Equal vectors, two texts with one of them and two with two: the number is one bit."""
    mask = [[True, False], [True, False], [True, True], [True, True]]
    assert information(make_vectors([[0.0, 0.0]] * 4, 1.0, mask)) == pytest.approx(math.log(2))


def test_mutual_information_of_a_gaussian_channel():
    """½ log(1 + var(μ)/σ²), less what is lost by seeing 400 texts only, which is under 0.02 nats here."""
    quantiles = scipy.stats.norm.ppf((np.arange(400) + 0.5) / 400)
    pairs = make_vectors([[value] for value in quantiles.tolist()], 0.7, [[True]] * 400)
    expected = 0.5 * math.log(1 + quantiles.var() / 0.7**2)
    assert information(pairs) == pytest.approx(expected, abs=0.02)


def test_mutual_information_sees_weights():
    """Equal vectors with other pseudo-counts: by hand, from scipy's densities."""
    zero = torch.zeros(2, P, dtype=torch.float64)
    alphas = [torch.tensor(alpha, dtype=torch.float64) for alpha in ([4.0, 0.5], [0.5, 4.0])]
    posteriors = [SetDensity(mu=zero, log_sigma=zero, alpha=alpha) for alpha in alphas]
    sets = [density.sample(8, seeded(index)) for index, density in enumerate(posteriors)]
    terms = []
    for own, drawn in enumerate(sets):
        first = drawn.log_pi[:, 0].exp().numpy()
        both = np.stack([scipy.stats.beta.pdf(first, *alpha.tolist()) for alpha in alphas])
        terms.append(np.log(both[own] / both.mean(0)))
    assert mutual_information(posteriors, sets) == pytest.approx(np.mean(terms))
