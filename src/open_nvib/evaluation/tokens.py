"""Which tokens the vectors are spent on: by how frequent they are, what they are, and where they stand."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from open_nvib.text.model.bottlenecks import Bottleneck, NVIBBottleneck
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch
from open_nvib.text.using.run import Run

RANKS = ((10, "the 10 most frequent"), (100, "to rank 100"), (1000, "to rank 1,000"))
RARE = "rarer"
KINDS = ("word", "continued", "number", "punctuation")
PARTS = ("first fifth", "second", "third", "fourth", "last fifth")


@dataclass(frozen=True)
class Group:
    """Tokens that have something in common.

    Args:
        by: what they are grouped by: frequency, kind or place.
        name: of the group.
        tokens: how many there are.
        vectors: mean share of a vector that one has. Over all tokens it is the number of vectors for each, but that
            the last vector of a text, which may not be full, is a part of one here.
    """

    by: str
    name: str
    tokens: int
    vectors: float


def vectors_of_tokens(
    bottleneck: Bottleneck, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"]
) -> Float[Tensor, "batch n"]:
    """The share of a vector that each token has.

    A token that has a vector of its own has 1, one that was dropped has 0. One that is gathered with its neighbours has
    the part of a component that it fills; where it fills all of one, 1. Padding has 0.
    """
    if isinstance(bottleneck, NVIBBottleneck):
        layer = bottleneck.nvib
        alpha = layer.pseudo_counts(hidden, mask)
        if layer.keep_share is None:
            return (alpha > 0).float()
        return (alpha / layer.per_vector).clamp(max=1.0).float()
    kept = bottleneck(hidden, mask).mask
    if kept.shape != mask.shape:
        raise ValueError("vectors_of_tokens: a pooled latent has one vector for all tokens and none for each.")
    return kept.float()


@torch.no_grad()
def tokens_kept(run: Run, texts: Texts, training: Iterable[Iterable[int]]) -> list[Group]:
    """The mean share of a vector for groups of the texts' tokens; frequencies are those of `training`."""
    counts = np.bincount(np.concatenate([np.asarray(text) for text in training]), minlength=len(run.tokenizer))
    rank = np.empty(len(counts), dtype=int)
    rank[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    names = run.tokenizer.convert_ids_to_tokens(list(range(len(run.tokenizer))))
    tests: dict[str, Callable[[int, float], str]] = {
        "frequency": lambda token, _: rank_of(int(rank[token])),
        "kind": lambda token, _: kind_of(names[token]),
        "place": lambda _, place: PARTS[int(len(PARTS) * place)],
    }
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(run.model, batch)
        mask = inputs["attention_mask"].bool()
        hidden = run.model.encoder.hidden_states(inputs["input_ids"], mask)
        shares = vectors_of_tokens(run.model.encoder.bottleneck, hidden, mask).tolist()
        for text, row in zip(batch, shares, strict=True):
            for index, (token, share) in enumerate(zip(text, row, strict=False)):
                for by, group in tests.items():
                    sums[by, group(int(token), index / len(text))].append(share)
    order = [("frequency", name) for name in (*(name for _, name in RANKS), RARE)]
    order += [("kind", name) for name in KINDS] + [("place", name) for name in PARTS]
    return [
        Group(by, name, len(sums[by, name]), float(np.mean(sums[by, name]))) for by, name in order if sums[by, name]
    ]


def rank_of(rank: int) -> str:
    """The group of a token by how many are at least as frequent."""
    return next((name for highest, name in RANKS if rank <= highest), RARE)


def kind_of(token: str) -> str:
    """Whether a word piece begins a word, goes on with one, or is of digits or of marks."""
    if token.startswith("##"):
        return "continued"
    if any(sign.isdigit() for sign in token):
        return "number"
    return "word" if any(sign.isalpha() for sign in token) else "punctuation"
