"""How many vectors a text gets: the fewest that reconstruct it exactly, found by a search, or a quick choice.

Greedy decoding returns a text exactly if, given the text so far, the most likely token is the right one at every
position. So a try is one parallel pass over the text, without decoding. Numbers are tried from one upwards, each with
several offsets of the cuts, until one is exact. A try first looks at the tokens that were wrong most often before,
which rejects most tries, and only then at the whole text.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib._deprecation import warn_renamed
from open_nvib._tensors import BatchRecord, join, unchecked
from open_nvib.attention import Projected
from open_nvib.merging import VectorRequest
from open_nvib.process import vectors_at
from open_nvib.search import numbers_to_try
from open_nvib.store.files import InputError, OutsideTraining, in_one_line
from open_nvib.store.settings import MOST
from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch

OFFSETS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Offsets of the cuts that are tried: the part of the first vector that is left out."""
AUTO_SHARES = (0.2, 0.3, 0.6)
"""Shares of `choose_auto`, chosen on validation data: two that are tried, and one for all other texts."""
HARD = 6.0
"""Cross-entropy of a whole text at the last try, in nats, above which it gets all its vectors; chosen likewise."""
FIRST_LOOKS = (1, 4)
"""Tokens that a try looks at, those first that were wrong most often, before it looks at the whole text."""

Vectors = int | Sequence[int] | Tensor | Literal["fewest", "auto", "needed", "decided"] | None
"""How many vectors texts get: a number for all, one for each, or who chooses: `find_fewest`, `choose_auto`;
the last two are their old names."""
OLD_WORDS = {"needed": "fewest", "decided": "auto"}
Share = float | Sequence[float] | Tensor | None
"""Vectors per token, a number for all texts or one for each."""


@dataclass(frozen=True, eq=False)
class VectorCounts(BatchRecord):
    """The number of vectors that `find_fewest` or `choose_auto` chose for each text.

    Args:
        vectors: the number of vectors.
        offset: the offset of the cuts.
        exact: whether greedy decoding returns every token, apart from as many wrong ones as were allowed.
        wrong: number of wrong tokens under teacher forcing.
        tries: how many numbers and offsets were tried.
        own_share: whether no try was exact, and the text gets the one share that the model was trained with.
    """

    vectors: Int[Tensor, " batch"]
    offset: Float[Tensor, " batch"]
    exact: Bool[Tensor, " batch"]
    wrong: Int[Tensor, " batch"]
    tries: Int[Tensor, " batch"]
    own_share: Bool[Tensor, " batch"]

    @property
    def request(self) -> VectorRequest:
        """What gives the encoder these latents: `model.encoder.posterior(…, request=counts.request)`."""
        return VectorRequest(torch.where(self.own_share, 0, self.vectors), offset=self.offset)


def find_fewest(
    model: TextAutoencoder,
    texts: Texts,
    *,
    max_wrong: int = 0,
    offsets: Sequence[float] = OFFSETS,
    progress: str | None = None,
) -> VectorCounts:
    """Find the fewest vectors from which each text is reconstructed exactly, over numbers and offsets of the cuts.

    Numbers begin at the smallest share that the model was trained for. All up to 16 are tried; above, each is at most
    an eighth larger than the one before. If none is exact, a text gets all its vectors, or the trained share if the
    model was trained with one share.

    Args:
        model: an autoencoder that takes any number of vectors (`bottleneck.any_number`).
        texts: token ids of texts.
        max_wrong: wrong tokens that are allowed under teacher forcing. After one, greedy decoding may go astray.
        offsets: offsets of the cuts that are tried with each number.
        progress: the name of a bar that a terminal shows.
    """
    if isinstance(max_wrong, bool) or not isinstance(max_wrong, int) or max_wrong < 0:
        raise InputError(f"max_wrong is {max_wrong!r}, expected a whole number of at least 0.")
    smallest = model.config.smallest_share if model.config.shares else 0.0
    offsets = offsets[:1] if model.encoder.bottleneck.decides else offsets  # gates have no cuts to move

    def search(tries: Tries) -> VectorCounts:
        lengths = tries.mask.sum(-1)
        fewest = vectors_at(smallest, lengths)
        ladder = [0, *numbers_to_try(int(lengths.max()))]
        # each text up to its length; what it does not try is a number that it cannot have
        capped = ((last, lengths.clamp(max=number)) for last, number in pairwise(ladder))
        numbers = (torch.where((m > last) & (m >= fewest), m, lengths + 1) for last, m in capped)
        return _fall_back(tries, _search(tries, numbers, offsets=offsets, max_wrong=max_wrong), lengths, max_wrong)

    return _search_batches(model, texts, search, progress)


def choose_auto(
    model: TextAutoencoder,
    texts: Texts,
    *,
    shares: Sequence[float] = AUTO_SHARES,
    hard: float | None = HARD,
    offsets: Sequence[float] = OFFSETS[:1],
    progress: str | None = None,
) -> VectorCounts:
    """Choose the number of vectors of each text in two tries: the first of `shares` that reconstructs it exactly.

    The last share is for the other texts; those with more than `hard` nats at the last try get all their vectors. If
    the model was trained with one share, all of them get that one. It costs little more than greedy decoding.
    """

    def search(tries: Tries) -> VectorCounts:
        lengths = tries.mask.sum(-1)
        *tried, otherwise = (vectors_at(share, lengths) for share in shares)
        found = _search(tries, tried, offsets=offsets)
        rows = (~found.exact).nonzero().flatten()
        if hard is not None and len(rows):
            latents = tries.latents(rows, VectorRequest(tried[-1][rows], offset=offsets[-1]))
            logits, labels = tries.look(rows, latents)
            nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").sum(-1)
            otherwise[rows] = torch.where(nats > hard, lengths[rows], otherwise[rows])
        return _fall_back(tries, found, otherwise)

    return _search_batches(model, texts, search, progress)


def make_request(
    model: TextAutoencoder, texts: Sequence[Any], *, vectors: Vectors = None, share: Share = None
) -> VectorRequest | None:
    """Make the request for a number or a share of vectors; None if neither is given."""
    if (vectors is None and share is None) or not texts:
        return None
    if vectors is not None and share is not None:
        raise InputError(f"vectors is {vectors} and share is {share}, expected one of the two.")
    if isinstance(vectors, str):
        how = OLD_WORDS.get(vectors, vectors)
        if how != vectors:
            warn_renamed(f"vectors={vectors!r}", repr(how), stacklevel=3)
        if how == "auto" and model.encoder.bottleneck.decides:
            return None  # the number that its gates choose
        if how in ("fewest", "auto"):
            return (find_fewest if how == "fewest" else choose_auto)(model, texts).request
    check_any_number(model)
    name, given = ("share", share) if vectors is None else ("vectors", vectors)
    expected = "0 to 1, above 0" if name == "share" else "whole numbers above 0, 'fewest' or 'auto'"
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
    return VectorRequest(**{name: values.expand(len(texts))})


def pairs_of_one_length(texts: Texts, counts: VectorCounts, number: int) -> list[tuple[int, int]]:
    """Return the exact text with the fewest vectors and the one with the most, by index, of the frequent lengths."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        if counts.exact[index]:
            groups[len(text)].append(index)
    frequent = sorted(groups, key=lambda length: -len(groups[length]))[:number]
    by_number = (sorted(groups[length], key=lambda index: int(counts.vectors[index])) for length in sorted(frequent))
    return [(group[0], group[-1]) for group in by_number]


def check_any_number(model: TextAutoencoder) -> None:
    """Raise an InputError if the number of vectors is fixed; warn if the model was trained with one share."""
    if not model.encoder.bottleneck.any_number:
        raise InputError(
            "this model has a fixed number of vectors, expected one that takes any: an nvae with keep_share or gates, "
            "or a vts with stride_pooling, best trained with --loss.shares log_uniform."
        )
    if model.config.shares is None:
        known = "decides the number of vectors" if model.encoder.bottleneck.decides else "was trained with one share"
        warnings.warn(
            f"this model {known}, so numbers far from its own may lose the text. Train a model with keep_share and "
            f"--loss.shares log_uniform for any number.",
            OutsideTraining,
            stacklevel=3,
        )


@torch.no_grad()
def _search_batches(
    model: TextAutoencoder, texts: Texts, search: Callable[["Tries"], VectorCounts], progress: str | None
) -> VectorCounts:
    check_any_number(model)
    order: list[int] = []
    parts: list[VectorCounts] = []
    for indices, batch in in_batches(texts, 4 * BATCH, len, progress):
        order += indices
        parts.append(search(Tries(model, batch)))
    return join(parts)[torch.tensor(order).argsort()]


class Tries:
    """A batch of texts to try with many numbers of vectors. What does not depend on the number is computed once."""

    def __init__(self, model: TextAutoencoder, texts: Texts) -> None:
        inputs = make_batch(model, texts)
        self.model, self.mask, self.labels = model, inputs["attention_mask"].bool(), inputs["labels"]
        self.hidden = model.encoder.hidden_states(inputs["input_ids"], self.mask)
        self.written = model.decoder.layers[0].recall(model.embed(model.shift_right(self.labels)))

    def latents(self, rows: Tensor, request: VectorRequest) -> list[Projected]:
        """Encode texts, given as rows of the batch, and project their latents for the decoder to read."""
        latent = self.model.encoder.bottleneck(self.hidden[rows], self.mask[rows], request)
        return self.model.decoder.project(latent.mean().compact())

    def look(
        self, rows: Tensor, latents: list[Projected], positions: Tensor | None = None
    ) -> tuple[Float[Tensor, "rows n tokens"], Int[Tensor, "rows n"]]:
        """Return the logits at some positions of each text, or at all, and the tokens that should be there."""
        decoder = self.model.decoder
        if positions is None:
            positions = torch.arange(self.labels.shape[1], device=rows.device).expand(len(rows), -1)
        x = self.written[rows]
        for index, (layer, latent) in enumerate(zip(decoder.layers, latents, strict=True)):
            x = layer.recall(x) if index else x
            if layer is decoder.layers[-1]:  # nothing attends to the other positions any more
                x = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            x = layer.read(x, latent)
        return self.model.head(decoder.norm(x)), self.labels[rows].gather(1, positions)


def _misses(logits: Tensor, labels: Tensor) -> Bool[Tensor, "rows n"]:
    return (logits.argmax(-1) != labels) & (labels != IGNORED)


def _search(
    tries: Tries, numbers: Iterable[Int[Tensor, " batch"]], *, offsets: Sequence[float], max_wrong: int = 0
) -> VectorCounts:
    """Try `numbers` for each text, each with all offsets, until one is exact."""
    labels, lengths = tries.labels, tries.mask.sum(-1)
    vectors, wrong, tried = lengths.clone(), torch.zeros_like(lengths), torch.zeros_like(lengths)
    exact, offset = torch.zeros_like(tries.mask[:, 0]), tries.hidden.new_full(lengths.shape, offsets[0])
    times_wrong = torch.where(labels == IGNORED, -1, torch.zeros_like(labels))
    for number, at in ((number, at) for number in numbers for at in offsets):
        # Take the texts that are not done and can have this number; one vector has no cut to move.
        possible = (number <= lengths) & ((number > 1) | (at == offsets[0]))
        rows = (possible & ~exact).nonzero().flatten()
        if not len(rows):
            continue
        tried[rows] += 1
        latents = tries.latents(rows, VectorRequest(number[rows], offset=at))
        # Look at few positions first, the hardest ones, and go on with the texts that are right there.
        order, found, first = times_wrong[rows].argsort(descending=True, stable=True), torch.zeros_like(rows), 0
        for last in (*FIRST_LOOKS, labels.shape[1]):
            positions = order[:, first:last]
            missed = _misses(*tries.look(rows, latents, positions))
            times_wrong.index_put_((rows.unsqueeze(-1), positions), missed.long(), accumulate=True)
            found = found + missed.sum(-1)
            good = found <= max_wrong
            rows, order, found, first = rows[good], order[good], found[good], last
            latents = [latent[good] for latent in latents]
            if not len(rows):
                break
        # What is left was right everywhere.
        vectors[rows], offset[rows], exact[rows], wrong[rows] = number[rows], at, True, found
    own_share = torch.zeros_like(exact)
    return unchecked(
        VectorCounts, vectors=vectors, offset=offset, exact=exact, wrong=wrong, tries=tried, own_share=own_share
    )


def _fall_back(tries: Tries, found: VectorCounts, otherwise: Int[Tensor, " batch"], max_wrong: int = 0) -> VectorCounts:
    """Give texts without an exact try `otherwise`, or the share of a model that was trained with one; count `wrong`."""
    rows = (~found.exact).nonzero().flatten()
    if not len(rows):
        return found
    found.vectors[rows] = otherwise[rows]
    if tries.model.config.shares is None:
        found.own_share[rows] = True
        latent = tries.model.encoder.bottleneck(tries.hidden[rows], tries.mask[rows])
        found.vectors[rows] = (latent.kept.double() * latent.lengths).round().long()
        found.offset[rows] = 0.0
    missed = _misses(*tries.look(rows, tries.latents(rows, found.request[rows])))
    found.wrong[rows] = missed.sum(-1)
    found.exact[rows] = found.wrong[rows] <= max_wrong
    return found
