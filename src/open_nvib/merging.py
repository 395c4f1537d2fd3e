"""Merging: neighbouring tokens share a component of a given pseudo-count.

A Dirichlet process can be cut anywhere and joined again. By the aggregation property of the Dirichlet distribution,
sums of weights are again Dirichlet, with the sums of their pseudo-counts; conversely, a component can be split into two
with parts of its pseudo-count. So the pseudo-counts of the tokens are laid end to end and cut where a component is
full. The pseudo-count of a component is the sum of the parts in it, and α₀ stays the same. The size of a component can
differ from text to text, and so can the offset of the cuts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from open_nvib._checks import check
from open_nvib._tensors import BatchRecord, Hidden, Index, PerToken, TensorRecord, unchecked, widen

PerText = Real[Tensor, "..."] | float
"""A number for each text, or one for all."""

ROUNDING_TOLERANCE = 1e-6
"""Rounding error of a sum of pseudo-counts, as a share of a component. Without it, counts that fill components exactly,
such as ten times 0.1, could leave a remainder for one more component."""


@dataclass(frozen=True, eq=False)
class VectorRequest(TensorRecord):
    """How many vectors each text gets, for a layer that merges tokens or has gates.

    >>> posterior = NVIB(8, keep_share=0.5)(torch.randn(2, 6, 8), request=VectorRequest(vectors=torch.tensor([3, 1])))
    >>> posterior.kept * posterior.lengths
    tensor([3., 1.])

    Each value is a number for all texts, or a tensor with one for each. Without `vectors` and `share`, the share is the
    layer's own.

    Args:
        vectors: the number of vectors, at most the number of tokens; 0 for the layer's own share.
        share: vectors per token, above 0 and at most 1.
        offset: the part of the first vector that is left out, which moves all cuts; from 0 to below 1.
        groups: the vector of each token instead, by any number: tokens with the same number share one (`merge_groups`).
    """

    vectors: PerText | None = None
    share: PerText | None = None
    offset: PerText = 0.0
    groups: Int[Tensor, "batch n"] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("vectors", "share", "groups") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"VectorRequest: {' and '.join(given)} are given, expected one of them.")

    def __getitem__(self, rows: Index) -> "VectorRequest":
        """Select texts; a number for all texts stays."""
        return self.map(lambda values: values[rows] if values.ndim else values)


@dataclass(frozen=True, eq=False)
class MergedTokens(BatchRecord):
    """Components of merged tokens. A component is stored at the position of the first token assigned to it.

    Args:
        alpha: pseudo-counts of the components, 0 at other positions.
        hidden: mean of the tokens' hidden states in each component, weighted by pseudo-count; 0 at other positions.
    """

    alpha: PerToken
    hidden: Hidden


@dataclass(frozen=True)
class TokenSplit:
    """Assignment of tokens to components. A token lies in one component, or is cut and lies in two adjacent ones.

    Args:
        counts: pseudo-counts of the tokens, in units of a full component.
        first: position of the component in which the token begins.
        last: position of the component in which the token ends.
        in_last: share of the token in `last` if it is cut, else 0.
    """

    counts: PerToken
    first: Int[Tensor, "batch n"]
    last: Int[Tensor, "batch n"]
    in_last: PerToken


@dataclass(frozen=True)
class Cuts:
    """Where the pseudo-counts of each text are cut.

    Args:
        per_component: the pseudo-count of a full component.
        offset: the part of the first component that is left out, so that all cuts move; from 0 to below 1.
    """

    per_component: Float[Tensor, "#batch 1"] | float
    offset: Float[Tensor, "#batch 1"] | float = 0.0


def find_cuts(alpha: PerToken, request: VectorRequest, *, unit: Float[Tensor, ""] | float, share: PerText) -> Cuts:
    """Find the cuts that give each text the number or share of components that is requested.

    With a number, there are fewer components if a token has more than a component's pseudo-count. The offset is reduced
    if it would cut the first token.

    Args:
        alpha: pseudo-counts of the tokens.
        request: the number or the share of components, and the offset.
        unit: what one token is expected to have.
        share: components for each `unit` of pseudo-count, if nothing is requested.
    """
    counts = widen(alpha)
    offset = _per_text(request.offset, counts)
    present = counts > 0
    total = counts.sum(-1, keepdim=True)
    first = (counts * (present & (present.cumsum(-1) == 1))).sum(-1, keepdim=True)  # of the first token
    size = _per_text(unit, counts) / _per_text(share if request.share is None else request.share, counts)
    by_share = Cuts(size, torch.minimum(offset, 1 - (first / size).clamp(max=1.0)))
    if request.vectors is None:
        return by_share
    vectors = _per_text(request.vectors, counts)
    number = torch.minimum(vectors.clamp(min=1), present.sum(-1, keepdim=True).clamp(min=1))
    # The first component holds (1 - offset)·size, and must hold the first token: total/(number - offset) is the size.
    others = total - first
    room_before = ((total - number * first) / torch.where(others > 0, others, 1.0)).clamp(min=0.0)
    offset = torch.minimum(offset, torch.where(others > 0, room_before, 0.0))
    size = torch.where(total > 0, total, 1.0) / (number - offset)
    own = vectors == 0
    return Cuts(torch.where(own, by_share.per_component, size), torch.where(own, by_share.offset, offset))


def _per_text(value: PerText, like: Tensor) -> Float[Tensor, "batch 1"]:
    """Convert a number, or one for each text, to (1 or batch, 1) in float64."""
    return widen(value, like).reshape(-1, 1)


def split_tokens(alpha: PerToken, cuts: Cuts, max_joined_remainder: float) -> TokenSplit:
    """Lay the pseudo-counts end to end and cut them where components are full: see `merge_tokens`."""
    # Interval of each token on the line, in components: a token takes the room of at most one.
    counts = widen(alpha) / cuts.per_component
    room = counts.clamp(max=1.0)
    end = room.cumsum(-1) + cuts.offset

    # Number of the component in which each token begins and ends; a small remainder joins the last component.
    first = (end.detach() - room.detach() + ROUNDING_TOLERANCE).floor()
    last = torch.maximum((end.detach() - ROUNDING_TOLERANCE).ceil() - 1, first)
    final = (end[:, -1:].detach() - max_joined_remainder).ceil().clamp(min=1) - 1
    first, last = first.minimum(final), last.minimum(final)

    # Position of each component: that of the token with which it opens.
    positions = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
    reached = torch.where(room > 0, last, -1.0).cummax(-1).values
    opens = reached > torch.where(positions == 0, -1.0, reached.roll(1, -1))
    position = torch.where(opens, positions, 0).cummax(-1).values

    # A token that is cut begins in the component of the token before it.
    is_cut = last > first
    return TokenSplit(
        counts=counts,
        first=torch.where(is_cut, position.roll(1, -1), position),
        last=position,
        in_last=torch.where(is_cut, (end - last) / torch.where(is_cut, room, 1.0), 0.0),
    )


def merge_tokens(
    alpha: PerToken, hidden: Hidden, cuts: Cuts, *, max_joined_remainder: float = ROUNDING_TOLERANCE
) -> MergedTokens:
    """Merge tokens into components; padding has α = 0.

    The remainder at the end of a text is one more component, or joins the last if it is at most `max_joined_remainder`
    of a component.

    If all pseudo-counts are a share s of a component's, each component has 1/s tokens, with parts of tokens if 1/s is
    not a whole number. A token with a larger pseudo-count fills more of a component, at most a whole one: the excess
    adds to its weight and takes no more room. The shares are smooth in α, so that they can be learned.
    """
    split = split_tokens(alpha, cuts, max_joined_remainder)
    in_last = split.counts * split.in_last
    parts = ((split.first, split.counts - in_last), (split.last, in_last))
    counts, mixed = torch.zeros_like(split.counts), torch.zeros_like(hidden)
    for position, part in parts:
        counts = counts.scatter_add(-1, position, part)
    filled = torch.where(counts == 0, 1.0, counts)
    for position, part in parts:
        share = (part / filled.gather(-1, position)).unsqueeze(-1).to(hidden.dtype)
        mixed = mixed.scatter_add(-2, position.unsqueeze(-1).expand_as(hidden), share * hidden)
    return unchecked(MergedTokens, alpha=(counts * cuts.per_component).to(alpha.dtype), hidden=mixed)


def merge_groups(alpha: PerToken, hidden: Hidden, groups: Int[Tensor, "batch n"]) -> MergedTokens:
    """Merge the tokens of each group into one component; padding has α = 0.

    The order of the tokens does not matter: it is a way of merging for sets. Groups of one token change nothing.

    Args:
        alpha: pseudo-counts of the tokens.
        hidden: hidden states of the tokens.
        groups: the group of each token, by any number, such as the label of a cluster.
    """
    states = {"hidden": (hidden, "real batch n size"), "groups": (groups, "int batch n")}
    check("merge_groups", alpha=(alpha, "batch n; >= 0"), **states)
    position = first_of_group(alpha, groups).clamp(min=0)  # a token without weight adds nothing wherever it goes
    counts = torch.zeros_like(alpha).scatter_add(-1, position, alpha)
    share = alpha / torch.where(counts == 0, 1.0, counts).gather(-1, position)
    weighted = share.unsqueeze(-1).to(hidden.dtype) * hidden
    mixed = torch.zeros_like(hidden).scatter_add(-2, position.unsqueeze(-1).expand_as(hidden), weighted)
    return unchecked(MergedTokens, alpha=counts, hidden=mixed)


def first_of_group(alpha: PerToken, groups: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    """Find the position of the first token with weight in each token's group; -1 for a token with α = 0."""
    present = alpha > 0
    same = (groups.unsqueeze(-1) == groups.unsqueeze(-2)) & present.unsqueeze(-2)  # (batch, token, other token)
    return torch.where(present, same.to(torch.uint8).argmax(-1), -1)


def component_of_token(
    alpha: PerToken, cuts: Cuts, *, max_joined_remainder: float = ROUNDING_TOLERANCE
) -> Int[Tensor, "batch n"]:
    """Find the position of the component that holds the largest part of each token; -1 for a token with α = 0."""
    split = split_tokens(alpha, cuts, max_joined_remainder)
    return torch.where(split.counts > 0, torch.where(split.in_last > 0.5, split.last, split.first), -1)
