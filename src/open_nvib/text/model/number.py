"""How many vectors a text needs: the fewest with which it comes back, found by trying and so verified.

Greedy decoding returns a text exactly if, given the text so far, the most likely token is the right one at every
position. So a try is one parallel pass over the text, without decoding. Numbers are tried from one upwards, each with
several places of the cuts; a text that comes back is done. A try looks first at the tokens that were wrong most often
before, which ends most of them, and only then at the whole text.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib._records import BatchRecord, unchecked, values_of
from open_nvib.attention import Projected
from open_nvib.process import MAX_JOINED_REMAINDER
from open_nvib.store.files import InputError, in_one_line
from open_nvib.store.settings import MOST
from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch

PLACES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Places of the cuts that are tried: the part of the first vector that is left out."""
TWO_LOOKS = (0.2, 0.3, 0.6)
"""Shares of `decide_number`, chosen on validation data: two that are looked at, and one for other texts."""
HARD = 6.0
"""Cross-entropy of a whole text at the last look, in nats, above which it gets all its vectors; chosen likewise."""
LOOKS = (1, 4)
"""Tokens that a try looks at, those first that were wrong most often, before it looks at the whole text."""


Vectors = int | Sequence[int] | Tensor | Literal["needed", "decided"]
"""How many vectors texts get: a number for all or one for each, or who finds out: `find_needed`, `decide_number`."""
Share = float | Sequence[float] | Tensor
"""Vectors for each token, a number for all texts or one for each."""


@dataclass(frozen=True, eq=False)
class Needed(BatchRecord):
    """What `find_needed` or `decide_number` found for each text.

    Args:
        vectors: the number of vectors; with `find_needed`, all that the text can have if it never comes back.
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

    Numbers begin at the smallest share that the model was trained for. All up to 16 are tried; above, each is at most
    an eighth larger than the one before.

    Args:
        model: an autoencoder that takes any number of vectors (`bottleneck.any_number`).
        texts: token ids of texts.
        max_wrong: tokens that may be wrong, given those before them. After a wrong one greedy decoding may go astray.
        max_nats: the largest cross-entropy per token, in nats, instead.
        places: places of the cuts that are tried with each number.
        progress: the name of a bar that a terminal shows.
    """
    smallest = model.config.smallest_share if model.config.shares else 0.0

    def search(tries: Tries) -> Needed:
        lengths = tries.mask.sum(-1)
        fewest = vectors_at(smallest, lengths)
        ladder = [0, *numbers_to_try(int(lengths.max()))]
        # each text up to its length; what it does not try is a number that it cannot have
        capped = ((last, lengths.clamp(max=number)) for last, number in pairwise(ladder))
        numbers = (torch.where((m > last) & (m >= fewest), m, lengths + 1) for last, m in capped)
        return _search(tries, numbers, lengths, places=places, max_wrong=max_wrong, max_nats=max_nats)

    return _in_batches(model, texts, search, progress)


def decide_number(
    model: TextAutoencoder,
    texts: Texts,
    *,
    shares: Sequence[float] = TWO_LOOKS,
    hard: float | None = HARD,
    places: Sequence[float] = PLACES[:1],
    progress: str | None = None,
) -> Needed:
    """Decide the number of vectors of each text in few looks: the first of `shares` with which it comes back.

    The last share is not looked at. It is for texts that come back with none of the others; those with more than `hard`
    nats at the last look get all their vectors. Whether they come back then is not known: `comes_back` is False. Two
    looks cost a little more than the greedy decoding of the texts.
    """

    def search(tries: Tries) -> Needed:
        lengths = tries.mask.sum(-1)
        *tried, otherwise = (vectors_at(share, lengths) for share in shares)
        found = _search(tries, tried, otherwise, places=places)
        rows = (~found.comes_back).nonzero().flatten()
        if hard is not None and len(rows):
            every = torch.arange(tries.labels.shape[1], device=rows.device).expand(len(rows), -1)
            latents = tries.latents(rows, vectors=tried[-1][rows], place=places[-1])
            far = _nats(*tries.look(rows, latents, every)) * (lengths[rows] + 1) > hard
            found.vectors[rows[far]] = lengths[rows[far]]
        return found

    return _in_batches(model, texts, search, progress)


def choose_cuts(
    model: TextAutoencoder, texts: Sequence[Any], *, vectors: Vectors | None = None, share: Share | None = None
) -> dict[str, Tensor]:
    """Return how the encoder cuts each text, for a number or a share; nothing if neither is given."""
    if (vectors is None and share is None) or not texts:
        return {}
    if vectors is not None and share is not None:
        raise InputError(f"vectors is {vectors} and share is {share}, expected one of the two.")
    if isinstance(vectors, str) and vectors in ("needed", "decided"):
        return (find_needed if vectors == "needed" else decide_number)(model, texts).cuts
    check_any_number(model)
    name, given = ("share", share) if vectors is None else ("vectors", vectors)
    expected = "0 to 1, above 0" if name == "share" else "whole numbers above 0, 'needed' or 'decided'"
    try:
        values = torch.as_tensor(given, device=model.device)
        good = not (name == "vectors" and values.is_floating_point()) and values.dtype != torch.bool
        good = good and bool(((values > 0) & (values <= (1 if name == "share" else MOST))).all())
    except (TypeError, ValueError, RuntimeError):
        good, values = False, torch.empty(0)
    if not good:
        raise InputError(f"{name} is {in_one_line(repr(given))[:60]}, expected {expected}.")
    if values.ndim and values.shape != (len(texts),):
        raise InputError(f"{name} has {values.numel()} numbers, expected one, or one for each of {len(texts)} texts.")
    return {name: values.expand(len(texts))}


def pairs_of_one_length(texts: Texts, needed: Needed, count: int) -> list[tuple[int, int]]:
    """Return the text that needs fewest vectors and the one that needs most, by index, of the most frequent lengths."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        if needed.comes_back[index]:
            groups[len(text)].append(index)
    frequent = sorted(groups, key=lambda length: -len(groups[length]))[:count]
    by_number = (sorted(groups[length], key=lambda index: int(needed.vectors[index])) for length in sorted(frequent))
    return [(group[0], group[-1]) for group in by_number]


def check_any_number(model: TextAutoencoder) -> None:
    """Raise an InputError if nobody can say how many vectors a text gets."""
    if not model.encoder.bottleneck.any_number:
        raise InputError(
            "this model has a fixed number of vectors, expected one that takes any: an nvae with keep_share or a vts "
            "with stride_pooling, best trained with --loss.shares log_uniform."
        )


def vectors_at(share: float | Float[Tensor, " batch"], lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Count the vectors of texts at a share, as the prior counts them (`ConditionalBDP.vectors`)."""
    return (lengths * share - MAX_JOINED_REMAINDER).ceil().long().clamp(min=1).minimum(lengths)


@torch.no_grad()
def _in_batches(
    model: TextAutoencoder, texts: Texts, search: Callable[["Tries"], Needed], progress: str | None
) -> Needed:
    check_any_number(model)
    order: list[int] = []
    parts: list[Needed] = []
    for indices, batch in in_batches(texts, 4 * BATCH, len, progress):
        order += indices
        parts.append(search(Tries(model, batch)))
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
    tries: Tries,
    numbers: Iterable[Int[Tensor, " batch"]],
    otherwise: Int[Tensor, " batch"],
    *,
    places: Sequence[float],
    max_wrong: int = 0,
    max_nats: float | None = None,
) -> Needed:
    """Try `numbers` for each text, each with all places, until it comes back; `otherwise` is for those that do not."""
    labels, lengths = tries.labels, tries.mask.sum(-1)
    vectors, wrong, tried = otherwise.clone(), torch.zeros_like(lengths), torch.zeros_like(lengths)
    done, place = torch.zeros_like(tries.mask[:, 0]), tries.hidden.new_full(lengths.shape, places[0])
    times_wrong = torch.where(labels == IGNORED, -1, torch.zeros_like(labels))
    looks = [*LOOKS, labels.shape[1]] if max_nats is None else [labels.shape[1]]
    for number, at in ((number, at) for number in numbers for at in places):
        possible = (number <= lengths) & ((number > 1) | (at == places[0]))  # one vector has no cut to move
        rows = (possible & ~done).nonzero().flatten()
        if not len(rows):
            continue
        tried[rows] += 1
        latents = tries.latents(rows, vectors=number[rows], place=at)
        order, found, first = times_wrong[rows].argsort(descending=True, stable=True), torch.zeros_like(rows), 0
        for last in looks:
            positions = order[:, first:last]
            logits, right = tries.look(rows, latents, positions)
            missed = (logits.argmax(-1) != right) & (right != IGNORED)
            times_wrong.index_put_((rows.unsqueeze(-1), positions), missed.long(), accumulate=True)
            found = found + missed.sum(-1)
            good = found <= max_wrong if max_nats is None else _nats(logits, right) <= max_nats
            rows, order, found, first = rows[good], order[good], found[good], last
            latents = [latent[good] for latent in latents]
        vectors[rows], place[rows], done[rows], wrong[rows] = number[rows], at, True, found
    return unchecked(Needed, vectors=vectors, place=place, comes_back=done, wrong=wrong, tries=tried)


def _nats(logits: Float[Tensor, "tries n tokens"], labels: Int[Tensor, "tries n"]) -> Float[Tensor, " tries"]:
    """Compute the cross-entropy per token of whole texts."""
    nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return nats.sum(-1) / (labels != IGNORED).sum(-1)
