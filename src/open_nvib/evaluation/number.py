"""How many vectors texts get, and what comes back: at fixed shares, with as many as needed, and as decided."""

from collections import defaultdict

import numpy as np
import torch

from open_nvib.evaluation.reconstruction import by_length, kept_share, vectors_kept
from open_nvib.store.evaluations import AtShare, Chosen, NumberExample, NumberOfVectors
from open_nvib.text.model.decoding import Texts, evaluate_losses, reconstruct_ids, score_reconstruction
from open_nvib.text.model.number import PLACES, Needed, decide_number, find_needed, pairs_of_one_length
from open_nvib.text.using.run import Run

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.2)
PAIRS = 3
"""Pairs of texts of one length that are shown."""


def measure_number(run: Run, texts: Texts) -> NumberOfVectors:
    """Measure one model at several shares, with as many vectors as each text needs, and as two looks decide."""
    needed = find_needed(run.model, texts, progress="needed")
    decided = decide_number(run.model, texts, progress="decided")
    halves = [find_needed(run.model, texts, places=places) for places in (PLACES[1:3], PLACES[3:])]
    return NumberOfVectors(
        sentences=len(texts),
        shares=tuple(_at_share(run, texts, share) for share in SHARES),
        needed=_chosen(run, texts, needed, needed),
        decided=_chosen(run, texts, decided, needed),
        agreement=given_length(texts, halves[0].vectors.tolist(), halves[1].vectors.tolist()),
        examples=_examples(run, texts, needed),
    )


def _at_share(run: Run, texts: Texts, share: float) -> AtShare:
    cuts = {"share": torch.full((len(texts),), share, device=run.model.device)}
    scores, _ = score_reconstruction(texts, reconstruct_ids(run.model, texts, cuts=cuts), run.tokenizer)
    tried = decide_number(run.model, texts, shares=(share, share), hard=None, places=PLACES)
    return AtShare(
        share=share,
        kept=kept_share(texts, vectors_kept(run.model, texts, cuts)),
        bleu=scores["bleu"],
        exact=scores["exact"],
        cross_entropy=evaluate_losses(run.model, texts, cuts)["loss"],
        any_place=tried.comes_back.float().mean().item(),
    )


def _chosen(run: Run, texts: Texts, found: Needed, needed: Needed) -> Chosen:
    scores, _ = score_reconstruction(texts, reconstruct_ids(run.model, texts, cuts=found.cuts), run.tokenizer)
    kept = vectors_kept(run.model, texts, found.cuts)
    groups = by_length(texts, kept)
    return Chosen(
        kept=kept_share(texts, kept),
        vectors=float(np.mean(kept)),
        bleu=scores["bleu"],
        exact=scores["exact"],
        verified=found.comes_back.float().mean().item(),
        tries=found.tries.float().mean().item(),
        sd=float(np.sqrt(sum(group.sentences * group.sd**2 for group in groups) / len(texts))),
        correlation=given_length(texts, kept, needed.vectors.tolist()),
        by_length=groups,
    )


def given_length(texts: Texts, first: list[int], second: list[int]) -> float | None:
    """Compute the correlation of two numbers of each text among texts of one length; None if one does not vary."""
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for text, *pair in zip(texts, first, second, strict=True):
        groups[len(text)].append((pair[0], pair[1]))
    centred = np.concatenate([np.array(group) - np.mean(group, 0) for group in groups.values()])
    squares = np.square(centred).sum(0)
    return float(np.prod(centred, 1).sum() / np.sqrt(squares.prod())) if squares.all() else None


def _examples(run: Run, texts: Texts, needed: Needed) -> tuple[NumberExample, ...]:
    """Show pairs of texts of one length, the one that needs fewest vectors and the one that needs most."""
    shown = [index for pair in pairs_of_one_length(texts, needed, PAIRS) for index in pair]
    return tuple(
        NumberExample(
            run.tokenizer.batch_decode([list(texts[index])])[0], len(texts[index]), int(needed.vectors[index])
        )
        for index in shown
    )
