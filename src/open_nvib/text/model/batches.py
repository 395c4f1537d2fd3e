"""Batches of texts: padding, an order by length for training, and iteration over many texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from tqdm.auto import tqdm

from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder

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
        for index in torch.randperm(len(batches), generator=generator).tolist():
            yield from batches[index].tolist()
        for batch in incomplete:
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
