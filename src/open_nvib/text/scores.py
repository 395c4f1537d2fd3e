"""How well texts come back out of the mean of their latents: what a training run watches and an evaluation reports."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from open_nvib.text.batches import Collator
from open_nvib.text.decoding import decode, in_batches
from open_nvib.text.model import TextAutoencoder

PARTS = ("cross_entropy", "kl_gaussian", "kl_dirichlet", "kept", "alpha0", "sigma")
BATCH = 256

Texts = Sequence[Sequence[int]]


def make_batch(model: TextAutoencoder, texts: Texts) -> dict[str, Tensor]:
    """A padded batch on the model's device."""
    collator = Collator(model.config.pad_token_id, model.config.eos_token_id)
    return {name: x.to(model.device) for name, x in collator([{"input_ids": text} for text in texts]).items()}


@torch.no_grad()
def evaluate_losses(model: TextAutoencoder, texts: Texts) -> dict[str, float]:
    """Cross-entropy per token and the KL at the mean of the latent, averaged as the loss averages them."""
    tokens = texts_seen = 0
    sums: dict[str, float] = {}
    for _, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(model, batch)
        output = model(**inputs)
        weight = {"cross_entropy": int((inputs["labels"] >= 0).sum())}
        tokens += weight["cross_entropy"]
        texts_seen += len(batch)
        for name in PARTS:
            if output.get(name) is not None:
                sums[name] = sums.get(name, 0.0) + output[name].item() * weight.get(name, len(batch))
    metrics = {name: total / (tokens if name == "cross_entropy" else texts_seen) for name, total in sums.items()}
    metrics["loss"] = metrics.pop("cross_entropy")
    metrics["perplexity"] = math.exp(min(metrics["loss"], 50.0))
    return metrics


@torch.no_grad()
def reconstruct_ids(
    model: TextAutoencoder, texts: Texts, *, other_latents: bool = False, **generation: Any
) -> list[list[int]]:
    """Each text through the mean of its latent and back: greedy, until its end or twice its length.

    With `other_latents`, each text is decoded from the latent of another: what the decoder says on its own.
    """
    decoded: list[list[int]] = [[] for _ in texts]
    for indices, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(model, batch)
        latent = model.encoder.posterior(inputs["input_ids"], inputs["attention_mask"])
        mixture = latent.mean()
        if other_latents:
            mixture = mixture[[*range(1, len(batch)), 0]]
        for index, ids in zip(indices, decode(model, mixture, 2 * latent.lengths, **generation), strict=True):
            decoded[index] = ids
    return decoded


def score_reconstruction(
    texts: Texts, decoded: Texts, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, float], str]:
    """sacreBLEU on detokenised text and the share of exact matches, and the signature of that BLEU."""
    references, hypotheses = (tokenizer.batch_decode([list(ids) for ids in many]) for many in (texts, decoded))
    exact = sum(list(a) == list(b) for a, b in zip(texts, decoded, strict=True)) / max(1, len(texts))
    bleu = BLEU()
    score = bleu.corpus_score(hypotheses, [references]).score
    return {"bleu": score, "exact": exact}, str(bleu.get_signature())
