"""Fewer components: neighbouring tokens share one, of a given pseudo-count.

A Dirichlet process can be cut anywhere and put together again. By the aggregation property of the Dirichlet
distribution, weights that are added up are again Dirichlet, with the sum of their pseudo-counts; the other way round, a
component is the sum of two with parts of its pseudo-count. So the tokens' pseudo-counts are laid end to end and cut
where a component is full: it has what lies in it, and α₀ stays.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from open_nvib._numeric import widen
from open_nvib._records import BatchRecord, trusted

ROUNDING = 1e-6
"""Share of a component by which a sum may be off a whole number: counts that fill components exactly, such as 0.1 ten
times, do not leave a crumb in another by the rounding of their sum."""


@dataclass(frozen=True, eq=False)
class Gathered(BatchRecord):
    """Tokens after gathering. A component stands where the first token that begins in it, or is cut by it, stands.

    Args:
        alpha: pseudo-counts of the components, 0 elsewhere.
        hidden: the means of what the components hold of the tokens' hidden states, by pseudo-counts; 0 elsewhere.
    """

    alpha: Float[Tensor, "batch n"]
    hidden: Float[Tensor, "batch n size"]


@dataclass(frozen=True)
class Cuts:
    """Where tokens are cut. A token lies in one component, or is cut and lies in that and in the next.

    Args:
        counts: the tokens' pseudo-counts, in components.
        first: the place of the component that a token begins in.
        last: of the one that it ends in.
        in_last: the share of the token that lies there, 0 for one that is not cut.
    """

    counts: Float[Tensor, "batch n"]
    first: Int[Tensor, "batch n"]
    last: Int[Tensor, "batch n"]
    in_last: Float[Tensor, "batch n"]


def cut(alpha: Float[Tensor, "batch n"], per_component: Float[Tensor, ""] | float, rest: float = ROUNDING) -> Cuts:
    """Lay the pseudo-counts end to end and cut them where components are full: see `gather`."""
    counts = widen(alpha) / per_component
    room = counts.clamp(max=1.0)
    end = room.cumsum(-1)
    first = (end.detach() - room.detach() + ROUNDING).floor()
    last = torch.maximum((end.detach() - ROUNDING).ceil() - 1, first)
    final = (end[:, -1:].detach() - rest).ceil().clamp(min=1) - 1
    first, last = first.minimum(final), last.minimum(final)

    places = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
    reached = torch.where(room > 0, last, -1.0).cummax(-1).values
    opens = reached > torch.where(places == 0, -1.0, reached.roll(1, -1))
    place = torch.where(opens, places, 0).cummax(-1).values
    is_cut = last > first
    return Cuts(
        counts=counts,
        first=torch.where(is_cut, place.roll(1, -1), place),
        last=place,
        in_last=torch.where(is_cut, (end - last) / torch.where(is_cut, room, 1.0), 0.0),
    )


def gather(
    alpha: Float[Tensor, "batch n"],
    hidden: Float[Tensor, "batch n size"],
    *,
    per_component: Float[Tensor, ""] | float,
    rest: float = ROUNDING,
) -> Gathered:
    """Tokens in components of `per_component` in pseudo-counts; padding has α = 0.

    What is left at the end is one more component, or goes to the last if it is at most `rest` of one.

    Equal pseudo-counts of a share s of `per_component` put 1/s tokens in each, with parts of one where 1/s is no whole
    number. A token of more than average fills more of a component, at most one: what it has above that adds to its
    weight and takes no more room. The shares follow α smoothly, so that what a token is given is learned.
    """
    cuts = cut(alpha, per_component, rest)
    later = cuts.counts * cuts.in_last
    parts = ((cuts.first, cuts.counts - later), (cuts.last, later))
    counts, mixed = torch.zeros_like(cuts.counts), torch.zeros_like(hidden)
    for place, part in parts:
        counts = counts.scatter_add(-1, place, part)
    filled = torch.where(counts == 0, 1.0, counts)
    for place, part in parts:
        share = (part / filled.gather(-1, place)).unsqueeze(-1).to(hidden.dtype)
        mixed = mixed.scatter_add(-2, place.unsqueeze(-1).expand_as(hidden), share * hidden)
    return trusted(Gathered, alpha=(counts * per_component).to(alpha.dtype), hidden=mixed)


def homes(
    alpha: Float[Tensor, "batch n"], *, per_component: Float[Tensor, ""] | float, rest: float = ROUNDING
) -> Int[Tensor, "batch n"]:
    """For each token, where the component stands that most of it lies in; -1 where there is nothing of it."""
    cuts = cut(alpha, per_component, rest)
    return torch.where(cuts.counts > 0, torch.where(cuts.in_last > 0.5, cuts.last, cuts.first), -1)
