"""A mistake is a ValueError or TypeError that names the function, the argument, what was got and wanted, the fix.

A user has no run-time type checks, and the suite's would catch some of these first: they are off here.
"""

from typing import Any

import jaxtyping
import pytest
import torch

import open_nvib as nv


@pytest.fixture(autouse=True)
def no_type_checks():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_shapes():
    u, z, log_pi = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5), torch.zeros(2, 4)
    attend: Any = nv.attend_impulses
    with pytest.raises(ValueError, match=r"attend_impulses: z has shape \(2, 4, 6\), wanted .* p = 5 as in u"):
        attend(u, torch.zeros(2, 4, 6), log_pi, d=5)
    with pytest.raises(ValueError, match=r"attend_impulses: log_pi has shape \(2, 3\), wanted .* n = 4 as in z"):
        attend(u, z, torch.zeros(2, 3), d=5)
    with pytest.raises(ValueError, match=r"attend_impulses: the leading dimensions \(7,\) of z .* do not broadcast"):
        attend(u, torch.zeros(7, 4, 5), log_pi, d=5)
    with pytest.raises(ValueError, match=r"attend_impulses: u has shape \(5,\), wanted \(..., queries, p\)"):
        attend(torch.zeros(5), z, log_pi, d=5)
    with pytest.raises(ValueError, match=r"attend_gaussians: log_sigma has shape"):
        nv.attend_gaussians(u, z, torch.zeros(2, 4, 3), log_pi, d=5)
    with pytest.raises(ValueError, match=r"d is 0, wanted at least 1"):
        attend(u, z, log_pi, d=0)
    with pytest.raises(TypeError, match=r"d is 2.5, wanted a whole number"):
        attend(u, z, log_pi, d=2.5)
    with pytest.raises(ValueError, match=r"gaussian_kl: log_sigma has shape"):
        nv.gaussian_kl(z, torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=r"dirichlet_kl_exact: the shapes of alpha \(2, 4\) and kappa \(3,\)"):
        nv.dirichlet_kl_exact(torch.ones(2, 4), 1.0, torch.ones(3))


def test_dtypes():
    u, z, log_pi = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5), torch.zeros(2, 4)
    attend: Any = nv.attend_impulses
    with pytest.raises(ValueError, match=r"attend_impulses: z is torch.int64, wanted a floating dtype"):
        attend(u, z.long(), log_pi, d=5)
    with pytest.raises(ValueError, match=r"z is torch.float64 but u is torch.float32; wanted one dtype"):
        attend(u, z.double(), log_pi, d=5)
    with pytest.raises(TypeError, match=r"log_pi is a list, wanted a Tensor"):
        attend(u, z, [0.0], d=5)
    with pytest.raises(ValueError, match=r"sample_log_gamma: alpha is torch.int64"):
        nv.sample_log_gamma(torch.ones(3, dtype=torch.int64))


def test_nothing_to_attend_to():
    u, z, log_pi = torch.zeros(3, 1, 5), torch.zeros(3, 4, 5), torch.zeros(3, 4)
    log_pi[1:] = -torch.inf
    for call in (
        lambda: nv.attend_impulses(u, z, log_pi, d=5),
        lambda: nv.attend_gaussians(u, z, z, log_pi, d=5),
        lambda: nv.ImpulseMixture(z=z, log_pi=log_pi),
        lambda: nv.GaussianMixture(mu=z, log_sigma=z, log_alpha=log_pi),
    ):
        with pytest.raises(
            ValueError, match=r"rows \[1, 2\] of log_\w+ \(3, 4\) have no finite entry.*prior component"
        ):
            call()
    log_pi[1:] = torch.nan
    with pytest.raises(ValueError, match=r"8 of 12 entries of log_pi \(3, 4\) are NaN or \+inf"):
        nv.attend_impulses(u, z, log_pi, d=5)


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_bad_pseudo_counts(bad):
    alpha = torch.tensor([1.0, bad])
    for call in (nv.sample_log_gamma, nv.sample_log_dirichlet, lambda a: nv.dirichlet_kl_exact(a, 1.0, 1.0)):
        with pytest.raises(ValueError, match=r"1 of 2 entries of alpha .* negative or not finite; wanted"):
            call(alpha)
    with pytest.raises(ValueError, match=r"alpha0_q .* negative, zero or not finite"):
        nv.dirichlet_kl(alpha, 1.0, 3)
    with pytest.raises(ValueError, match=r"sums over the last axis of alpha"):
        nv.sample_log_dirichlet(torch.zeros(2, 3))


def test_unknown_names():
    posterior = nv.NVIB(4)(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"sample_log_gamma: method is 'exact', wanted one of 'paper', 'implicit'"):
        nv.sample_log_gamma(torch.ones(2), method="exact")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Posterior.sample: method is 'x'"):
        posterior.sample(method="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Posterior.kl: form is 'x', wanted one of 'expected', 'exact'"):
        posterior.kl("x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"NVIB: alpha_activation is 'tanh', wanted one of 'relu', 'softplus'"):
        nv.NVIB(4, alpha_activation="tanh")
    with pytest.raises(ValueError, match=r"kappa is 0, wanted at least 1"):
        posterior.sample(0)
    with pytest.raises(ValueError, match=r"prune: threshold is -1"):
        posterior.prune(-1.0)
    with pytest.raises(ValueError, match=r"mix: weight is 1.5, wanted a share from 0"):
        posterior.mix(posterior, 1.5)


def test_layer():
    module = nv.NVIB(4, input_size=6)
    with pytest.raises(ValueError, match=r"NVIB: hidden has shape \(2, 3, 4\), wanted .* size = 6"):
        module(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"NVIB: mask is torch.int64, wanted torch.bool, True = real"):
        module(torch.zeros(2, 3, 6), torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"NVIB: mask has shape \(3, 2\), wanted \(batch, n\) = \(2, 3\)"):
        module(torch.zeros(2, 3, 6), torch.ones(3, 2).bool())
    with pytest.raises(ValueError, match=r"alpha0_p is 0"):
        nv.NVIB(4, alpha0_p=0.0)
    with pytest.raises(ValueError, match=r"delta is -0.1"):
        nv.NVIB(4, delta=-0.1)
    with pytest.raises(ValueError, match=r"prior_sigma must be finite and above 0"):
        nv.NVIB(4, prior_sigma=0.0)
    with pytest.raises(ValueError, match=r"prior_mu has shape \(3,\), wanted one number or \(4,\)"):
        nv.NVIB(4, prior_mu=torch.zeros(3))
    with pytest.raises(ValueError, match=r"p is 0"):
        nv.NVIB(0)


def test_module():
    with pytest.raises(ValueError, match=r"p = 10 is not a multiple of heads = 3"):
        nv.DenoisingAttention(10, 3)
    module = nv.DenoisingAttention(6, 2)
    mixture = nv.ImpulseMixture(z=torch.zeros(2, 3, 6), log_pi=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"query has shape \(5, 4, 6\), wanted .* batch = 2"):
        module(torch.zeros(5, 4, 6), mixture)
    with pytest.raises(ValueError, match=r"z of the mixture has shape \(2, 3, 5\), wanted .* p = 6"):
        module(torch.zeros(2, 4, 6), nv.ImpulseMixture(z=torch.zeros(2, 3, 5), log_pi=torch.zeros(2, 3)))
    posterior = nv.NVIB(6)(torch.zeros(2, 3, 6))
    with pytest.raises(TypeError, match=r"got a Posterior, wanted an ImpulseMixture.*\.sample\(\) or \.mean\(\)"):
        module(torch.zeros(2, 4, 6), posterior)


def test_priors():
    prior = nv.NVIB(3).prior
    with pytest.raises(ValueError, match=r"lengths has -1, wanted at least 0"):
        prior.sample([2, -1])
    with pytest.raises(ValueError, match=r"lengths is torch.float32 of shape \(2,\), wanted whole numbers"):
        prior.sample(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"kappa0 has 0, wanted at least 1"):
        nv.BDP(prior.mu, prior.log_sigma, prior.alpha0_p).sample([0])
    for weights in (torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])):
        with pytest.raises(ValueError, match=r"size_weights must be 0 at size 0 and above 0 somewhere"):
            nv.UDP(prior.mu, prior.log_sigma, prior.alpha0_p, weights)
    with pytest.raises(ValueError, match=r"got no posteriors"):
        nv.Posterior.cat([])


def test_records_check_what_they_hold():
    p = torch.zeros(3)
    for bad in (-1.0, 0.0, torch.nan):
        with pytest.raises(ValueError, match=r"BDP: 1 of 1 entries of alpha0"):
            nv.BDP(p, p, torch.tensor(bad))
        with pytest.raises(ValueError, match=r"ConditionalBDP: 1 of 1 entries of alpha0_p"):
            nv.ConditionalBDP(p, p, torch.tensor(bad), torch.tensor(0.0))
    with pytest.raises(ValueError, match=r"BDP: log_sigma has shape \(2,\), wanted \(p\) with p = 3"):
        nv.BDP(p, torch.zeros(2), torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"UDP: size_weights is a list, wanted a Tensor"):
        nv.UDP(p, p, torch.tensor(1.0), [0, 1])  # pyright: ignore[reportArgumentType]
    good = {"mu": torch.zeros(1, 2, 3), "log_sigma": torch.zeros(1, 2, 3), "mask": torch.ones(1, 2).bool()}
    prior = nv.NVIB(3).prior
    with pytest.raises(ValueError, match=r"Posterior: 1 of 2 entries of alpha"):
        nv.Posterior(alpha=torch.tensor([[-1.0, 1.0]]), prior=prior, **good)
    with pytest.raises(ValueError, match=r"Posterior: 1 of 1 entries of the prior's component"):
        nv.Posterior(alpha=torch.tensor([[1.0, 0.0]]), prior=prior, **good)
    with pytest.raises(ValueError, match=r"ImpulseMixture: log_pi has shape \(5,\), wanted the batch \(2,\) of z"):
        nv.ImpulseMixture(z=torch.zeros(2, 5, 4), log_pi=torch.zeros(5))


def test_numbers_that_float32_cannot_hold():
    for value in (1e300, 1e-60):
        with pytest.raises(ValueError, match=r"NVIB: alpha0_p is .*, wanted a number above 0 that float32 can hold"):
            nv.NVIB(4, alpha0_p=value)
    with pytest.raises(TypeError, match=r"NVIB: alpha0_p is '1', wanted a number"):
        nv.NVIB(4, alpha0_p="1")  # pyright: ignore[reportArgumentType]


def test_more_mistakes_have_names():
    module, attention = nv.NVIB(6), nv.DenoisingAttention(6, 2)
    posterior = module(torch.zeros(2, 3, 6))
    query = torch.zeros(2, 4, 6)
    with pytest.raises(ValueError, match=r"NVIB: hidden is torch.float64 but the layer's parameters are torch.float32"):
        module(torch.zeros(2, 3, 6).double())
    with pytest.raises(TypeError, match=r"NVIB: mask is a list, wanted a Tensor"):
        module(torch.zeros(2, 3, 6), [[True] * 3] * 2)
    with pytest.raises(ValueError, match=r"DenoisingAttention: query is torch.float64"):
        attention(query.double(), posterior.mean())
    with pytest.raises(ValueError, match=r"the memory was projected for 1 heads, wanted 2"):
        attention(query, nv.DenoisingAttention(6, 1).project(posterior.mean()))
    with pytest.raises(ValueError, match=r"mix: other is \(1, 4, 6\), wanted .* the batch and p of \(2, 4, 6\)"):
        posterior.mix(posterior[0], 0.5)
    with pytest.raises(ValueError, match=r"mix: weight has shape \(1, 1\), wanted a number or \(2,\)"):
        posterior.mix(posterior, torch.tensor([[0.1]]))
    with pytest.raises(TypeError, match=r"mix: other is a GaussianMixture, wanted a Posterior"):
        posterior.mix(posterior.mean(), 0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"Posterior.cat: got Posterior, int, wanted posteriors only"):
        nv.Posterior.cat([posterior, 3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"Posterior: got the index \(0, 1\), wanted one for the batch"):
        posterior[0, 1]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"gaussian_kl: prior_mu has shape \(4, 1\), wanted one number"):
        nv.gaussian_kl(torch.zeros(4, 3), torch.zeros(4, 3), prior_mu=torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"kappa is 0 where alpha is above 0"):
        nv.dirichlet_kl_exact(torch.ones(2), 1.0, torch.tensor([0.0, 1.0]))
