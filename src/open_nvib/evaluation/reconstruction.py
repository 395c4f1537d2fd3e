"""Reconstruction of unseen texts, and the number of vectors kept for them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sacrebleu import sentence_bleu

from open_nvib.merging import VectorRequest
from open_nvib.store.evaluations import Example, KeptAtLength, Reconstruction
from open_nvib.text.data.tokenizer import token_names
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.decoding import (
    Texts,
    encode_batches,
    evaluate_losses,
    reading,
    reconstruct_ids,
    score_reconstruction,
)
from open_nvib.text.using.run import Run

EXAMPLES = 10
FUNCTION_WORDS = """
    a about after all also although an and any are as at be because been before being between both but by can could did
    do does during each for from had has have he her him his how i if in into is it its may me might more most must my
    no nor not of on only or other our over shall she should so some such than that the their them then there these they
    this those through to under until up upon was we were what when where which while who whom whose will with would you
    your"""
"""English words that carry grammar rather than content: articles, pronouns, prepositions, auxiliaries, conjunctions."""


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
        text_exact=scores.get("text_exact"),
        signature=signature,
        exact=scores["exact"],
        points_bleu=points.get("bleu"),
        points_exact=points.get("exact"),
        perplexity=losses["perplexity"],
        cross_entropy=losses["loss"],
        kept=kept_share(texts, kept),
        kept_by_kind=kept_by_kind(run, texts) if run.model.encoder.bottleneck.can_drop else {},
        by_length=by_length(texts, kept),
        examples=tuple(map(Example, shown, copies)),
    )


@dataclass(frozen=True)
class LineScore:
    """How well one text of the user's is reconstructed.

    Attributes:
        bleu: sentence BLEU of sacreBLEU, against the text as the tokenizer gives it back.
        exact: whether it is reconstructed token for token.
        text_exact: whether the reconstruction equals the text itself.
        cross_entropy: per token, in nats, the end included.
    """

    text: str
    reconstruction: str
    bleu: float
    exact: bool
    text_exact: bool
    cross_entropy: float


def score_lines(run: Run, lines: Sequence[str], ids: Texts) -> list[LineScore]:
    """Score the reconstruction of each text, given with its token ids, from the mean of its latent."""
    decoded = reconstruct_ids(run.model, ids, progress="reconstruct")
    references, copies = (run.tokenizer.batch_decode([list(each) for each in many]) for many in (ids, decoded))
    return [
        LineScore(
            text=line,
            reconstruction=copy,
            bleu=sentence_bleu(copy, [reference]).score,
            exact=list(given) == list(found),
            text_exact=copy == line,
            cross_entropy=evaluate_losses(run.model, [given])["loss"],
        )
        for line, given, found, reference, copy in zip(lines, ids, decoded, references, copies, strict=True)
    ]


@torch.no_grad()
def vectors_kept(model: TextAutoencoder, texts: Texts, request: VectorRequest | None = None) -> list[int]:
    """Count the vectors of each text's latent, without the prior's component."""
    kept = [0] * len(texts)
    for indices, latent in encode_batches(model, texts, request):
        numbers = (latent.kept.double() * latent.lengths).round().int().tolist()  # kept is a share of the tokens
        for index, number in zip(indices, numbers, strict=True):
            kept[index] = number
    return kept


def kept_share(texts: Texts, kept: list[int]) -> float:
    """Compute ν: the mean over texts of the vectors kept for each token."""
    return float(np.mean([number / len(text) for text, number in zip(texts, kept, strict=True)]))


def kind_of_token(token: str) -> str:
    """Classify a token by its readable name: content, function, piece (the rest of a word), number or punctuation."""
    if token.startswith("##"):
        return "piece"
    if token.isdigit():
        return "number"
    if not any(character.isalnum() for character in token):
        return "punctuation"
    return "function" if token.lower() in FUNCTION_WORDS.split() else "content"


def kept_by_kind(run: Run, texts: Texts) -> dict[str, float]:
    """Compute the share of tokens that have a vector of their own, by the kind of token."""
    kept: defaultdict[str, list[bool]] = defaultdict(list)
    for indices, latent in encode_batches(run.model, texts):
        rows = run.model.encoder.bottleneck.kept_vectors(latent).tolist()
        for index, row in zip(indices, rows, strict=True):
            for token, is_kept in zip(token_names(run.tokenizer, texts[index]), row, strict=False):
                kept[kind_of_token(token)].append(is_kept)
    return {kind: float(np.mean(flags)) for kind, flags in sorted(kept.items())}


def by_length(texts: Texts, kept: list[int]) -> tuple[KeptAtLength, ...]:
    """Group the numbers of vectors kept by the lengths of the texts."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for text, number in zip(texts, kept, strict=True):
        groups[len(text)].append(number)
    return tuple(
        KeptAtLength(length, len(numbers), kept=float(np.mean(numbers)), sd=float(np.std(numbers)))
        for length, numbers in sorted(groups.items())
    )
