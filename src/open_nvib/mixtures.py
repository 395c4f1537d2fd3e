"""What attention reads: a mixture of impulses (a sample) or of Gaussians (a mean)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._checks import can_read, check_axes, check_batch, check_log_weights
from open_nvib._numeric import log_weight, widen
from open_nvib._records import BatchRecord, trusted


@dataclass(frozen=True, eq=False)
class ImpulseMixture(BatchRecord):
    """F = Σᵢ πᵢ δ(zᵢ): a weighted set of vectors, such as a sample of a Dirichlet process."""

    z: Float[Tensor, "*batch n p"]
    log_pi: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        check_axes("ImpulseMixture", z=(self.z, "... n p"), log_pi=(self.log_pi, "... n"))
        check_batch("ImpulseMixture", z=(self.z, 2), log_pi=(self.log_pi, 1))
        check_log_weights("ImpulseMixture", "log_pi", self.log_pi)

    def compact(self) -> "ImpulseMixture":
        """The same mixture without its vectors of no weight: n falls to the largest number kept in the batch."""
        order = _kept_first(self.log_pi)
        return trusted(
            ImpulseMixture,
            z=self.z.gather(-2, order.unsqueeze(-1).expand(*order.shape, self.z.shape[-1])),
            log_pi=self.log_pi.gather(-1, order),
        )


@dataclass(frozen=True, eq=False)
class GaussianMixture(BatchRecord):
    """G₀ = Σᵢ αᵢ/α₀ N(μᵢ, σᵢ²): the base distribution of a Dirichlet process. `log_alpha` need not be normalised."""

    mu: Float[Tensor, "*batch n p"]
    log_sigma: Float[Tensor, "*batch n p"]
    log_alpha: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        check_axes(
            "GaussianMixture",
            mu=(self.mu, "... n p"),
            log_sigma=(self.log_sigma, "... n p"),
            log_alpha=(self.log_alpha, "... n"),
        )
        check_batch("GaussianMixture", mu=(self.mu, 2), log_sigma=(self.log_sigma, 2), log_alpha=(self.log_alpha, 1))
        check_log_weights("GaussianMixture", "log_alpha", self.log_alpha)

    def compact(self) -> "GaussianMixture":
        """The same mixture without its components of no weight: n falls to the largest number kept in the batch."""
        order = _kept_first(self.log_alpha)
        wide = order.unsqueeze(-1).expand(*order.shape, self.mu.shape[-1])
        return trusted(
            GaussianMixture,
            mu=self.mu.gather(-2, wide),
            log_sigma=self.log_sigma.gather(-2, wide),
            log_alpha=self.log_alpha.gather(-1, order),
        )

    def mix(self, other: "GaussianMixture", weight: float | Float[Tensor, "*batch"]) -> "GaussianMixture":
        """(1 − weight)·self + weight·other, as distributions: all components of both, reweighted."""
        if not isinstance(other, GaussianMixture) or other.mu.shape[-1] != self.mu.shape[-1] or len(other) != len(self):
            got = tuple(other.mu.shape) if isinstance(other, GaussianMixture) else type(other).__name__
            raise ValueError(
                f"mix: other is {got}, wanted a GaussianMixture with the batch and p of {tuple(self.mu.shape)}. "
                f"Index or encode so that the texts pair up."
            )
        share = widen(weight, like=self.mu)
        if share.ndim and share.shape != self.log_alpha.shape[:-1]:
            raise ValueError(
                f"mix: weight has shape {tuple(share.shape)}, wanted a number or {tuple(self.log_alpha.shape[:-1])}."
            )
        if can_read(share) and not ((share >= 0) & (share <= 1)).all():
            raise ValueError(f"mix: weight is {weight}, wanted a share from 0 (all self) to 1 (all other).")
        mine = self.log_alpha.log_softmax(-1) + log_weight(1 - share).to(self.log_alpha.dtype).unsqueeze(-1)
        theirs = other.log_alpha.log_softmax(-1) + log_weight(share).to(other.log_alpha.dtype).unsqueeze(-1)
        return trusted(
            GaussianMixture,
            mu=torch.cat([self.mu, other.mu], -2),
            log_sigma=torch.cat([self.log_sigma, other.log_sigma], -2),
            log_alpha=torch.cat([mine, theirs], -1),
        )


def _kept_first(log_weights: Float[Tensor, "*batch n"]) -> Tensor:
    """Indices that bring the components with weight to the front, in their order, and cut the rest."""
    gone = log_weights.isneginf()
    most_kept = int((~gone).sum(-1).max()) if gone.numel() else 0
    return gone.to(torch.uint8).argsort(dim=-1, stable=True)[..., :most_kept]
