"""Compare the three readings of a posterior: a sample, the mean and the points.

Attention reads a component as a Gaussian likelihood of the query u. A sample has the likelihood of one draw z, the mean
has the average of the likelihood over draws, and the points have the average of its logarithm. The average of a
likelihood is above a typical one (Jensen), most of all for a wide Gaussian and a query far from it. So the mean may
attend to a component that no sample attends to.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._tensors import Noise, check
from open_nvib.attention import DenoisingAttention
from open_nvib.process import Posterior

MOVED = 0.05
"""Attention that the mean or the points may give the prior's component beyond what samples give it."""


def likelihood_gap(
    u: Float[Tensor, "*#batch queries p"],
    mu: Float[Tensor, "*#batch n p"],
    log_sigma: Float[Tensor, "*#batch n p"],
    *,
    d: int,
) -> Float[Tensor, "*batch queries n"]:
    """Nats by which the mean of a process favours each component over a typical sample, for each query.

    log E[g(u; z, √d I)] − E[log g(u; z, √d I)] with z ~ N(μ, σ²), in closed form:

        ½ Σ_h [σ_h² (u_h − μ_h)² / (√d (√d + σ_h²)) + σ_h²/√d − log(1 + σ_h²/√d)].

    For small σ it is about ‖u − μ‖² σ²/2d. A gap that all components share cancels in the softmax.
    """
    gaussians = {"mu": (mu, "... n p"), "log_sigma": (log_sigma, "... n p")}
    check("likelihood_gap", u=(u, "... queries p"), **gaussians, d=(d, int))
    scale = d**-0.5
    ratio = (2 * log_sigma - 0.5 * math.log(d)).exp()  # σ²/√d
    r = ratio / (1 + ratio)
    squared = u.square() @ r.mT - 2 * (u @ (r * mu).mT) + (r * mu.square()).sum(-1).unsqueeze(-2)
    return 0.5 * (scale * squared + (ratio - ratio.log1p()).sum(-1).unsqueeze(-2))


@dataclass(frozen=True)
class ReadingComparison:
    """How attention over the mean and over the points differs from attention over samples.

    >>> nvib, attention = NVIB(8), DenoisingAttention(8)
    >>> found = compare_readings(attention, torch.randn(2, 3, 8), nvib(torch.randn(2, 5, 8)))
    >>> reading = "mean" if found.mean_agrees else "points" if found.points_agree else "sample"

    Attributes:
        mean_distance: distance of the output over the mean from the average output over samples, relative to its norm.
        points_distance: the same for the points.
        sample_distance: the same for a single sample: what distance is noise.
        mean_prior_weight, points_prior_weight, sample_prior_weight: attention that goes to the prior's component.
        gap: nats by which the mean favours the prior's component over the components that samples attend to.
    """

    mean_distance: float
    points_distance: float
    sample_distance: float
    mean_prior_weight: float
    points_prior_weight: float
    sample_prior_weight: float
    gap: float

    @property
    def mean_agrees(self) -> bool:
        """Whether the mean is no farther from the average of samples than one sample is, nor drawn to the prior.

        Drawn to the prior: the prior's component gets over 0.05 of attention more from the mean than from samples.
        """
        return self._agrees(self.mean_distance, self.mean_prior_weight)

    @property
    def points_agree(self) -> bool:
        """Whether the points are no farther from the average of samples than one sample is, nor drawn to the prior."""
        return self._agrees(self.points_distance, self.points_prior_weight)

    def _agrees(self, distance: float, prior_weight: float) -> bool:
        return distance <= self.sample_distance and prior_weight - self.sample_prior_weight <= MOVED


@torch.no_grad()
def compare_readings(
    attention: DenoisingAttention,
    query: Float[Tensor, "batch queries size"],
    posterior: Posterior,
    *,
    samples: int = 16,
    generator: Noise = None,
) -> ReadingComparison:
    """Attend to the mean, the points and some samples of a posterior, and compare the results.

    Use it on held-out data of a trained model. If `mean_agrees` is False and `points_agree` is True, test with the
    points.
    """
    readable = {"attention": (attention, DenoisingAttention), "posterior": (posterior, Posterior, "Call NVIB.")}
    check("compare_readings", **readable, samples=(samples, int))
    if samples < 2:
        raise ValueError(f"compare_readings: samples is {samples}, expected at least 2.")
    if not query.numel():
        raise ValueError(f"compare_readings: query has the shape {tuple(query.shape)}, expected at least one query.")
    drawn = [posterior.sample(generator=generator) for _ in range(samples)]
    outputs = torch.stack([attention(query, sample) for sample in drawn])
    shares = torch.stack([attention.weights(query, sample) for sample in drawn]).mean(0)  # (batch, heads, queries, n)
    average = outputs.mean(0)

    def distance(output: Tensor) -> float:
        return ((output - average).norm(dim=-1) / average.norm(dim=-1).clamp(min=1e-12)).mean().item()

    def prior_weight(weights: Tensor) -> float:
        return weights[..., -1].mean().item()

    mean, points = posterior.mean(), posterior.points()
    u = attention.latent_queries(query)  # (batch, heads, queries, p)
    dtype = torch.promote_types(u.dtype, mean.mu.dtype)
    u, mu, log_sigma = (x.to(dtype) for x in (u, mean.mu.unsqueeze(1), mean.log_sigma.unsqueeze(1)))
    gaps = likelihood_gap(u, mu, log_sigma, d=attention.d)
    return ReadingComparison(
        mean_distance=distance(attention(query, mean)),
        points_distance=distance(attention(query, points)),
        sample_distance=sum(map(distance, outputs)) / samples,
        mean_prior_weight=prior_weight(attention.weights(query, mean)),
        points_prior_weight=prior_weight(attention.weights(query, points)),
        sample_prior_weight=prior_weight(shares),
        gap=(gaps[..., -1] - (shares * gaps).sum(-1)).mean().item(),
    )
