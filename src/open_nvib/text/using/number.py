"""How many vectors a text needs: the fewest with which it comes back, found by trying and so verified.

Greedy decoding returns a text exactly if, given the text so far, the most likely token is the right one at every
position. So a try is one parallel pass over the text, without decoding. Numbers are tried from one upwards, each with
several places of the cuts; a text that comes back is done. A try looks first at the tokens that were hardest before,
which ends most of them, and only then at the whole text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib.store.files import InputError
from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch

PLACES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Places of the first cut that are tried, each the part of the first vector that is left out."""
FIRST_LOOK = 3
"""Tokens that a try looks at first."""


@dataclass(frozen=True)
class Needed:
    """What a search found for each text.

    Args:
        vectors: the fewest vectors with which the text comes back; with all numbers tried in vain, those with which
            the fewest tokens are wrong.
        places: the place of its cuts.
        comes_back: whether it comes back, with at most the tolerated number of wrong tokens.
        wrong: tokens that are wrong, given those before them.
        tries: combinations of a number and a place that were looked at.
    """

    vectors: Int[Tensor, " batch"]
    places: Float[Tensor, " batch"]
    comes_back: Bool[Tensor, " batch"]
    wrong: Int[Tensor, " batch"]
    tries: Int[Tensor, " batch"]

    @property
    def cuts(self) -> dict[str, Tensor]:
        """The options of `model.encoder.posterior` that encode each text so."""
        return {"vectors": self.vectors, "place": self.places}


@dataclass
class Tries:
    """A batch of texts, ready to be tried with many numbers of vectors: what does not depend on them is done once."""

    model: TextAutoencoder
    texts: Texts
    mask: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    hidden: Tensor = field(init=False)
    written: Tensor = field(init=False)

    def __post_init__(self) -> None:
        model, inputs = self.model, make_batch(self.model, self.texts)
        self.mask, self.labels = inputs["attention_mask"].bool(), inputs["labels"]
        self.hidden = model.encoder.hidden_states(inputs["input_ids"], self.mask)
        first: Any = model.decoder.layers[0]
        self.written = first.recall(model.encoder.embedding(model.shift_right(self.labels)))

    def memories(self, rows: Tensor, vectors: int, places: Tensor) -> list[Any]:
        """Encode texts with a number of vectors and a place, for the decoder to read."""
        latent = self.model.encoder.bottleneck(self.hidden[rows], self.mask[rows], vectors=vectors, place=places)
        return self.model.decoder.project(latent.mean().compact())

    def wrong(self, rows: Tensor, memories: list[Any], positions: Tensor) -> Bool[Tensor, "tries positions"]:
        """Say which of some positions of each text would be written wrongly."""
        layers: Any = self.model.decoder.layers
        x, labels = self.written[rows], self.labels[rows].gather(1, positions)
        for index, (layer, memory) in enumerate(zip(layers, memories, strict=True)):
            x = layer.recall(x) if index else x
            if index == len(layers) - 1:  # nothing attends to the other positions any more
                x = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            x = layer.read(x, memory)
        found = self.model.head(self.model.decoder.norm(x)).argmax(-1)
        return (found != labels) & (labels != IGNORED)
