"""How many vectors: numbers drawn in training, so that one model works with any, and the search for the fewest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib._tensors import BatchRecord, Noise, check, unchecked, widen

ShareDistribution = Literal["log_uniform", "uniform", "divisors"]
SHARE_DISTRIBUTIONS: tuple[str, ...] = get_args(ShareDistribution)
DIVISORS = (1, 2, 3, 4, 6, 8)
"""Tokens per vector of the discrete distribution of shares."""


@dataclass(frozen=True, eq=False)
class Fewest(BatchRecord):
    """The result of `find_fewest` for each item.

    Args:
        vectors: the fewest vectors with an error of at most the threshold; those with the smallest error if there are
            none.
        error: the error with that number.
        found: whether the error is at most the threshold.
        tries: how many numbers were tried.
    """

    vectors: Int[Tensor, " items"]
    error: Float[Tensor, " items"]
    found: Bool[Tensor, " items"]
    tries: Int[Tensor, " items"]


def draw_shares(
    count: int,
    distribution: ShareDistribution = "log_uniform",
    *,
    smallest: float = 0.1,
    device: torch.device | str | None = None,
    generator: Noise = None,
) -> Float[Tensor, " count"]:
    """Draw a share of vectors per token for each item of a batch, for `VectorRequest(share=…)`.

    Args:
        count: number of items.
        distribution: "log_uniform" or "uniform" from `smallest` to 1, or "divisors": 1, 1/2, 1/3, 1/4, 1/6, 1/8 with
            equal probability, those below `smallest` left out.
        smallest: the smallest share.
        device: where to draw.
        generator: of the noise.
    """
    kinds = {"distribution": (distribution, SHARE_DISTRIBUTIONS), "smallest": (smallest, "number; share")}
    check("draw_shares", count=(count, int), **kinds)
    if distribution == "divisors":
        shares = torch.tensor([1 / k for k in DIVISORS if 1 / k >= smallest], device=device)
        return shares[torch.randint(len(shares), (count,), device=device, generator=generator)]
    level = torch.rand(count, device=device, generator=generator)
    return smallest**level if distribution == "log_uniform" else smallest + (1 - smallest) * level


def draw_numbers(
    most: Int[Tensor, " items"], distribution: ShareDistribution = "log_uniform", *, generator: Noise = None
) -> Int[Tensor, " items"]:
    """Draw a number of vectors from 1 to `most` for each item, in training.

    "log_uniform" and "uniform" draw a real number from 1 to below `most` + 1 and round it down, so 1 and `most` are
    drawn, too; "divisors" are those of `draw_shares`, rounded up.
    """
    check("draw_numbers", most=(most, "int items; >= 1"), distribution=(distribution, SHARE_DISTRIBUTIONS))
    if distribution == "divisors":
        shares = draw_shares(max(1, len(most)), distribution, device=most.device, generator=generator)[: len(most)]
        # 1e-4: 1/3 of 6 is 2, rounded or not
        return (widen(shares) * most - 1e-4).ceil().long().clamp(min=1).minimum(most)
    level = torch.rand(len(most), device=most.device, generator=generator)
    number = (most + 1.0) ** level if distribution == "log_uniform" else 1 + most * level
    return number.long().clamp(min=1).minimum(most)


def numbers_to_try(most: int) -> Iterator[int]:
    """Iterate over numbers of vectors: all up to 16, then each at most an eighth larger than the one before."""
    number = 1
    while number < most:
        yield number
        number += max(1, number // 8)
    yield most


@torch.no_grad()
def find_fewest(
    error: Callable[[Int[Tensor, " tries"], Int[Tensor, " tries"]], Float[Tensor, " tries"]],
    most: Int[Tensor, " items"],
    *,
    threshold: float,
) -> Fewest:
    """Find the fewest vectors with which the error of each item is at most a threshold, by trying from 1 upwards.

    >>> needed = torch.tensor([2, 5])  # a model whose error is 0 from that number on
    >>> find_fewest(lambda items, vectors: (vectors < needed[items]).float(), torch.tensor([8, 8]), threshold=0).vectors
    tensor([2, 5])

    Args:
        error: function of the items to try, by index, and a number of vectors for each: their errors. A typical one
            encodes the items with `VectorRequest(vectors=…)`, decodes and compares.
        most: the largest number of vectors of each item, such as its number of tokens.
        threshold: the largest error that is good enough.
    """
    check("find_fewest", most=(most, "int items; >= 1"), threshold=(threshold, "number; finite"))
    vectors, tries = most.clone(), torch.zeros_like(most)
    found = torch.zeros_like(most, dtype=torch.bool)
    best = torch.full(most.shape, torch.inf, device=most.device)
    tried = torch.zeros_like(most)  # the last number tried for each item: it is not tried twice
    for number in numbers_to_try(int(most.max()) if len(most) else 1):
        now = most.clamp(max=number)
        items = (~found & (now > tried)).nonzero().flatten()
        if not len(items):
            continue
        errors = error(items, now[items])
        check("find_fewest", items=(items, "int tries"), **{"error(…)": (errors, "real tries", "One for each item.")})
        errors = errors.to(best.dtype)
        tries[items] += 1
        tried[items] = now[items]
        better = items[errors < best[items]]
        best[better], vectors[better] = errors[errors < best[items]], now[better]
        found[items] = errors <= threshold
    return unchecked(Fewest, vectors=vectors, error=best, found=found, tries=tries)
