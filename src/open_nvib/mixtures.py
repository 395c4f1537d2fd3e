"""What attention reads: a mixture of impulses (a sample) or of Gaussians (a mean)."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._checks import can_read, check_axes, check_log_weights
from open_nvib._numeric import log_weight, widen

Record = TypeVar("Record", bound="TensorRecord")
Batch = TypeVar("Batch", bound="BatchRecord")
Index = int | slice | list[int] | Tensor


class TensorRecord:
    """A frozen dataclass of tensors and of further such records."""

    def map(self: Record, function: Callable[[Tensor], Tensor]) -> Record:
        """The record with `function` applied to each tensor, nested ones too."""

        def apply(value: Any) -> Any:
            return value.map(function) if isinstance(value, TensorRecord) else function(value)

        return trusted(type(self), **{name: apply(value) for name, value in values_of(self).items()})

    def to(self: Record, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None) -> Record:
        """On another device, or with its floating tensors of another dtype (masks stay boolean)."""
        return self.map(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype))

    def detach(self: Record) -> Record:
        return self.map(Tensor.detach)


class BatchRecord(TensorRecord):
    """A record whose tensors share their first axis, the batch."""

    def map_rows(self: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
        """The record with `function` applied to its own tensors, which have a batch axis; nested records stay."""
        own = {name: function(x) if isinstance(x, Tensor) else x for name, x in values_of(self).items()}
        return trusted(type(self), **own)

    def __len__(self) -> int:
        return len(next(iter(values_of(self).values())))

    def __getitem__(self: Batch, index: Index) -> Batch:
        """Rows of the batch, by slice, list, index tensor or mask; a single index keeps the batch axis."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"{type(self).__name__}: index {index} is out of range for a batch of {len(self)}.")
            index = slice(index, index + 1 or None)
        return self.map_rows(lambda tensor: tensor[index])


def values_of(record: TensorRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}  # pyright: ignore[reportArgumentType]


def trusted(kind: type[Record], **tensors: Any) -> Record:
    """Build a record whose values are right by construction, without reading them (a read stalls an accelerator)."""
    record = object.__new__(kind)
    for name, value in tensors.items():
        object.__setattr__(record, name, value)
    return record


@dataclass(frozen=True, eq=False)
class ImpulseMixture(BatchRecord):
    """F = Σᵢ πᵢ δ(zᵢ): a weighted set of vectors, such as a sample of a Dirichlet process."""

    z: Float[Tensor, "*batch n p"]
    log_pi: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        check_axes("ImpulseMixture", z=(self.z, "... n p"), log_pi=(self.log_pi, "... n"))
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
        share = widen(weight, like=self.mu)
        if can_read(share) and not ((share >= 0) & (share <= 1)).all():
            raise ValueError(f"mix: weight is {weight}, wanted a share between 0 (all self) and 1 (all other).")
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
