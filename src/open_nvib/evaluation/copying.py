"""The scorer that copies: an autoencoder, which sees the sentence that it scores.

Published perplexities near 1 imply such a scorer. It measures how well a sentence is copied and gives every sentence,
also one of random tokens, a perplexity near 1: `docs/scorers.md` shows it by experiment. It is here under its own name
for comparison with those numbers, and for nothing else.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig


class CopyingScorer(nn.Module):
    """A plain Transformer autoencoder of the evaluated model's size. The text and its end are what it encodes."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        plain: Any = {**config.to_diff_dict(), "bottleneck": "t"}
        self.model = TextAutoencoder(TextAutoencoderConfig(**plain))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The summed negative log-likelihood of `labels` given themselves, in nats."""
        labels, model = batch["labels"], self.model
        real = labels != IGNORED
        texts = labels.masked_fill(~real, model.config.pad_token_id)
        mixture = model.encoder.posterior(texts, real).mean()
        hidden = model.decoder(model.encoder.embedding(model.shift_right(labels)), model.decoder.project(mixture))
        return F.cross_entropy(model.head(hidden[real]).float(), labels[real], reduction="sum")
