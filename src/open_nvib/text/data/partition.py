"""Who goes where: the split by seed, the partitions by length, the sample. Pure functions of numpy arrays.

The split comes first and is of sentences, whatever their length. A trained tokenizer may see the training sentences
only, and lengths are known only once there is a tokenizer; so the order is split, train, count tokens, sample.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

SPLITS = ("train", "validation", "test")
_HELD_OUT = 0.1  # 10 % for the test, then 10 % of the rest for validation, as the paper has it


def split_sizes(total: int) -> tuple[int, int, int]:
    """Sizes of train, validation and test: 90/10, then 90/10. 500,000 gives the paper's 405,000/45,000/50,000."""
    test = round(total * _HELD_OUT)
    validation = round((total - test) * _HELD_OUT)
    return total - validation - test, validation, test


def assign_splits(total: int, *, seed: int) -> Int[np.ndarray, " total"]:
    """For every sentence the index of its split in `SPLITS`."""
    train, validation, test = split_sizes(total)
    splits = np.repeat(np.arange(3), [train, validation, test])
    return np.random.default_rng([seed, 0]).permutation(splits)


def within(lengths: Int[np.ndarray, " total"], bounds: Sequence[int]) -> Bool[np.ndarray, " total"]:
    """Which sentences a partition takes; both bounds are included."""
    return (lengths >= bounds[0]) & (lengths <= bounds[1])


def sample(
    candidates: Bool[np.ndarray, " total"], splits: Int[np.ndarray, " total"], *, size: int, seed: int
) -> list[Int[np.ndarray, " ..."]]:
    """Indices of the sentences of each split, in random order: `size` of the candidates, or all if there are fewer.

    A sentence stays in its split. The held-out splits get their share of `size` as far as they have it.
    """
    generator = np.random.default_rng([seed, 1])
    pools = [generator.permutation(np.flatnonzero(candidates & (splits == index))) for index in range(len(SPLITS))]
    if sum(map(len, pools)) <= size:
        return pools
    _, validation, test = split_sizes(size)
    held_out = [pools[1][:validation], pools[2][:test]]
    return [pools[0][: size - len(held_out[0]) - len(held_out[1])], *held_out]
