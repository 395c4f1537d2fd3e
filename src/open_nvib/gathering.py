"""Fewer components: neighbouring tokens share one until it holds a given pseudo-count.

By the aggregation property of the Dirichlet distribution, weights that are added up are again Dirichlet, with the sum
of their pseudo-counts. So a run of tokens can become one component that has all their evidence, and α₀ stays.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from open_nvib._numeric import widen
from open_nvib._records import BatchRecord, trusted

ROUNDING = 1e-6
"""Share of a component by which the running sum may be above a whole number: counts that fill components exactly, such
as 0.1 ten times, do not begin another by the rounding of their sum."""


@dataclass(frozen=True, eq=False)
class Gathered(BatchRecord):
    """Tokens after gathering: the first of each run has all of its pseudo-count, the others have none.

    Args:
        alpha: pseudo-counts, 0 but for the first token of each run.
        hidden: at those, the mean of the run's hidden states, weighted by the tokens' own pseudo-counts; elsewhere 0.
    """

    alpha: Float[Tensor, "batch n"]
    hidden: Float[Tensor, "batch n size"]


def starts_run(alpha: Float[Tensor, "batch n"], per_component: Float[Tensor, ""] | float) -> Bool[Tensor, "batch n"]:
    """Whether a token begins a run: where the running sum of α passes a multiple of `per_component`.

    Equal pseudo-counts of a share s of `per_component` make it every 1/s-th token, the first included, as a stride
    does. A token of more than average begins one sooner, and one that fills a component has it for itself.
    """
    run = (widen(alpha).cumsum(-1) / per_component - ROUNDING).ceil()
    return run > F.pad(run[:, :-1], (1, 0))


def gather(
    alpha: Float[Tensor, "batch n"],
    hidden: Float[Tensor, "batch n size"],
    *,
    per_component: Float[Tensor, ""] | float,
) -> Gathered:
    """Runs of tokens as one component each, of about `per_component` in pseudo-counts; padding has α = 0."""
    places = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
    first = torch.where(starts_run(alpha.detach(), per_component), places, 0).cummax(-1).values  # of a token's run
    gathered = torch.zeros_like(alpha).scatter_add(-1, first, alpha)
    total = gathered.gather(-1, first)
    share = alpha / torch.where(total == 0, 1.0, total)
    wide = first.unsqueeze(-1).expand_as(hidden)
    mixed = torch.zeros_like(hidden).scatter_add(-2, wide, share.unsqueeze(-1).to(hidden.dtype) * hidden)
    return trusted(Gathered, alpha=gathered, hidden=mixed)
