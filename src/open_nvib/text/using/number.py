"""How many vectors a text needs: the fewest with which it comes back, found by trying and so verified.

Greedy decoding returns a text exactly if, given the text so far, the most likely token is the right one at every
position. So a try is one parallel pass over the text, without decoding. Numbers are tried from one upwards, each with
several places of the cuts; a text that comes back is done. A try looks first at the tokens that were wrong most often
before, which ends most of them, and only then at the whole text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib._records import BatchRecord, unchecked, values_of
from open_nvib.attention import Projected
from open_nvib.store.files import InputError
from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch

PLACES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Places of the cuts that are tried: the part of the first vector that is left out."""
LOOKS = (1, 3, 8)
"""Tokens that a try looks at, those first that were wrong most often, before it looks at the whole text."""


@dataclass(frozen=True, eq=False)
class Needed(BatchRecord):
    """What `find_needed` found for each text.

    Args:
        vectors: the fewest vectors with which it comes back, or all that it can have if it never does.
        place: the place of its cuts.
        comes_back: whether it comes back.
        wrong: its tokens that are wrong then, given those before them, of at most as many as may be.
        tries: how many numbers and places were tried.
    """

    vectors: Int[Tensor, " batch"]
    place: Float[Tensor, " batch"]
    comes_back: Bool[Tensor, " batch"]
    wrong: Int[Tensor, " batch"]
    tries: Int[Tensor, " batch"]

    @property
    def cuts(self) -> dict[str, Tensor]:
        """The options with which the encoder makes these latents: `model.encoder.posterior(…, **needed.cuts)`."""
        return {"vectors": self.vectors, "place": self.place}


@torch.no_grad()
def find_needed(
    model: TextAutoencoder,
    texts: Texts,
    *,
    max_wrong: int = 0,
    max_nats: float | None = None,
    places: Sequence[float] = PLACES,
    progress: str | None = None,
) -> Needed:
    """Find the fewest vectors with which each text comes back, over numbers and places of the cuts.

    All numbers up to 16 are tried, then every second, third, … : each is at most an eighth above the one before.

    Args:
        model: an autoencoder that takes any number of vectors (`bottleneck.any_number`).
        texts: token ids of texts.
        max_wrong: tokens that may be wrong. With more than 0, a wrong token can lead greedy decoding astray after it.
        max_nats: instead, the largest cross-entropy per token, in nats; a text then comes back only in part.
        places: places of the cuts that are tried with each number.
        progress: the name of a bar that a terminal shows.
    """
    if not model.encoder.bottleneck.any_number:
        raise InputError(
            "this model has a fixed number of vectors, expected one that takes any: an nvae with keep_share or a vts "
            "with stride_pooling, best trained with --loss.shares log_uniform."
        )
    at = torch.tensor(places, device=model.device)
    order: list[int] = []
    parts: list[Needed] = []
    for indices, batch in in_batches(texts, BATCH, len, progress):
        order += indices
        parts.append(_search(Tries(model, batch), at, max_wrong=max_wrong, max_nats=max_nats))
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in values_of(parts[0])}
    return unchecked(Needed, **joined)[torch.tensor(order).argsort()]


def numbers_to_try(longest: int) -> Iterator[int]:
    """Iterate over the numbers of vectors to try for a text of that many tokens, the last of which is all."""
    number = 1
    while number < longest:
        yield number
        number += max(1, number // 8)
    yield longest


class Tries:
    """A batch of texts to try with many numbers of vectors. What does not depend on the number is computed once."""

    def __init__(self, model: TextAutoencoder, texts: Texts) -> None:
        inputs = make_batch(model, texts)
        self.model, self.mask, self.labels = model, inputs["attention_mask"].bool(), inputs["labels"]
        self.hidden = model.encoder.hidden_states(inputs["input_ids"], self.mask)
        first: Any = model.decoder.layers[0]
        self.written = first.recall(model.encoder.embedding(model.shift_right(self.labels)))

    def latents(self, rows: Tensor, **cuts: Any) -> list[Projected]:
        """Encode texts, given as rows of the batch, and project their latents for the decoder to read."""
        latent = self.model.encoder.bottleneck(self.hidden[rows], self.mask[rows], **cuts)
        return self.model.decoder.project(latent.mean().compact())

    def look(self, rows: Tensor, latents: list[Projected], positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits at some positions of each text, and the tokens that should be there."""
        layers: Any = self.model.decoder.layers
        x = self.written[rows]
        for index, (layer, latent) in enumerate(zip(layers, latents, strict=True)):
            x = layer.recall(x) if index else x
            if layer is layers[-1]:  # nothing attends to the other positions any more
                x = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            x = layer.read(x, latent)
        return self.model.head(self.model.decoder.norm(x)), self.labels[rows].gather(1, positions)


def _search(
    tries: Tries, places: Float[Tensor, " places"], *, max_wrong: int = 0, max_nats: float | None = None
) -> Needed:
    labels, lengths = tries.labels, tries.mask.sum(-1)
    done, place = torch.zeros_like(lengths, dtype=torch.bool), places[0].repeat(len(lengths))
    vectors, wrong, tried = lengths.clone(), torch.zeros_like(lengths), torch.zeros_like(lengths)
    times_wrong = torch.where(labels == IGNORED, -1, torch.zeros_like(labels))
    looks = [*LOOKS, labels.shape[1]] if max_nats is None else [labels.shape[1]]
    for number in numbers_to_try(int(lengths.max())):
        texts = (~done & (lengths >= number)).nonzero().flatten()
        cuts = places if number > 1 else places[:1]  # one vector has no cut
        rows, at = texts.repeat_interleave(len(cuts)), cuts.repeat(len(texts))
        tried[texts] += len(cuts)
        latents = tries.latents(rows, vectors=number, place=at)
        order, found = times_wrong[rows].argsort(descending=True, stable=True), torch.zeros_like(rows)
        first = 0
        for last in looks:
            if not len(rows):
                break
            positions = order[:, first:last]
            logits, right = tries.look(rows, latents, positions)
            missed = (logits.argmax(-1) != right) & (right != IGNORED)
            times_wrong.index_put_((rows.unsqueeze(-1), positions), missed.long(), accumulate=True)
            found = found + missed.sum(-1)
            good = found <= max_wrong if max_nats is None else _nats(logits, right) <= max_nats
            rows, at, order, found = rows[good], at[good], order[good], found[good]
            latents, first = [latent[good] for latent in latents], last
        first_place = rows.flip(0), at.flip(0), found.flip(0)  # of those with which a text comes back: it is set last
        vectors[rows], done[rows] = number, True
        place[first_place[0]], wrong[first_place[0]] = first_place[1:]
    return unchecked(Needed, vectors=vectors, place=place, comes_back=done, wrong=wrong, tries=tried)


def _nats(logits: Float[Tensor, "tries n tokens"], labels: Int[Tensor, "tries n"]) -> Float[Tensor, " tries"]:
    """Compute the cross-entropy per token of whole texts."""
    nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return nats.sum(-1) / (labels != IGNORED).sum(-1)
