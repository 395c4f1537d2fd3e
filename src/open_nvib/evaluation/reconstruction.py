"""Reconstruction of unseen texts with the model's own number of vectors, and with others: shares, fewest, auto."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sacrebleu import sentence_bleu

from open_nvib.merging import VectorRequest
from open_nvib.store.evaluations import (
    AtShare,
    Chosen,
    Example,
    KeptAtLength,
    NumberExample,
    NumberOfVectors,
    Reconstruction,
)
from open_nvib.text.data.tokenizer import token_names
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.decoding import (
    Texts,
    encode_batches,
    evaluate_losses,
    reading,
    reconstruct_ids,
    same_text,
    score_reconstruction,
)
from open_nvib.text.model.vector_count import OFFSETS, VectorCounts, choose_auto, find_fewest, pairs_of_one_length
from open_nvib.text.using.run import Run

EXAMPLES = 10
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.2)
PAIRS = 3  # pairs of texts of one length that are shown
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
    if run.model.encoder.bottleneck.has_points:
        with reading(run.model, "points"):
            from_points = reconstruct_ids(run.model, texts, progress="reconstruct from points")
        points, _ = score_reconstruction(texts, from_points, run.tokenizer)
        scores |= {"points_bleu": points["bleu"], "points_exact": points["exact"]}
    shown, copies = (run.tokenizer.batch_decode([list(ids) for ids in many[:EXAMPLES]]) for many in (texts, decoded))
    return Reconstruction(
        sentences=len(texts),
        **scores,
        signature=signature,
        perplexity=losses["perplexity"],
        cross_entropy=losses["loss"],
        kept=kept_share(texts, kept),
        kept_by_kind=kept_by_kind(run, texts) if run.model.encoder.bottleneck.can_drop else {},
        by_length=by_length(texts, kept),
        examples=tuple(map(Example, shown, copies)),
    )


class LineScore(NamedTuple):
    """How well one text of the user's is reconstructed."""

    bleu: float  # sentence BLEU of sacreBLEU, against the text as the tokenizer gives it back
    exact: bool  # whether it is reconstructed token for token
    text_exact: bool  # whether the reconstruction is the text itself, word for word
    cross_entropy: float  # per token, in nats, the end included
    reconstruction: str


def score_lines(run: Run, lines: Sequence[str], ids: Texts) -> list[LineScore]:
    """Score the reconstruction of each text, given with its token ids, from the mean of its latent."""
    decoded = reconstruct_ids(run.model, ids, request=run.request(ids), progress="reconstruct")
    references, copies = (run.tokenizer.batch_decode([list(each) for each in many]) for many in (ids, decoded))
    return [
        LineScore(
            bleu=sentence_bleu(copy, [reference]).score,
            exact=list(given) == list(found),
            text_exact=same_text(line, copy, found, run.tokenizer),
            cross_entropy=evaluate_losses(run.model, [given])["loss"],
            reconstruction=copy,
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


def measure_number(run: Run, texts: Texts) -> NumberOfVectors:
    """Measure one model at several shares, with the fewest vectors of each text, and with the automatic choice."""
    fewest = find_fewest(run.model, texts, progress="fewest")
    auto = choose_auto(run.model, texts, progress="auto")
    halves = [OFFSETS[1:3], OFFSETS[3:]]
    if run.model.encoder.bottleneck.decides:  # gates have no cuts: both halves would be one search
        halves = []
    numbers = [find_fewest(run.model, texts, offsets=offsets).vectors.tolist() for offsets in halves]
    return NumberOfVectors(
        sentences=len(texts),
        shares=tuple(_at_share(run, texts, share) for share in SHARES),
        fewest=_chosen(run, texts, fewest, fewest),
        auto=_chosen(run, texts, auto, fewest),
        agreement=given_length(texts, *numbers) if numbers else None,
        examples=_examples(run, texts, fewest),
    )


def _scores(run: Run, texts: Texts, request: VectorRequest) -> dict[str, float]:
    return score_reconstruction(texts, reconstruct_ids(run.model, texts, request=request), run.tokenizer)[0]


def _at_share(run: Run, texts: Texts, share: float) -> AtShare:
    request = VectorRequest(share=share)
    tried = choose_auto(run.model, texts, shares=(share, share), hard=None, offsets=OFFSETS)
    return AtShare(
        share=share,
        kept=kept_share(texts, vectors_kept(run.model, texts, request)),
        **_scores(run, texts, request),
        cross_entropy=evaluate_losses(run.model, texts, request)["loss"],
        any_offset=tried.exact.float().mean().item(),
    )


def _chosen(run: Run, texts: Texts, found: VectorCounts, fewest: VectorCounts) -> Chosen:
    kept = vectors_kept(run.model, texts, found.request)
    groups = by_length(texts, kept)
    return Chosen(
        kept=kept_share(texts, kept),
        vectors=float(np.mean(kept)),
        **_scores(run, texts, found.request),
        verified=found.exact.float().mean().item(),
        tries=found.tries.float().mean().item(),
        sd=float(np.sqrt(sum(group.sentences * group.sd**2 for group in groups) / len(texts))),
        correlation=given_length(texts, kept, fewest.vectors.tolist()),
        by_length=groups,
    )


def given_length(texts: Texts, first: Sequence[float], second: Sequence[float]) -> float | None:
    """Compute the correlation of two numbers of each text among texts of one length; None if one does not vary."""
    groups: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for text, *pair in zip(texts, first, second, strict=True):
        groups[len(text)].append((pair[0], pair[1]))
    centred = np.concatenate([np.array(group) - np.mean(group, 0) for group in groups.values()])
    squares = np.square(centred).sum(0)
    return float(np.prod(centred, 1).sum() / np.sqrt(squares.prod())) if squares.all() else None


def _examples(run: Run, texts: Texts, fewest: VectorCounts) -> tuple[NumberExample, ...]:
    """Show pairs of texts of one length, the one with the fewest vectors and the one with the most."""
    shown = [index for pair in pairs_of_one_length(texts, fewest, PAIRS) for index in pair]
    return tuple(
        NumberExample(
            run.tokenizer.batch_decode([list(texts[index])])[0], len(texts[index]), int(fewest.vectors[index])
        )
        for index in shown
    )
