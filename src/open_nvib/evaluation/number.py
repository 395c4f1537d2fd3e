"""How many vectors texts get, and how exact they are: at fixed shares, with the fewest, and with auto."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from open_nvib.evaluation.reconstruction import by_length, kept_share, vectors_kept
from open_nvib.merging import VectorRequest
from open_nvib.store.evaluations import AtShare, Chosen, NumberExample, NumberOfVectors
from open_nvib.text.model.decoding import Texts, evaluate_losses, reconstruct_ids, score_reconstruction
from open_nvib.text.model.vector_count import OFFSETS, VectorCounts, choose_auto, find_fewest, pairs_of_one_length
from open_nvib.text.using.run import Run

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.2)
PAIRS = 3
"""Pairs of texts of one length that are shown."""


def measure_number(run: Run, texts: Texts) -> NumberOfVectors:
    """Measure one model at several shares, with the fewest vectors of each text, and with the automatic choice."""
    fewest = find_fewest(run.model, texts, progress="fewest")
    auto = choose_auto(run.model, texts, progress="auto")
    halves = [find_fewest(run.model, texts, offsets=offsets) for offsets in (OFFSETS[1:3], OFFSETS[3:])]
    return NumberOfVectors(
        sentences=len(texts),
        shares=tuple(_at_share(run, texts, share) for share in SHARES),
        fewest=_chosen(run, texts, fewest, fewest),
        auto=_chosen(run, texts, auto, fewest),
        agreement=given_length(texts, halves[0].vectors.tolist(), halves[1].vectors.tolist()),
        examples=_examples(run, texts, fewest),
    )


def _at_share(run: Run, texts: Texts, share: float) -> AtShare:
    request = VectorRequest(share=share)
    scores, _ = score_reconstruction(texts, reconstruct_ids(run.model, texts, request=request), run.tokenizer)
    tried = choose_auto(run.model, texts, shares=(share, share), hard=None, offsets=OFFSETS)
    return AtShare(
        share=share,
        kept=kept_share(texts, vectors_kept(run.model, texts, request)),
        bleu=scores["bleu"],
        exact=scores["exact"],
        cross_entropy=evaluate_losses(run.model, texts, request)["loss"],
        any_offset=tried.exact.float().mean().item(),
    )


def _chosen(run: Run, texts: Texts, found: VectorCounts, fewest: VectorCounts) -> Chosen:
    scores, _ = score_reconstruction(texts, reconstruct_ids(run.model, texts, request=found.request), run.tokenizer)
    kept = vectors_kept(run.model, texts, found.request)
    groups = by_length(texts, kept)
    return Chosen(
        kept=kept_share(texts, kept),
        vectors=float(np.mean(kept)),
        bleu=scores["bleu"],
        exact=scores["exact"],
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
