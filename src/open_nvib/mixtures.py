"""Mixtures that attention reads: of impulses (a sample) or of Gaussians (a mean)."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._checks import check
from open_nvib._tensors import BatchRecord, log_weight, unchecked, widen

Mixture = TypeVar("Mixture", bound=BatchRecord)


@dataclass(frozen=True, eq=False)
class ImpulseMixture(BatchRecord):
    """F = Σᵢ πᵢ δ(zᵢ): a weighted set of vectors, such as a sample of a Dirichlet process.

    >>> mixture = ImpulseMixture(z=torch.randn(2, 5, 8), log_pi=torch.zeros(2, 5))  # two sets of five equal vectors
    >>> mixture[0].vectors.shape
    torch.Size([1, 5, 8])

    Args:
        z: the vectors.
        log_pi: logarithms of their weights, -inf for a vector that is not there; they need not be normalised.
        spread: Σ_h σ_h² of each vector that stands for draws around it (`GaussianMixture.points`). Attention adds it to
            ‖z‖², which makes the squared norm that of a draw on average. None is 0: the vectors are what they are.
    """

    z: Float[Tensor, "*batch n p"]
    log_pi: Float[Tensor, "*batch n"]
    spread: Float[Tensor, "*batch n"] | None = None

    def __post_init__(self) -> None:
        spread = {} if self.spread is None else {"spread": (self.spread, "*batch n; >= 0")}
        log_pi = self.log_pi, "*batch n; log, some > -inf"
        check("ImpulseMixture", z=(self.z, "*batch n p"), log_pi=log_pi, **spread)

    @property
    def vectors(self) -> Float[Tensor, "*batch n p"]:
        """The vectors, by the name that both kinds of mixture have."""
        return self.z

    @property
    def log_weights(self) -> Float[Tensor, "*batch n"]:
        """The logarithms of the weights, by the name that both kinds of mixture have."""
        return self.log_pi

    def compact(self) -> "ImpulseMixture":
        """Remove vectors without weight: n becomes the largest number of vectors with weight in the batch."""
        return _compacted(self, self.log_pi)


@dataclass(frozen=True, eq=False)
class GaussianMixture(BatchRecord):
    """G₀ = Σᵢ αᵢ/α₀ N(μᵢ, σᵢ²): the base distribution of a Dirichlet process. `log_alpha` need not be normalised.

    >>> mu = torch.randn(2, 5, 8)
    >>> mixture = GaussianMixture(mu=mu, log_sigma=torch.full_like(mu, -1.0), log_alpha=torch.zeros(2, 5))
    >>> mixture.points().vectors.shape
    torch.Size([2, 5, 8])
    """

    mu: Float[Tensor, "*batch n p"]
    log_sigma: Float[Tensor, "*batch n p"]
    log_alpha: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        mu, log_sigma = ((x, "*batch n p") for x in (self.mu, self.log_sigma))
        check("GaussianMixture", mu=mu, log_sigma=log_sigma, log_alpha=(self.log_alpha, "*batch n; log, some > -inf"))

    @property
    def vectors(self) -> Float[Tensor, "*batch n p"]:
        """The means, by the name that both kinds of mixture have."""
        return self.mu

    @property
    def log_weights(self) -> Float[Tensor, "*batch n"]:
        """The logarithms of the weights, by the name that both kinds of mixture have."""
        return self.log_alpha

    def points(self) -> ImpulseMixture:
        """Read each component as a typical draw without its noise: impulses at μᵢ of weight αᵢ/α₀, and their spread.

        A draw z has the log-likelihood u·z/√d − ‖z‖²/2√d, on average u·μ/√d − (‖μ‖² + Σ_h σ_h²)/2√d. So attention
        over the points gives each component its average log-likelihood (see `compare_readings`).
        """
        spread = (2 * self.log_sigma).exp().sum(-1)
        return unchecked(ImpulseMixture, z=self.mu, log_pi=self.log_alpha.log_softmax(-1), spread=spread)

    def compact(self) -> "GaussianMixture":
        """Remove components without weight: n becomes the largest number of components with weight in the batch."""
        return _compacted(self, self.log_alpha)

    def mix(self, other: "GaussianMixture", weight: float | Float[Tensor, "*batch"]) -> "GaussianMixture":
        """Mix the distributions (1 − weight)·self + weight·other: the components of both, with new weights."""
        check("mix", other=(other, GaussianMixture, "Call .mean() on a posterior."))
        vectors = {
            "mu": (self.mu, "*batch n p"),
            "other": (other.mu, "real *batch m p", "Select or encode as many texts."),
        }
        check("mix", **vectors, weight=(weight, "number *batch; 0 to 1", "0 is all of self, 1 all of other."))
        share = widen(weight, like=self.mu)
        mine = self.log_alpha.log_softmax(-1) + log_weight(1 - share).to(self.log_alpha.dtype).unsqueeze(-1)
        theirs = other.log_alpha.log_softmax(-1) + log_weight(share).to(other.log_alpha.dtype).unsqueeze(-1)
        return unchecked(
            GaussianMixture,
            mu=torch.cat([self.mu, other.mu], -2),
            log_sigma=torch.cat([self.log_sigma, other.log_sigma], -2),
            log_alpha=torch.cat([mine, theirs], -1),
        )


def _compacted(mixture: Mixture, log_weights: Float[Tensor, "*batch n"]) -> Mixture:
    """Move the components with weight to the front, in their order, and cut the others off."""
    gone = log_weights.isneginf()
    most_kept = int((~gone).sum(-1).max()) if gone.numel() else 0
    order = gone.to(torch.uint8).argsort(dim=-1, stable=True)[..., :most_kept]

    def take(x: Tensor) -> Tensor:
        if x.ndim == order.ndim:
            return x.gather(-1, order)
        return x.gather(-2, order.unsqueeze(-1).expand(*order.shape, x.shape[-1]))

    return mixture.map(take)
