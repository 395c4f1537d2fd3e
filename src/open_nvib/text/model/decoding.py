"""Batches of texts, decoding from a latent, and how well texts come back."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from open_nvib.attention import Mixture
from open_nvib.text.model.autoencoder import IGNORED, LatentOutput, TextAutoencoder

POOL = 50
"""Batches in a pool that is sorted by length: large enough for little padding, small enough for random batches."""


class LengthGroupedSampler(Sampler[int]):
    """Indices such that consecutive batches hold texts of similar length, in an order that (seed, epoch) determine.

    An epoch can thus be entered in the middle again, which an order drawn from the global state cannot.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, *, seed: int) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        pools = order.split(self.batch_size * POOL)
        order = torch.cat([pool[self.lengths[pool].argsort(stable=True)] for pool in pools])
        batches = list(order.split(self.batch_size))
        incomplete = [batches.pop()] if len(batches[-1]) < self.batch_size else []  # stays last, where it may be left
        for index in torch.randperm(len(batches), generator=generator).tolist():
            yield from batches[index].tolist()
        for batch in incomplete:
            yield from batch.tolist()


class Collator:
    """Sentences without special tokens to padded batches: the text to encode, and the text with its end to predict."""

    def __init__(self, pad_token_id: int, eos_token_id: int) -> None:
        self.pad, self.eos = pad_token_id, eos_token_id

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        texts = [torch.as_tensor(example["input_ids"]).long() for example in examples]
        ends = [torch.cat([text, text.new_tensor([self.eos])]) for text in texts]
        input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self.pad)
        lengths = torch.tensor([len(text) for text in texts])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(-1)).long(),
            "labels": torch.nn.utils.rnn.pad_sequence(ends, batch_first=True, padding_value=IGNORED),
        }


class StopAtLimit(StoppingCriteria):
    """Every text stops at a limit of its own."""

    def __init__(self, limits: Int[Tensor, " batch"]) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        limits = self.limits.to(input_ids.device)
        beams = len(input_ids) // len(limits)
        return input_ids.shape[1] - 1 >= limits.repeat_interleave(beams)  # the start token is not counted


@torch.no_grad()
def decode(
    model: TextAutoencoder, mixture: Mixture, limits: Int[Tensor, " batch"], **generation: Any
) -> list[list[int]]:
    """Token ids of each text, without special tokens: greedy unless told otherwise, until its end or its limit.

    `generation` goes to `model.generate`: `num_beams=4`, `do_sample=True`, …
    """
    config = model.config
    limits = limits.clamp(1, config.max_positions - 1)
    generate: Any = model.generate  # pyright: ignore[reportAttributeAccessIssue]
    output = generate(
        encoder_outputs=LatentOutput.of(mixture.compact()),
        max_new_tokens=int(limits.max()),
        stopping_criteria=StoppingCriteriaList([StopAtLimit(limits)]),
        **({"do_sample": False, "num_beams": 1} | generation),
    )
    texts = []
    special = {config.pad_token_id, config.bos_token_id, config.decoder_start_token_id}
    for row in output[:, 1:].tolist():
        end = row.index(config.eos_token_id) if config.eos_token_id in row else len(row)
        texts.append([token for token in row[:end] if token not in special])
    return texts


def in_batches(
    items: Sequence[Any], size: int, length: Callable[[Any], int] | None = None
) -> Iterator[tuple[list[int], list[Any]]]:
    """Indices and items, in batches of similar length where `length` is given."""
    order = range(len(items)) if length is None else sorted(range(len(items)), key=lambda i: length(items[i]))
    order = list(order)
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        yield chosen, [items[index] for index in chosen]


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
