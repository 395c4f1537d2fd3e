"""Merging: neighbouring tokens share a component of a given pseudo-count; tokens of a set share a vector.

A Dirichlet process can be cut anywhere and joined again. By the aggregation property of the Dirichlet distribution,
sums of weights are again Dirichlet, with the sums of their pseudo-counts; conversely, a component can be split into two
with parts of its pseudo-count. So the pseudo-counts of the tokens are laid end to end and cut where a component is
full. The pseudo-count of a component is the sum of the parts in it, and α₀ stays the same. The size of a component can
differ from text to text, and so can the offset of the cuts.

The tokens of a set have no order: `merge_groups` takes groups as they are given, `SetPool` finds them by distance.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real, Shaped
from torch import Tensor, nn

from open_nvib._tensors import (
    BatchRecord,
    Hidden,
    Index,
    PerToken,
    TensorRecord,
    at_least_float32,
    check,
    unchecked,
    widen,
)

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
    """Assignment of tokens to components. A token lies in one component, or is cut and lies in two adjacent ones."""

    counts: PerToken  # pseudo-counts in units of a full component
    first: Int[Tensor, "batch n"]  # position of the component in which the token begins
    last: Int[Tensor, "batch n"]  # position of the component in which it ends
    in_last: PerToken  # share of the token in `last` if it is cut, else 0
    per_component: Float[Tensor, "#batch 1"] | float  # pseudo-count of a full component

    def merge(self, hidden: Hidden) -> MergedTokens:
        """Add up the pseudo-counts in each component, and average the hidden states."""
        in_last = self.counts * self.in_last
        # A token has a part in the component where it begins, and one in that where it ends, most often of 0.
        parts = ((self.first, self.counts - in_last), (self.last, in_last))
        counts, mixed = torch.zeros_like(self.counts), torch.zeros_like(hidden)
        for position, part in parts:
            counts = counts.scatter_add(-1, position, part)
        filled = torch.where(counts == 0, 1.0, counts)
        for position, part in parts:
            share = (part / filled.gather(-1, position)).unsqueeze(-1).to(hidden.dtype)
            mixed = mixed.scatter_add(-2, position.unsqueeze(-1).expand_as(hidden), share * hidden)
        return unchecked(MergedTokens, alpha=counts * self.per_component, hidden=mixed)

    def component_of_token(self) -> Int[Tensor, "batch n"]:
        """Find the position of the component that holds the largest part of each token; -1 for a token with α = 0."""
        return torch.where(self.counts > 0, torch.where(self.in_last > 0.5, self.last, self.first), -1)


@dataclass(frozen=True)
class Cuts:
    """Where the pseudo-counts of each text are cut."""

    per_component: Float[Tensor, "#batch 1"] | float  # pseudo-count of a full component
    offset: Float[Tensor, "#batch 1"] | float = 0.0  # part of the first component that is left out, below 1: moves all


def find_cuts(alpha: PerToken, request: VectorRequest, *, unit: Float[Tensor, ""] | float, share: PerText) -> Cuts:
    """Find the cuts that give each text the number or share of components that is requested.

    With a number, there are fewer components if a token has more than a component's pseudo-count. The offset is reduced
    if it would cut the first token. If nothing is requested, there are `share` components for each `unit` of
    pseudo-count, which is what one token is expected to have.
    """
    counts = widen(alpha)
    offset = _per_text(request.offset, counts)
    present = counts > 0
    total = counts.sum(-1, keepdim=True)
    first = (counts * (present & (present.cumsum(-1) == 1))).sum(-1, keepdim=True)  # of the first token

    # By a share, the size of a component follows from what a token is expected to have.
    size = _per_text(unit, counts) / _per_text(share if request.share is None else request.share, counts)
    by_share = Cuts(size, torch.minimum(offset, 1 - (first / size).clamp(max=1.0)))
    if request.vectors is None:
        return by_share

    # By a number, the components of a text share its total evenly, but for what the offset leaves out of the first.
    vectors = _per_text(request.vectors, counts)
    number = torch.minimum(vectors.clamp(min=1), present.sum(-1, keepdim=True).clamp(min=1))
    # The first component holds (1 - offset)·size, and must hold the first token: total/(number - offset) is the size.
    others = total - first
    room_before = ((total - number * first) / torch.where(others > 0, others, 1.0)).clamp(min=0.0)
    offset = torch.minimum(offset, torch.where(others > 0, room_before, 0.0))
    size = torch.where(total > 0, total, 1.0) / (number - offset)

    # A text with the number 0 gets its own share.
    own = vectors == 0
    return Cuts(torch.where(own, by_share.per_component, size), torch.where(own, by_share.offset, offset))


def _per_text(value: PerText, like: Tensor) -> Float[Tensor, "batch 1"]:
    """Convert a number, or one for each text, to (1 or batch, 1) in float64."""
    return widen(value, like).reshape(-1, 1)


def split_tokens(alpha: PerToken, cuts: Cuts, *, max_joined_remainder: float = ROUNDING_TOLERANCE) -> TokenSplit:
    """Lay the pseudo-counts end to end and cut them where components are full; padding has α = 0.

    The remainder at the end of a text is one more component, or joins the last if it is at most `max_joined_remainder`
    of a component.

    If all pseudo-counts are a share s of a component's, each component has 1/s tokens, with parts of tokens if 1/s is
    not a whole number. A token with a larger pseudo-count fills more of a component, at most a whole one: the excess
    adds to its weight and takes no more room. The shares are smooth in α, so that they can be learned.
    """
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
        per_component=cuts.per_component,
    )


def split_groups(alpha: PerToken, groups: Int[Tensor, "batch n"]) -> TokenSplit:
    """Assign each token to the component of its group, at the position of the first token with weight in the group."""
    same = (groups.unsqueeze(-1) == groups.unsqueeze(-2)) & (alpha > 0).unsqueeze(-2)  # (batch, token, other token)
    position = same.to(torch.uint8).argmax(-1) if alpha.shape[-1] else groups.long()  # argmax of nothing is an error
    return TokenSplit(alpha, first=position, last=position, in_last=torch.zeros_like(alpha), per_component=1.0)


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
    return split_groups(alpha, groups).merge(hidden)


@dataclass(frozen=True, eq=False)
class PooledSet(BatchRecord):
    """Hidden states of the vectors of each set, and which of them there are: the input of `NVIB`.

    Args:
        hidden: the hidden states; 0 where there is no vector.
        mask: which vectors there are.
        groups: the vector that each token has joined, by index; -1 for padding.
    """

    hidden: Float[Tensor, "batch vectors size"]
    mask: Bool[Tensor, "batch vectors"]
    groups: Int[Tensor, "batch n"]


def nearest_centres(
    places: Shaped[Tensor, "batch n dims"], mask: Bool[Tensor, "batch n"], counts: Int[Tensor, " batch"], width: int
) -> Int[Tensor, "batch n"]:
    """Find the centre nearest to each token, by number, among `counts` ≤ `width` centres in each set.

    The centres are tokens, by farthest-point sampling: the first is the one nearest to the mean of the set, each other
    is the one farthest from those before it. Of tokens at the same distance, the first is taken.
    """
    places = places.detach().to(at_least_float32(places.dtype))
    wide = places.masked_fill(~mask.unsqueeze(-1), 0.0)
    middle = wide.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
    centre = (wide - middle).square().sum(-1).masked_fill(~mask, torch.inf).argmin(-1)  # (batch,)
    nearest = torch.full(mask.shape, torch.inf, dtype=wide.dtype, device=wide.device)
    cells = torch.zeros(mask.shape, dtype=torch.long, device=wide.device)
    for number in range(width):
        at = wide.gather(1, centre[:, None, None].expand(-1, 1, wide.shape[-1]))
        distance = (wide - at).square().sum(-1)
        closer = (distance < nearest) & (number < counts).unsqueeze(-1)
        cells, nearest = torch.where(closer, number, cells), torch.where(closer, distance, nearest)
        centre = nearest.masked_fill(~mask, -1.0).argmax(-1)
    return cells


class SetPool(nn.Module):
    """Merge tokens around evenly spread centres into the number of vectors asked for.

    Farthest-point sampling spreads the centres, a token joins the nearest one, and a vector is the mean of its tokens
    plus a feed-forward layer whose hidden units are averaged over them. With as many vectors as tokens, each token has
    its own. The order of the tokens does not matter.

    >>> pool, nvib, tokens = SetPool(16), NVIB(16), torch.randn(2, 49, 16)
    >>> pooled = pool(tokens, vectors=torch.tensor([3, 8]))
    >>> nvib(pooled.hidden, pooled.mask).lengths
    tensor([3, 8])

    Args:
        size: size of the tokens and of the vectors.
        ffn_size: size of the feed-forward layer; default 4·`size`.
    """

    def __init__(self, size: int, *, ffn_size: int | None = None) -> None:
        super().__init__()
        width = 4 * size if ffn_size is None else ffn_size
        check("SetPool", size=(size, int), ffn_size=(width, int))
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, width), nn.Linear(width, size)

    def forward(
        self,
        tokens: Float[Tensor, "batch n size"],
        mask: Bool[Tensor, "batch n"] | None = None,
        *,
        vectors: Int[Tensor, " batch"] | int | None = None,
        places: Shaped[Tensor, "batch n dims"] | None = None,
    ) -> PooledSet:
        """Pool the tokens of each set into `vectors` vectors, for all sets or for each; default one for each token.

        The result has `vectors` columns if that is one number for all sets, and n otherwise. A set has at most as many
        vectors as tokens at different places. `places` are the coordinates that distances are measured in; default the
        tokens themselves. `mask` is True for real tokens; a set without any has no vectors.
        """
        check("SetPool", weight=(self.up.weight, "width size"), tokens=(tokens, "batch n size"))
        n = tokens.shape[1]
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
        vectors = max(1, n) if vectors is None else vectors
        given = {"vectors": (vectors, "number batch; >= 1, whole")} | (
            {} if places is None else {"places": (places, "real batch n dims")}
        )
        check("SetPool", tokens=(tokens, "batch n size"), mask=(mask, "bool batch n"), **given)
        if places is not None:  # NaN is no distance: all tokens would share one vector
            check("SetPool", places=(places.masked_fill(~mask.unsqueeze(-1), 0), "real batch n dims; finite"))
        places = tokens if places is None else places
        if not n:
            return unchecked(PooledSet, hidden=tokens, mask=mask, groups=mask.long())
        width = min(vectors, n) if isinstance(vectors, int) else n
        counts = torch.as_tensor(vectors, device=tokens.device).expand(len(tokens))
        cells = nearest_centres(places, mask, counts, width)
        shares = F.one_hot(cells, width).to(tokens.dtype) * mask.unsqueeze(-1)  # (batch, n, width)
        size = shares.sum(1).unsqueeze(-1)  # tokens of each vector
        shares = shares.mT / size.clamp(min=1.0)
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0.0)
        hidden = shares @ tokens + self.down(shares @ F.gelu(self.up(self.norm(tokens))))
        there = size.squeeze(-1) > 0
        hidden, groups = hidden.masked_fill(~there.unsqueeze(-1), 0.0), cells.masked_fill(~mask, -1)
        return unchecked(PooledSet, hidden=hidden, mask=there, groups=groups)
