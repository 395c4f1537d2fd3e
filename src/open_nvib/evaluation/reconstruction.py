"""Reconstruction of texts that the model has not seen, and how many vectors it kept for that."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.decoding import (
    BATCH,
    Texts,
    evaluate_losses,
    in_batches,
    make_batch,
    reconstruct_ids,
    score_reconstruction,
)
from open_nvib.text.using.run import Run

EXAMPLES = 10


def reconstruction(run: Run, texts: Texts) -> dict[str, Any]:
    """BLEU, perplexity and exact matches at the mean of the latent, and the vectors kept."""
    losses = evaluate_losses(run.model, texts)
    decoded = reconstruct_ids(run.model, texts)
    scores, signature = score_reconstruction(texts, decoded, run.tokenizer)
    kept = vectors_kept(run.model, texts)
    originals, copies = (
        run.tokenizer.batch_decode([list(ids) for ids in many[:EXAMPLES]]) for many in (texts, decoded)
    )
    return {
        "sentences": len(texts),
        "bleu": scores["bleu"],
        "signature": signature,
        "exact": scores["exact"],
        "perplexity": losses["perplexity"],
        "cross_entropy": losses["loss"],
        "kept": kept_share(texts, kept),
        "by_length": by_length(texts, kept),
        "examples": [{"text": a, "reconstruction": b} for a, b in zip(originals, copies, strict=True)],
    }


@torch.no_grad()
def vectors_kept(model: TextAutoencoder, texts: Texts) -> list[int]:
    """How many vectors the latent of each text has, the prior's component not counted."""
    kept = [0] * len(texts)
    for indices, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(model, batch)
        latent = model.encoder.posterior(inputs["input_ids"], inputs["attention_mask"])
        numbers = (latent.kept.double() * latent.lengths).round().int().tolist()  # kept is a share of the tokens
        for index, number in zip(indices, numbers, strict=True):
            kept[index] = number
    return kept


def kept_share(texts: Texts, kept: list[int]) -> float:
    """ν: the mean over texts of the vectors kept for each token."""
    return float(np.mean([number / len(text) for text, number in zip(texts, kept, strict=True)]))


def by_length(texts: Texts, kept: list[int]) -> list[dict[str, float]]:
    """Mean and standard deviation of the number kept, for texts of each length."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for text, number in zip(texts, kept, strict=True):
        groups[len(text)].append(number)
    return [
        {"length": length, "sentences": len(numbers), "kept": float(np.mean(numbers)), "sd": float(np.std(numbers))}
        for length, numbers in sorted(groups.items())
    ]
