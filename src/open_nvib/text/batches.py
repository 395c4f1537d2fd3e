"""Texts of similar length together, and batches of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from open_nvib.text.model import IGNORED

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
