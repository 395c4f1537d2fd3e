"""From a latent to text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from open_nvib.attention import Mixture
from open_nvib.text.model import LatentOutput, TextAutoencoder


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
