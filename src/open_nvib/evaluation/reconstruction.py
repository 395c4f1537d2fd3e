"""Reconstruction of unseen texts, the number of vectors kept for them, and the tokens that these are spent on."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from open_nvib.store.evaluations import Example, KeptAtLength, Reconstruction
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.decoding import (
    BATCH,
    NO_CUTS,
    Texts,
    encode_batches,
    evaluate_losses,
    in_batches,
    make_batch,
    reading,
    reconstruct_ids,
    score_reconstruction,
)
from open_nvib.text.using.run import Run

EXAMPLES = 10
RANKS = {10: "the 10 most frequent", 100: "to rank 100", 1000: "to rank 1,000"}
RARE = "rarer"
KINDS = ("word", "continued", "number", "punctuation")
PLACES = ("first fifth", "second", "third", "fourth", "last fifth")


def measure_reconstruction(run: Run, texts: Texts, originals: Sequence[str] | None = None) -> Reconstruction:
    """Measure BLEU, perplexity and exact matches at the mean of the latent, and the vectors kept.

    Of an NVAE, BLEU and exact matches are those of the points, too. `originals` are the texts before they were
    tokenised, if they are known.
    """
    losses = evaluate_losses(run.model, texts)
    decoded = reconstruct_ids(run.model, texts, progress="reconstruct")
    scores, signature = score_reconstruction(texts, decoded, run.tokenizer, originals)
    kept = vectors_kept(run.model, texts)
    points: dict[str, float] = {}
    if run.model.encoder.bottleneck.has_points:
        with reading(run.model, "points"):
            from_points = reconstruct_ids(run.model, texts, progress="reconstruct from points")
        points, _ = score_reconstruction(texts, from_points, run.tokenizer)
    shown, copies = (run.tokenizer.batch_decode([list(ids) for ids in many[:EXAMPLES]]) for many in (texts, decoded))
    return Reconstruction(
        sentences=len(texts),
        bleu=scores["bleu"],
        text_bleu=scores.get("text_bleu"),
        signature=signature,
        exact=scores["exact"],
        points_bleu=points.get("bleu"),
        points_exact=points.get("exact"),
        perplexity=losses["perplexity"],
        cross_entropy=losses["loss"],
        kept=kept_share(texts, kept),
        by_length=by_length(texts, kept),
        examples=tuple(map(Example, shown, copies)),
    )


@torch.no_grad()
def vectors_kept(model: TextAutoencoder, texts: Texts, cuts: Mapping[str, Tensor] = NO_CUTS) -> list[int]:
    """Count the vectors of each text's latent, without the prior's component."""
    kept = [0] * len(texts)
    for indices, latent in encode_batches(model, texts, cuts):
        numbers = (latent.kept.double() * latent.lengths).round().int().tolist()  # kept is a share of the tokens
        for index, number in zip(indices, numbers, strict=True):
            kept[index] = number
    return kept


def kept_share(texts: Texts, kept: list[int]) -> float:
    """Compute ν: the mean over texts of the vectors kept for each token."""
    return float(np.mean([number / len(text) for text, number in zip(texts, kept, strict=True)]))


def by_length(texts: Texts, kept: list[int]) -> tuple[KeptAtLength, ...]:
    """Group the numbers of vectors kept by the lengths of the texts."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for text, number in zip(texts, kept, strict=True):
        groups[len(text)].append(number)
    return tuple(
        KeptAtLength(length, len(numbers), kept=float(np.mean(numbers)), sd=float(np.std(numbers)))
        for length, numbers in sorted(groups.items())
    )


@dataclass(frozen=True)
class TokenGroup:
    """Tokens that have something in common, and the vectors spent on them.

    Args:
        by: what they are grouped by: frequency, kind or place.
        name: of the group.
        tokens: how many there are.
        vectors: mean share of a vector that a token has. Over all tokens it is the number of vectors for each, except
            that the last vector of a text, which may not be full, counts in part here.
    """

    by: str
    name: str
    tokens: int
    vectors: float


@torch.no_grad()
def tokens_kept(run: Run, texts: Texts, training: Iterable[Iterable[int]]) -> list[TokenGroup]:
    """Measure the mean share of a vector for groups of the texts' tokens; frequencies are those of `training`."""
    counts = np.bincount(np.concatenate([np.asarray(text) for text in training]), minlength=len(run.tokenizer))
    rank = np.empty(len(counts), dtype=int)
    rank[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    names = run.tokenizer.convert_ids_to_tokens(list(range(len(run.tokenizer))))
    shares: dict[tuple[str, str], list[float]] = {
        (by, name): []
        for by, group in {"frequency": (*RANKS.values(), RARE), "kind": KINDS, "place": PLACES}.items()
        for name in group
    }
    for _, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(run.model, batch)
        mask = inputs["attention_mask"].bool()
        hidden = run.model.encoder.hidden_states(inputs["input_ids"], mask)
        rows = run.model.encoder.bottleneck.vectors_of_tokens(hidden, mask).tolist()
        for text, row in zip(batch, rows, strict=True):
            for index, (token, share) in enumerate(zip(text, row, strict=False)):
                shares["frequency", rank_group(int(rank[token]))].append(share)
                shares["kind", kind_of(names[token])].append(share)
                shares["place", PLACES[len(PLACES) * index // len(text)]].append(share)
    return [TokenGroup(by, name, len(each), float(np.mean(each))) for (by, name), each in shares.items() if each]


def rank_group(rank: int) -> str:
    """Name the group of a token by its rank among the most frequent."""
    return next((name for highest, name in RANKS.items() if rank <= highest), RARE)


def kind_of(token: str) -> str:
    """Tell whether a word piece begins a word, continues one, has a digit or is punctuation."""
    if token.startswith("##"):
        return "continued"
    if any(sign.isdigit() for sign in token):
        return "number"
    return "word" if any(sign.isalpha() for sign in token) else "punctuation"
