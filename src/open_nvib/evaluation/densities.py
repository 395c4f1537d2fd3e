"""Posterior and prior of one text as densities over what the decoder reads: vectors, and their weights.

NVAE's sample (π, Z) is evaluated as follows (κᵢ = κ for every component, the paper's κ = 1).

*Posterior.* `eq:eq:bnd-posterior` draws ρ ~ Dir(α^q) and, within a component, π′ᵢ ~ Dir(αᵢ/κ, …). By the aggregation
property of the Dirichlet distribution the products ρᵢ π′ᵢⱼ are together one Dir(αᵢ/κ, …) over all the vectors, so that
q(π, Z) = Dir(π; α^q/κ) Π N(zᵢⱼ; μᵢ, σᵢ²). The prior's component, α₀^p with G₀^p, is one of them, the last.

*Prior.* The one that texts are generated from, BDP(G₀^p, α₀^{p′}, κ₀) with α₀^{p′} = α₀^p + nΔ:
p(π, Z) = Dir(π; α₀^{p′}/κ₀, …) Π N(zₖ; μ^p, σ^p²). The KL of the loss has another. `eq:KLloss` writes the prior with
concentrations α₀^{p′} αᵢ^q/α₀^q in proportion to the posterior's, which is the same process only where there is no
bound, and depends on the text; a likelihood needs a prior that does not.

*Dropped vectors.* With αᵢ = 0 the posterior lives on the face πᵢ = 0 of the simplex, which has probability 0 under a
prior of κ₀ = n + 1 vectors: that KL is infinite. (The KL of the loss is finite, since its prior vanishes there as well
or, with expected κ, since it shares the κ₀ vectors out among the others.) So the number m of vectors kept is made part
of the latent: uniform on 0, …, n in the prior and known in the posterior, which costs log(n + 1) nats. Given m, the
prior is bounded at κ₀ = (m + 1)κ, and where nothing is dropped it is that of `ConditionalBDP.sample`.

*Faint vectors.* For small αᵢ, log πᵢ is near −1/αᵢ and the density ratio of its weight near −α₀^{p′}/(κ₀ αᵢ): an α of
0.001, which the decoder cannot see, costs a thousand nats, and the average over texts has no limit. The proposal of an
importance-weighted estimate is free, so components with α ≤ FAINT are left out of it like those with α = 0. What is
left is Dir(α of those kept), which is how the kept weights of a posterior sample are distributed relative to their sum.

VT, VTP and VTS have Gaussians only, and the number of vectors is a function of the length n, which is given.

All models: vectors are evaluated in order although attention does not see the order. The ratio is a valid weight, and
the bound is looser than one that sums over orders, by at most log κ₀!.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from open_nvib._tensors import normal_like, unchecked
from open_nvib.distributions import log_dirichlet
from open_nvib.process import ImpulseMixture, Posterior
from open_nvib.text.model.bottlenecks import Latent

FAINT = 0.1
"""Pseudo-count at or below which a vector counts as dropped: more than half of the draws of Gamma(0.1) are below 0.001,
where the decoder does not see the vector."""

INFORMATION_SAMPLES = 8  # samples of each text for the mutual information, which averages over texts as well


@dataclass(frozen=True)
class SetDensity:
    """m vectors zᵢ ~ N(μᵢ, σᵢ²) with weights π ~ Dir(α), or with equal ones without `alpha`; in float64 on the CPU."""

    mu: Float[Tensor, "m p"]
    log_sigma: Float[Tensor, "m p"]
    alpha: Float[Tensor, " m"] | None

    def __len__(self) -> int:
        return len(self.mu)

    def sample(self, count: int, generator: torch.Generator) -> ImpulseMixture:
        """Draw exact samples, whichever method training uses: importance weights need the density that is evaluated."""
        mu = self.mu.expand(count, *self.mu.shape)
        z = mu + self.log_sigma.exp() * normal_like(mu, generator)
        log_pi = z.new_zeros(count, len(self))
        if self.alpha is not None:
            log_pi = log_dirichlet(self.alpha.expand_as(log_pi), method="implicit", generator=generator)
        return unchecked(ImpulseMixture, z=z, log_pi=log_pi)

    def log_density(self, sets: ImpulseMixture) -> Float[Tensor, " samples"]:
        vectors = Normal(self.mu, self.log_sigma.exp()).log_prob(sets.z).sum((-2, -1))
        return vectors if self.alpha is None else vectors + dirichlet_log_density(sets.log_pi, self.alpha)


@dataclass(frozen=True)
class TextDensities:
    """Posterior and prior of one text. `log_size` is the prior's log-probability of this number of vectors."""

    posterior: SetDensity
    prior: SetDensity
    log_size: float

    def log_ratio(self, sets: ImpulseMixture) -> Float[Tensor, " samples"]:
        """Compute log p(F | n) − log q(F | x) of each sample."""
        return self.log_size + self.prior.log_density(sets) - self.posterior.log_density(sets)


def dirichlet_log_density(log_pi: Float[Tensor, "*samples m"], alpha: Float[Tensor, " m"]) -> Float[Tensor, "*samples"]:
    """Compute log Dir(π; α) as a density of the log-ratios log(πᵢ/πₘ): −log B(α) + Σ αᵢ log πᵢ.

    Their Jacobian Π πᵢ takes the −1 out of the exponents; it is the same for all α, so no ratio of two densities sees
    it, and weights that underflow have finite densities.
    """
    log_beta = torch.lgamma(alpha).sum() - torch.lgamma(alpha.sum())
    return (alpha * log_pi).sum(-1) - log_beta


def densities(latent: Latent, *, kappa: int = 1, faint: float = FAINT) -> list[TextDensities]:
    """Give posterior and prior of each text of a batch; `kappa` vectors from each component and `faint` are NVAE's."""
    latent = latent.to("cpu", dtype=torch.float64)
    if latent.alpha is None:
        return _gaussian_densities(latent)
    return _weighted_densities(latent, kappa, faint)


def _gaussian_densities(latent: Latent) -> list[TextDensities]:
    """Gaussians without weights; the prior is N(0, 1)."""
    assert latent.log_sigma is not None
    found = []
    for mu, log_sigma, real in zip(latent.mu, latent.log_sigma, latent.mask, strict=True):
        posterior = SetDensity(mu=mu[real], log_sigma=log_sigma[real], alpha=None)
        zero = torch.zeros_like(posterior.mu)
        found.append(TextDensities(posterior, SetDensity(mu=zero, log_sigma=zero, alpha=None), log_size=0.0))
    return found


def _weighted_densities(latent: Posterior, kappa: int, faint: float) -> list[TextDensities]:
    """Gaussians with Dirichlet weights; the prior is that which texts are generated from."""
    kept = latent.mask & (latent.alpha > faint)
    kept[:, -1] = True  # the prior's component
    found = []
    for row, n in enumerate(latent.lengths.tolist()):
        mu, log_sigma, alpha = (
            x[row][kept[row]].repeat_interleave(kappa, 0) for x in (latent.mu, latent.log_sigma, latent.alpha)
        )
        kappa0 = len(alpha)
        alpha0 = latent.prior.alpha0(latent.lengths[row])
        prior = SetDensity(
            mu=latent.prior.mu.expand(kappa0, -1),
            log_sigma=latent.prior.log_sigma.expand(kappa0, -1),
            alpha=(alpha0 / kappa0).expand(kappa0),
        )
        posterior = SetDensity(mu=mu, log_sigma=log_sigma, alpha=alpha / kappa)
        found.append(TextDensities(posterior, prior, log_size=-math.log(n + 1)))
    return found


def mutual_information(posteriors: Sequence[SetDensity], samples: Sequence[ImpulseMixture]) -> float:
    """Estimate I(x; F) in nats from samples of each text's posterior: a lower bound, never above log N for N texts.

    I(x; F) = E_x KL(q(F|x) ‖ p(F)) − KL(q(F) ‖ p(F)) = E log q(F|x)/q(F); the prior cancels. The aggregated posterior
    q(F) is the mean of q(F|x′) over the N texts, the text itself included, which makes the estimate InfoNCE with the
    true density ratio, a lower bound. A set of m vectors has density 0 under a text with another number of vectors, so
    that the number of vectors is information too. A latent that tells all of the texts apart gives log N however much
    more it holds: near log N, the estimate says only that.
    """
    groups: dict[int, list[int]] = {}
    for index, density in enumerate(posteriors):
        groups.setdefault(len(density), []).append(index)
    total = 0.0
    for group in groups.values():
        some = [samples[index][:INFORMATION_SAMPLES] for index in group]
        z, log_pi = torch.cat([each.z for each in some]), torch.cat([each.log_pi for each in some])
        drawn = unchecked(ImpulseMixture, z=z, log_pi=log_pi)
        log_q = torch.stack([posteriors[index].log_density(drawn) for index in group])  # (texts, texts·samples)
        own = torch.cat([row.chunk(len(group))[place] for place, row in enumerate(log_q)])
        total += (own - log_q.logsumexp(0)).unflatten(0, (len(group), -1)).mean(-1).sum().item()
    return total / len(posteriors) + math.log(len(posteriors))
