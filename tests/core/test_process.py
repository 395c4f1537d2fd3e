import math
from typing import Any

import numpy as np
import pytest
import reference
import torch
from scipy import stats
from torch.distributions import Dirichlet, Normal, kl_divergence

import open_nvib as nv
from open_nvib._tensors import unchecked, values_of

BATCH, N, P = 3, 5, 7


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_posterior(*, delta=0.4, alpha0_p=1.0, dtype=torch.float64):
    """Lengths 5, 3 and 0; the second text's second token is dropped by the encoder."""
    g = generator()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    alpha = torch.rand(BATCH, N, generator=g, dtype=dtype) * 3
    alpha[1, 1] = 0
    alpha = torch.cat([alpha * mask, torch.full((BATCH, 1), alpha0_p, dtype=dtype)], 1)
    unit = {"mu": torch.zeros(P, dtype=dtype), "log_sigma": torch.zeros(P, dtype=dtype)}
    number = {"alpha0_p": torch.tensor(alpha0_p, dtype=dtype), "delta": torch.tensor(delta, dtype=dtype)}
    mu, log_sigma = (torch.randn(BATCH, N, P, generator=g, dtype=dtype) for _ in range(2))
    return nv.Posterior(
        alpha=alpha,
        mu=torch.cat([mu, torch.zeros(BATCH, 1, P, dtype=dtype)], 1),
        log_sigma=torch.cat([0.3 * log_sigma, torch.zeros(BATCH, 1, P, dtype=dtype)], 1),
        mask=torch.cat([mask, torch.ones(BATCH, 1).bool()], 1),
        prior=nv.ConditionalBDP(**unit, **number),
    )


@pytest.fixture
def posterior():
    return make_posterior()


# The posterior


def test_counts_by_hand(posterior):
    assert posterior.lengths.tolist() == [5, 3, 0]
    assert posterior.kept.tolist() == pytest.approx([1, 2 / 3, 0])
    torch.testing.assert_close(posterior.alpha0, posterior.alpha.sum(-1))


@pytest.mark.parametrize("method", ["paper", "implicit"])
@pytest.mark.parametrize("kappa", [1, 3])
def test_sample_has_kappa_vectors_for_each_component(posterior, method, kappa):
    mixture = posterior.sample(kappa, method, generator())
    assert mixture.z.shape == (BATCH, (N + 1) * kappa, P)
    torch.testing.assert_close(mixture.log_pi.exp().sum(-1), torch.ones(BATCH).double())
    weight = mixture.log_pi.exp().view(BATCH, N + 1, kappa).sum(-1)
    assert (weight[posterior.alpha == 0] == 0).all()
    again = posterior.sample(kappa, method, generator())
    assert torch.equal(mixture.z, again.z)
    assert torch.equal(mixture.log_pi, again.log_pi)


def one_dimensional(alpha, mu, sigma, count):
    """`count` copies of a posterior in one dimension, for simulation."""
    columns = [torch.tensor(x, dtype=torch.float64).expand(count, -1) for x in (alpha, mu, sigma)]
    unit = torch.zeros(1).double()
    return nv.Posterior(
        alpha=columns[0],
        mu=columns[1].unsqueeze(-1),
        log_sigma=columns[2].unsqueeze(-1).log(),
        mask=torch.ones(columns[0].shape).bool(),
        prior=nv.ConditionalBDP(unit, unit, torch.tensor(1.0).double(), torch.tensor(0.0).double()),
    )


ALPHA, MU, SIGMA = [0.8, 2.0, 1.0], [-1.0, 2.0, 0.0], [0.5, 0.3, 1.0]


def test_factorised_sample_has_the_moments_of_the_dirichlet_process():
    """Mean and variance of Σ π z against a DP: E = E_G₀[z], Var = Var_G₀[z]/(α₀ + 1), 5 standard errors, seed 1.

    With κ = 64 vectors a component the bound is 1/64 of a component's own variance away from the infinite process.
    """
    count = 20_000
    mixture = one_dimensional(ALPHA, MU, SIGMA, count).sample(64, "implicit", generator(1))
    means = (mixture.log_pi.exp() * mixture.z[..., 0]).sum(-1)
    share = np.array(ALPHA) / sum(ALPHA)
    mean = (share * MU).sum()
    variance = (share * (np.square(SIGMA) + np.square(MU))).sum() - mean**2
    assert abs(means.mean().item() - mean) < 5 * math.sqrt(variance / (sum(ALPHA) + 1) / count)
    np.testing.assert_allclose(means.var().item(), variance / (sum(ALPHA) + 1), rtol=0.06)


def test_factorised_sample_against_the_naive_sample_of_the_process():
    """Component by categorical choice, then vector, weights Dir(α₀/κ₀): same moments up to order 3. Seed 2."""
    count, kappa = 20_000, 32
    rng = np.random.default_rng(2)
    total = kappa * len(ALPHA)
    component = rng.choice(len(ALPHA), p=np.array(ALPHA) / sum(ALPHA), size=(count, total))
    z = np.array(MU)[component] + np.array(SIGMA)[component] * rng.standard_normal((count, total))
    gammas = rng.gamma(sum(ALPHA) / total, size=(count, total))
    naive = (gammas * z).sum(-1) / gammas.sum(-1)
    mixture = one_dimensional(ALPHA, MU, SIGMA, count).sample(kappa, "implicit", generator(2))
    factorised = (mixture.log_pi.exp() * mixture.z[..., 0]).sum(-1).numpy()
    for order in (1, 2, 3):
        a, b = naive**order, factorised**order
        error = math.sqrt((a.var() + b.var()) / count)
        assert abs(a.mean() - b.mean()) < 5 * error + 0.02 * abs(a.mean()), f"moment {order}"


def test_factorised_process_is_the_process():
    """Appendix A by simulation: Σ ρᵢ Fᵢ with Fᵢ ~ DP(Gᵢ, αᵢ) against DP(G₀, α₀), both by stick breaking.

    Two-sample Kolmogorov-Smirnov on the mean of the sampled distribution; a false alarm in 1 of 1000 seeds.
    """
    rng = np.random.default_rng(3)
    alpha, mu, sigma = np.array(ALPHA), np.array(MU), np.array(SIGMA)

    def whole():
        def atoms(k):
            i = rng.choice(3, p=alpha / alpha.sum(), size=k)
            return mu[i] + sigma[i] * rng.standard_normal(k)

        weights, z = reference.stick_breaking(alpha.sum(), atoms, rng)
        return weights @ z

    def factorised():
        rho = rng.dirichlet(alpha)
        parts = []
        for i in range(3):
            weights, z = reference.stick_breaking(
                alpha[i], lambda k, i=i: mu[i] + sigma[i] * rng.standard_normal(k), rng
            )
            parts.append(weights @ z)
        return rho @ np.array(parts)

    a, b = np.array([whole() for _ in range(4000)]), np.array([factorised() for _ in range(4000)])
    result: Any = stats.ks_2samp(a, b)
    assert result.pvalue > 1e-3


def test_mean_is_the_base_distribution(posterior):
    mixture = posterior.mean()
    torch.testing.assert_close(mixture.log_alpha.exp(), posterior.alpha)
    assert torch.equal(mixture.mu, posterior.mu)
    assert torch.equal(mixture.log_sigma, posterior.log_sigma)


def test_exact_kl_is_the_sum_of_the_factors(posterior):
    """κᵢ = 1: KL between Dirichlets of the real components, and between each Gaussian and the prior's, by torch."""
    got = posterior.kl("exact")
    for b, n in enumerate([5, 3, 0]):
        rows = [*range(n), N]
        alpha = posterior.alpha[b, rows]
        alpha0_p = 1.0 + 0.4 * n
        alive = alpha.clamp(min=1e-200)  # torch's Dirichlet wants every alpha above 0
        q, p = Dirichlet(alive), Dirichlet(alive * alpha0_p / alpha.sum())
        expected = kl_divergence(q, p) if n else torch.zeros(()).double()
        torch.testing.assert_close(got.dirichlet[b], expected)
        normal = Normal(posterior.mu[b, rows], posterior.log_sigma[b, rows].exp())
        torch.testing.assert_close(got.gaussian[b], kl_divergence(normal, Normal(0.0, 1.0)).sum())


def test_expected_kl_is_the_printed_equation(posterior):
    for kappa in (1, 4):
        got = posterior.kl(kappa=kappa)
        for b, n in enumerate([5, 3, 0]):
            alpha, alpha0 = posterior.alpha[b], posterior.alpha[b].sum()
            kappa0 = (n + 1) * kappa
            torch.testing.assert_close(got.dirichlet[b], nv.dirichlet_kl(alpha0, 1.0 + 0.4 * n, kappa0))
            each = kl_divergence(Normal(posterior.mu[b], posterior.log_sigma[b].exp()), Normal(0.0, 1.0)).sum(-1)
            torch.testing.assert_close(got.gaussian[b], kappa0 * (alpha / alpha0 * each).sum())


def test_exact_kl_counts_kappa_vectors_for_each_component(posterior):
    rows = [0, 1, 2, N]
    got = posterior.kl("exact", kappa=4)
    expected = nv.dirichlet_kl_exact(posterior.alpha[1, rows], 1.0 + 0.4 * 3, 4)
    torch.testing.assert_close(got.dirichlet[1], expected)
    torch.testing.assert_close(got.gaussian, 4 * posterior.kl("exact").gaussian)


def test_prune_drops_and_renormalises(posterior):
    threshold = posterior.alpha[0].median().item()
    pruned = posterior.prune(threshold)
    torch.testing.assert_close(pruned.alpha0, posterior.alpha0)
    assert ((pruned.alpha == 0) == (posterior.alpha <= threshold))[:, :-1].all()
    assert (pruned.alpha[:, -1] > 0).all()
    kept = pruned.alpha[0] > 0
    ratio = pruned.alpha[0, kept] / posterior.alpha[0, kept]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    assert torch.equal(posterior.prune(0).alpha, posterior.alpha)
    assert torch.equal(pruned.mask, posterior.mask)
    assert pruned.prune(1e9).kept.tolist() == [0, 0, 0]


def test_mix_is_the_mixture_of_two_means(posterior):
    """The density of the mixture at any point is the weighted sum of the two densities."""
    other = posterior[[1, 2, 0]]
    x = torch.randn(BATCH, 1, P, generator=generator(5), dtype=torch.float64)

    def density(mixture):
        components = Normal(mixture.mu, mixture.log_sigma.exp()).log_prob(x).sum(-1).exp()
        return (mixture.log_alpha.softmax(-1) * components).sum(-1)

    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * density(posterior.mean()) + weight * density(other.mean())
        torch.testing.assert_close(density(posterior.mix(other, weight)), expected)
    weight = torch.tensor([0.0, 0.5, 1.0]).double()
    expected = (1 - weight) * density(posterior.mean()) + weight * density(other.mean())
    torch.testing.assert_close(density(posterior.mix(other, weight)), expected)


def test_indexing_and_concatenation(posterior):
    assert len(posterior) == BATCH
    assert posterior[1].alpha.shape == (1, N + 1)
    assert torch.equal(posterior[-1].alpha[0], posterior.alpha[2])
    assert posterior[posterior.lengths > 0].lengths.tolist() == [5, 3]
    short = posterior[[1]].map_rows(lambda x: torch.cat([x[:, :3], x[:, -1:]], 1))  # without its padding
    joined = nv.Posterior.cat([posterior[:1], short, posterior[2:]])
    for name in ("alpha", "mask"):
        assert torch.equal(getattr(joined, name), getattr(posterior, name))
    for form in ("expected", "exact"):
        torch.testing.assert_close(joined.kl(form).gaussian, posterior.kl(form).gaussian)
        torch.testing.assert_close(joined.kl(form).dirichlet, posterior.kl(form).dirichlet)
    with pytest.raises(IndexError, match="index"):
        posterior[3]
    with pytest.raises(ValueError, match="prior"):
        nv.Posterior.cat([posterior, make_posterior(delta=0.1)])


def test_conversion_reaches_the_prior_and_spares_the_mask(posterior):
    half = posterior.to(dtype=torch.float32)
    assert half.prior.mu.dtype == half.alpha.dtype == torch.float32
    assert half.mask.dtype == torch.bool
    assert not posterior.map(lambda x: x.clone()).detach().alpha.requires_grad


def test_a_single_index_keeps_the_batch_axis(posterior):
    for index in (1, np.int64(1), torch.tensor(1)):
        assert posterior[index].alpha.shape == (1, N + 1)


def test_a_subnormal_alpha_and_several_vectors():
    posterior = make_posterior(dtype=torch.float32)
    alpha = posterior.alpha.clone()
    alpha[0, 0] = 1e-45
    for method in ("paper", "implicit"):
        mixture = unchecked(nv.Posterior, **(values_of(posterior) | {"alpha": alpha})).sample(3, method)
        assert not mixture.log_pi.isnan().any()


# The priors


def unit_gaussian(p=2):
    return torch.zeros(p).double(), torch.zeros(p).double()


def test_bounded_process_has_the_weights_of_a_symmetric_dirichlet():
    """Var π = (1/κ)(1 − 1/κ)/(α₀ + 1); 5 % at 50,000 draws is over 5 standard errors. Seed 4."""
    process = nv.BDP(*unit_gaussian(), torch.tensor(3.0).double())
    mixture = process.sample(torch.full((50_000,), 4), method="implicit", generator=generator(4))
    pi = mixture.log_pi.exp()
    np.testing.assert_allclose(pi.mean(0).numpy(), 0.25, atol=0.005)
    np.testing.assert_allclose(pi.var(0).numpy(), 0.25 * 0.75 / 4, rtol=0.05)
    np.testing.assert_allclose(mixture.z.mean((0, 1)).numpy(), 0, atol=0.02)
    np.testing.assert_allclose(mixture.z.std((0, 1)).numpy(), 1, atol=0.02)


def test_bounded_process_uses_its_base_distribution():
    mu, log_sigma = torch.tensor([3.0, -1.0]).double(), torch.tensor([-2.0, 1.0]).double()
    z = nv.BDP(mu, log_sigma, torch.tensor(1.0).double()).sample([50_000], generator=generator(5)).z[0]
    torch.testing.assert_close(z.mean(0), mu, atol=0.08, rtol=0)
    torch.testing.assert_close(z.std(0), log_sigma.exp(), rtol=0.03, atol=0)


def test_unbounded_process_draws_sizes_from_its_distribution():
    """Sizes 1 and 3 with odds 1 : 3 among 4000; 5 standard errors, seed 6."""
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0])
    mixture = nv.UDP(*unit_gaussian(), torch.tensor(1.0).double(), weights).sample(4000, generator=generator(6))
    sizes = mixture.log_pi.isfinite().sum(-1)
    assert set(sizes.tolist()) == {1, 3}
    assert abs((sizes == 3).double().mean().item() - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 4000)


def test_conditional_process_has_a_vector_more_than_tokens_and_grows_with_delta():
    """κ₀ = n + 1, α₀ = α₀^p + nΔ: the variance of a weight says both. Seed 7."""
    process = nv.ConditionalBDP(*unit_gaussian(), torch.tensor(1.5).double(), torch.tensor(0.5).double())
    lengths = torch.cat([torch.full((40_000,), 3), torch.tensor([0, 5])])
    mixture = process.sample(lengths, method="implicit", generator=generator(7))
    assert mixture.log_pi.isfinite().sum(-1)[-3:].tolist() == [4, 1, 6]
    assert mixture.z.shape[1] == 6
    variance = mixture.log_pi.exp()[:40_000, :4].var(0).numpy()
    np.testing.assert_allclose(variance, 0.25 * 0.75 / (1 + 1.5 + 3 * 0.5), rtol=0.05)
    assert process.sample([3], kappa=2).z.shape[1] == 8
    assert process.sample(2).z.shape == (1, 3, 2)


def test_prior_samples_repeat_with_the_seed():
    prior = nv.NVIB(5).prior
    a, b = (prior.sample([3, 1, 0], generator=generator(8)) for _ in range(2))
    assert torch.equal(a.z, b.z)
    assert torch.equal(a.log_pi, b.log_pi)
    assert a.log_pi.isneginf().sum(-1).tolist() == [0, 2, 3]


def test_small_integer_lengths_do_not_wrap():
    prior = nv.NVIB(3).prior
    assert prior.sample(torch.tensor([100], dtype=torch.uint8), kappa=3).z.shape[1] == 303
    assert prior.sample(torch.tensor([127], dtype=torch.int8)).z.shape[1] == 128


def test_a_schedule_does_not_reach_back_into_a_posterior():
    layer = nv.NVIB(3)
    posterior = layer(torch.zeros(1, 4, 3))
    before = posterior.kl().dirichlet
    layer.set_delta(0.0)
    assert torch.equal(posterior.kl().dirichlet, before)


def test_points_have_weights_even_if_the_sum_of_the_pseudo_counts_overflows():
    layer, alpha = nv.NVIB(3), torch.tensor([[3e38, 3e38, 1.0]])
    vectors = torch.zeros(1, 3, 3)
    posterior = nv.Posterior(
        alpha=alpha, mu=vectors, log_sigma=vectors, mask=torch.ones(1, 3).bool(), prior=layer.prior
    )
    torch.testing.assert_close(posterior.points().log_pi.exp(), torch.tensor([[0.5, 0.5, 0.0]]))


def test_loss_is_the_weighted_mean_of_the_scaled_parts(posterior):
    """λ′_G/(n d) L_G + λ′_D/n L_D, by a loop over texts; a text without tokens counts as one of one token."""
    for form, kappa in (("expected", 1), ("exact", 2)):
        kl = posterior.kl(form, kappa=kappa)
        expected = 0.0
        for text, length in enumerate(posterior.lengths.tolist()):
            n = max(1, length)
            expected += (0.3 / (n * posterior.mu.shape[-1]) * kl.gaussian[text] + 2 / n * kl.dirichlet[text]).item()
        loss = posterior.loss(lambda_g=0.3, lambda_d=2.0, form=form, kappa=kappa)
        assert loss.item() == pytest.approx(expected / len(posterior), rel=1e-5)
