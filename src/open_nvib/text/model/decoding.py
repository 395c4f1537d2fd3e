"""Many texts through a model: padding, order by length, encoding, decoding, and scores of what comes back."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Sampler
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from open_nvib._tensors import values_of
from open_nvib.attention import Mixture
from open_nvib.merging import VectorRequest
from open_nvib.text.model.autoencoder import IGNORED, LatentOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.model.configuration import LOSS_PARTS

BATCH = 256
"""Texts that are encoded or decoded at once."""
BATCHES_IN_POOL = 50
"""Batches in a pool that is sorted by length: large enough for little padding, small enough for random batches."""

Texts = Sequence[Sequence[int]]
"""Token ids of texts, without special tokens."""


class Collator:
    """Pads texts without special tokens to a batch: the text to encode, and the text with its end to predict."""

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
        pools = order.split(self.batch_size * BATCHES_IN_POOL)
        order = torch.cat([pool[self.lengths[pool].argsort(stable=True)] for pool in pools])
        batches = list(order.split(self.batch_size))
        incomplete = [batches.pop()] if len(batches[-1]) < self.batch_size else []  # stays last, where it may be left
        shuffled = [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]
        for batch in (*shuffled, *incomplete):
            yield from batch.tolist()


def make_batch(model: TextAutoencoder, texts: Texts) -> dict[str, Tensor]:
    """Pad texts to a batch on the model's device."""
    collator = Collator(model.config.pad_token_id, model.config.eos_token_id)
    return {name: x.to(model.device) for name, x in collator([{"input_ids": text} for text in texts]).items()}


def in_batches(
    items: Sequence[Any], size: int, length: Callable[[Any], int] | None = None, progress: str | None = None
) -> Iterator[tuple[list[int], list[Any]]]:
    """Iterate over batches as (indices, items), of similar length where `length` is given.

    With `progress`, a terminal shows a bar of that name.
    """
    order = list(range(len(items)) if length is None else sorted(range(len(items)), key=lambda i: length(items[i])))
    with tqdm(total=len(order), desc=progress, unit="", leave=False, disable=None if progress else True) as bar:
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            yield chosen, [items[index] for index in chosen]
            bar.update(len(chosen))


class StopAtLimit(StoppingCriteria):
    """Stops each text at a limit of its own."""

    def __init__(self, limits: Int[Tensor, " batch"]) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        limits = self.limits.to(input_ids.device)
        beams = len(input_ids) // len(limits)
        return input_ids.shape[1] - 1 >= limits.repeat_interleave(beams)  # the start token is not counted


def encode_batches(
    model: TextAutoencoder, texts: Texts, request: VectorRequest | None = None
) -> Iterator[tuple[list[int], Latent]]:
    """Iterate over the latents of texts as (indices, latent), in batches of similar length, the longest first."""
    for indices, batch in in_batches(texts, BATCH, (lambda text: -len(text)) if len(texts) > BATCH else None):
        inputs = make_batch(model, batch)
        with torch.no_grad():
            latent = model.encoder.posterior(
                inputs["input_ids"], inputs["attention_mask"], request and request[indices]
            )
        yield indices, latent


@torch.no_grad()
def encode(model: TextAutoencoder, texts: Texts, request: VectorRequest | None = None) -> Latent:
    """Return the latents of texts as one batch, with little more memory than it takes."""
    whole: Any = None
    for indices, latent in encode_batches(model, texts, request):
        if whole is None:  # the longest texts come first
            whole = latent.map_rows(lambda x: x.new_zeros(len(texts), *x.shape[1:]))
        for name, rows in values_of(latent.pad_to(whole.mask.shape[1])).items():
            if isinstance(rows, Tensor):
                getattr(whole, name)[indices] = rows
    return whole


@contextmanager
def reading(model: TextAutoencoder, what: Literal["mean", "points"]) -> Iterator[None]:
    """Let an NVAE read the mean of its latents at test time, or their points."""
    before, model.decoder.reading = model.decoder.reading, what
    try:
        yield
    finally:
        model.decoder.reading = before


@torch.no_grad()
def decode(
    model: TextAutoencoder, mixture: Mixture, limits: Int[Tensor, " batch"], **generation: Any
) -> list[list[int]]:
    """Decode each mixture to token ids without special tokens, until the end of the text or its limit in tokens.

    Decoding is greedy; `generation` goes to `model.generate`: `num_beams=4`, `do_sample=True`, …
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


def detokenize(tokenizer: PreTrainedTokenizerBase, texts: Texts) -> list[str]:
    """Return texts as people write them. A text that begins inside a word has no "##" in front."""
    return [text.removeprefix("##") for text in tokenizer.batch_decode([list(ids) for ids in texts])]


def reconstruct_ids(
    model: TextAutoencoder,
    texts: Texts,
    *,
    request: VectorRequest | None = None,
    other_latents: bool = False,
    seed: int | None = None,
    progress: str | None = None,
    **generation: Any,
) -> list[list[int]]:
    """Decode the mean of the latent of each text, or with `seed` a sample of it, up to twice the length of the text.

    With `other_latents`, each text is decoded from the latent of another, which shows what the decoder says on its own.
    """
    generator = None if seed is None else torch.Generator(model.device).manual_seed(seed)
    decoded: list[list[int]] = [[] for _ in texts]
    for indices, batch in in_batches(texts, BATCH, len, progress):
        latent = encode(model, batch, request and request[indices])
        mixture = latent.mean() if generator is None else model.encoder.bottleneck.sample(latent, generator)
        if other_latents:
            mixture = mixture[[*range(1, len(batch)), 0]]
        for index, ids in zip(indices, decode(model, mixture, 2 * latent.lengths, **generation), strict=True):
            decoded[index] = ids
    return decoded


@torch.no_grad()
def evaluate_losses(model: TextAutoencoder, texts: Texts, request: VectorRequest | None = None) -> dict[str, float]:
    """Measure the cross-entropy per token and the KL at the mean of the latent, averaged as the loss averages them."""
    tokens = 0
    sums: dict[str, float] = {}
    for indices, batch in in_batches(texts, BATCH, len):
        inputs = make_batch(model, batch)
        output = model(**inputs, sample=False, request=request and request[indices])
        weight = {"cross_entropy": int((inputs["labels"] >= 0).sum())}
        tokens += weight["cross_entropy"]
        for name in LOSS_PARTS:
            if output.get(name) is not None:
                sums[name] = sums.get(name, 0.0) + output[name].item() * weight.get(name, len(batch))
    metrics = {name: total / (tokens if name == "cross_entropy" else len(texts)) for name, total in sums.items()}
    metrics["loss"] = metrics.pop("cross_entropy")
    metrics["perplexity"] = math.exp(min(metrics["loss"], 50.0))
    return metrics


def same_text(original: str, reconstruction: str, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Tell whether a text comes back word for word, apart from the width of spaces; with [UNK], it never does."""
    return tokenizer.unk_token_id not in ids and original.split() == reconstruction.split()


def score_reconstruction(
    texts: Texts, decoded: Texts, tokenizer: PreTrainedTokenizerBase, originals: Sequence[str] | None = None
) -> tuple[dict[str, float], str]:
    """Score detokenised texts: sacreBLEU, the share of exact matches, and the signature of that BLEU.

    The reference of `bleu` is what the tokenizer gives back for a text, so that a perfect model has 100; `exact`
    compares tokens. With `originals`, the texts before they were tokenised, `text_bleu` and `text_exact` compare with
    these.
    """
    from sacrebleu.metrics.bleu import BLEU  # here, since decoding does not need it

    references, hypotheses = (tokenizer.batch_decode([list(ids) for ids in many]) for many in (texts, decoded))
    exact = sum(list(a) == list(b) for a, b in zip(texts, decoded, strict=True)) / max(1, len(texts))
    bleu = BLEU()
    scores = {"bleu": bleu.corpus_score(hypotheses, [references]).score, "exact": exact}
    if originals is not None:
        scores["text_bleu"] = bleu.corpus_score(hypotheses, [originals]).score
        found = zip(originals, hypotheses, decoded, strict=True)
        same = [same_text(line, copy, ids, tokenizer) for line, copy, ids in found]
        scores["text_exact"] = sum(same) / max(1, len(same))
    return scores, str(bleu.get_signature())
