"""Paths between two texts through the latent: how fluent the texts on the way are, and how smoothly they change."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from open_nvib.store.evaluations import Interpolation
from open_nvib.text.model.decoding import BATCH, decode
from open_nvib.text.using.run import Run

EXAMPLES = 3

Ids = Sequence[int]  # a text of token ids, without special tokens


def measure_interpolation(
    run: Run,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    steps: int,
    perplexity: Callable[[list[list[int]]], float],
    word_perplexity: Callable[[list[list[int]]], float | None] | None = None,
) -> Interpolation:
    """Measure the texts on the paths between the two texts of each pair; the perplexities are functions of texts."""
    paths = interpolate_pairs(run, pairs, steps)
    values = [smoothness(path) for path in paths]
    points = [[path[step] for path in paths] for step in range(steps)]
    return Interpolation(
        pairs=len(paths),
        steps=steps,
        perplexity=tuple(perplexity(texts) for texts in points),
        word_perplexity=() if word_perplexity is None else tuple(word_perplexity(texts) for texts in points),
        smoothness=statistics.fmean(values),
        smoothness_sd=statistics.stdev(values) if len(values) > 1 else 0.0,
        examples=tuple(tuple(run.tokenizer.batch_decode(path)) for path in paths[:EXAMPLES]),
    )


@torch.no_grad()
def interpolate_pairs(run: Run, pairs: Sequence[tuple[Ids, Ids]], steps: int) -> list[list[list[int]]]:
    """Interpolate between many pairs as `Run.interpolate` does, decoded together, and return the decoder's own tokens.

    Their text, tokenised again, can be other tokens, and more of them than the model takes.
    """
    paths: list[list[list[int]]] = []
    for first in range(0, len(pairs), BATCH):
        latent: Any = run.encode_ids([text for pair in pairs[first : first + BATCH] for text in pair])
        ends, limits = (latent[::2], latent[1::2]), 2 * torch.maximum(latent.lengths[::2], latent.lengths[1::2])
        points = [ends[0].mix(ends[1], step / (steps - 1)) for step in range(steps)]
        texts = [decode(run.model, point, limits) for point in points]
        paths += [list(path) for path in zip(*texts, strict=True)]
    return paths


def smoothness(path: Sequence[Sequence[int]]) -> float:
    """Rate from 0 to 1 how directly and how evenly a path of k steps goes from its first text to its last.

    With the edit distances dₜ between neighbours, their sum D, and the distance E from end to end,

        E/D · ⌈D/k⌉/max dₜ.

    E/D ≤ 1 is directness: the triangle inequality, with equality where no edit is undone. ⌈D/k⌉ is the least that the
    largest of k whole steps can be, so the second factor is evenness. 1 is a path that is direct and as even as whole
    edits allow; one that changes all of E ≥ k edits at once has about 1/k; one that comes back to where it was has 0,
    as has one on which nothing changes, which leads nowhere: a decoder that ignores the latent is not smooth.
    """
    distances = [edit_distance(a, b) for a, b in itertools.pairwise(path)]
    total, direct = sum(distances), edit_distance(path[0], path[-1])
    if not total:
        return 0.0
    return direct / total * math.ceil(total / len(distances)) / max(distances)


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the insertions, deletions and replacements of tokens from one text to the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, token in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != other))
    return row[-1]
