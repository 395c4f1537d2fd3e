"""A trained model with all that belongs to it, loaded in one call: encode, decode, reconstruct, sample, interpolate."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from open_nvib.attention import Mixture
from open_nvib.kl import gaussian_kl
from open_nvib.mixtures import ImpulseMixture
from open_nvib.process import Posterior
from open_nvib.store.files import InputError, damaged
from open_nvib.store.runs import (
    CONFIG,
    COPY,
    LENGTHS,
    LOG,
    METRICS,
    MODEL,
    TOKENIZER,
    is_run,
    read_config,
    read_lengths,
)
from open_nvib.store.settings import LARGEST_SEED
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent, NVIBBottleneck, PlainBottleneck, VectorLatent
from open_nvib.text.model.decoding import BATCH, decode, in_batches, make_batch, reconstruct_ids

__all__ = [
    "BATCH",
    "CONFIG",
    "LENGTHS",
    "LOG",
    "METRICS",
    "MODEL",
    "TOKENIZER",
    "Run",
    "TextReport",
    "TokenReport",
    "is_run",
    "load_run",
    "mix",
    "token_reports",
    "vectors_of",
]


@dataclass(frozen=True)
class TokenReport:
    """What the latent kept of one token.

    Args:
        token: the token.
        alpha: the pseudo-count of its vector, where the model has them.
        weight: its share of the latent's weight.
        kept: whether it has a vector in the latent, or is the first of those that share one.
        sigma: mean standard deviation of its vector.
        kl: KL of its vector to the prior, in nats.
        shared: whether it is in the vector of a token before it, at which the numbers are.
        place: of its vector in the latent; None if it was dropped.
    """

    token: str
    alpha: float | None
    weight: float
    kept: bool
    sigma: float | None
    kl: float | None
    shared: bool = False
    place: int | None = None

    @property
    def present(self) -> bool:
        """Whether anything of it is in the latent."""
        return self.kept or self.shared


@dataclass(frozen=True)
class TextReport:
    """What the latent kept of one text, and what comes back out of it."""

    text: str
    reconstruction: str
    tokens: list[TokenReport]
    prior_weight: float


@dataclass(frozen=True)
class Run:
    """A run directory: model, tokenizer and the lengths of its training data."""

    path: Path
    model: TextAutoencoder
    tokenizer: PreTrainedTokenizerBase
    histogram: Int[Tensor, " longest"]

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_config(self.path)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without special tokens; an empty text and one that is too long are InputErrors."""
        ids = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        longest = self.model.config.max_positions - 1
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise InputError(f"the text {text!r} has no tokens. Give at least a word.")
            if len(tokens) > longest:
                raise InputError(
                    f"the text {text[:40]!r}… has {len(tokens)} tokens, this model takes {longest}. Cut it."
                )
        return ids

    def normalise(self, texts: Sequence[str]) -> list[str]:
        """The texts as the tokenizer gives them back: what a perfect reconstruction would be."""
        return self.tokenizer.batch_decode(self.tokenize(texts))

    def encode(self, texts: Sequence[str]) -> Latent:
        """The latent of each text, one batch: look at it, prune it, mix it, decode it."""
        return self.encode_ids(self.tokenize(texts))

    @torch.no_grad()
    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Latent:
        """`encode` of texts that are tokenised already."""
        inputs = make_batch(self.model, ids)
        return self.model.encoder.posterior(inputs["input_ids"], inputs["attention_mask"])

    def decode(self, mixture: Mixture, limits: Sequence[int] | Tensor | None = None, **generation: Any) -> list[str]:
        """Texts from a mixture, such as `latent.mean()`: greedy, until their ends or their limits in tokens."""
        count = len(mixture)
        if limits is None:
            limits = [2 * (len(self.histogram) - 1)] * count
        return self.tokenizer.batch_decode(decode(self.model, mixture, torch.as_tensor(limits), **generation))

    def reconstruct(self, texts: Sequence[str], **generation: Any) -> list[str]:
        """Each text through the latent and back, up to twice its length."""
        return self.tokenizer.batch_decode(reconstruct_ids(self.model, self.tokenize(texts), **generation))

    def sample(
        self, count: int, *, seed: int = 0, length: int | None = None, delta: float | None = None, **generation: Any
    ) -> list[str]:
        """Texts from the prior: a length from the training data unless given, then a latent of that length.

        `delta` is the Δ of the NVAE's conditional prior, the model's if not given.
        """
        return self.tokenizer.batch_decode(self.sample_ids(count, seed=seed, length=length, delta=delta, **generation))

    @torch.no_grad()
    def sample_ids(
        self, count: int, *, seed: int = 0, length: int | None = None, delta: float | None = None, **generation: Any
    ) -> list[list[int]]:
        """The token ids of `sample`."""
        if count < 1:
            raise InputError(f"count is {count}, wanted at least 1.")
        if not 0 <= seed <= LARGEST_SEED:
            raise InputError(f"seed is {seed}, wanted 0 to {LARGEST_SEED}.")
        if length is not None and not 1 <= length <= self._longest:
            raise InputError(f"length is {length}, wanted 1 to {self._longest}.")
        bottleneck = self.model.encoder.bottleneck
        if isinstance(bottleneck, PlainBottleneck):
            raise InputError(f"{self.path.name}: a plain Transformer has no prior to sample. Train a vt, vts or nvae.")
        options = {}
        if delta is not None:
            if not isinstance(bottleneck, NVIBBottleneck):
                raise InputError(f"{self.path.name}: delta belongs to the prior of an nvae, and this model is not one.")
            if not 0 <= delta < float("inf"):
                raise InputError(f"delta is {delta}, wanted a number of at least 0.")
            options["delta"] = delta
        generator = torch.Generator(self.model.device).manual_seed(seed)
        lengths = torch.multinomial(self.histogram.double(), count, replacement=True, generator=generator)
        lengths = lengths if length is None else torch.full_like(lengths, length)
        samples: list[list[int]] = [[]] * count
        for indices, batch in in_batches(lengths.tolist(), BATCH, int):
            limits = 2 * torch.tensor(batch)
            decoded = decode(self.model, bottleneck.prior(limits // 2, generator, **options), limits, **generation)
            for index, ids in zip(indices, decoded, strict=True):
                samples[index] = ids
        return samples

    def interpolate(self, first: str, second: str, *, steps: int = 7, **generation: Any) -> list[str]:
        """Texts along the path from one to the other: mixtures of the two means, or of the vectors side by side."""
        if steps < 2:
            raise InputError(f"steps is {steps}, wanted at least 2: both ends.")
        return [self.between(first, second, step / (steps - 1), **generation) for step in range(steps)]

    def between(self, first: str, second: str, weight: float, **generation: Any) -> str:
        """The text at one point of that path: at 0 the first, at 1 the second."""
        if not 0 <= weight <= 1:
            raise InputError(f"weight is {weight}, wanted 0 to 1.")
        latent = self.encode([first, second])
        return self.decode(mix(latent, weight), [2 * int(latent.lengths.max())], **generation)[0]

    def inspect(self, texts: Sequence[str]) -> list[TextReport]:
        """For each token its pseudo-count, its share of the weight, and the KL of its vector."""
        reports = []
        for text, ids in zip(texts, self.tokenize(texts), strict=True):
            latent, rows, prior_weight = self.look(ids)
            (decoded,) = self.decode(latent.mean(), 2 * latent.lengths)
            reports.append(TextReport(text=text, reconstruction=decoded, tokens=rows, prior_weight=prior_weight))
        return reports

    @torch.no_grad()
    def look(self, ids: Sequence[int]) -> tuple[Latent, list[TokenReport], float]:
        """The latent of one text, a report on each of its tokens, and the weight of the prior's component."""
        inputs = make_batch(self.model, [ids])
        mask = inputs["attention_mask"].bool()
        bottleneck = self.model.encoder.bottleneck
        hidden = self.model.encoder.hidden_states(inputs["input_ids"], mask)
        latent = bottleneck(hidden, mask)
        homes = bottleneck.nvib.homes(hidden, mask)[0].tolist() if isinstance(bottleneck, NVIBBottleneck) else None
        return latent, *token_reports(latent, self.tokenizer.convert_ids_to_tokens(list(ids)), homes)

    @property
    def _longest(self) -> int:
        return self.model.config.max_positions - 1


def mix(latent: Latent, weight: float) -> Mixture:
    """A point between the two texts of a batch of two."""
    if isinstance(latent, Posterior):
        return latent[0].mix(latent[1], weight)
    mean = latent.mean()
    z = mean.z * latent.mask.unsqueeze(-1)
    z = (1 - weight) * z[:1] + weight * z[1:]  # vectors at the same place, the longer one's tail fading
    present = (
        latent.mask[:1] | latent.mask[1:] if 0 < weight < 1 else latent.mask[:1] if weight == 0 else latent.mask[1:]
    )
    norm = 0.5 * latent.d**-0.5 * z.square().sum(-1)
    return ImpulseMixture(z=z, log_pi=norm.masked_fill(~present, -torch.inf))


def token_reports(
    latent: Latent, tokens: Sequence[str], homes: Sequence[int] | None = None
) -> tuple[list[TokenReport], float]:
    """A row for each token, and the weight of the prior's component.

    `homes` are those of `NVIB.homes`; without, a token's vector is the one at its place.
    """
    if isinstance(latent, Posterior):
        kl = gaussian_kl(latent.mu, latent.log_sigma, prior_mu=latent.prior.mu, prior_log_sigma=latent.prior.log_sigma)
        share = latent.alpha / latent.alpha0.unsqueeze(-1)
        sigma = latent.log_sigma.exp().mean(-1)
        alpha, weight, spread, nats = (x[0].tolist() for x in (latent.alpha, share, sigma, kl))
        begins = _beginnings(alpha[:-1], range(len(tokens)) if homes is None else homes)
        rows = []
        for index, token in enumerate(tokens):
            place = begins.get(index, -1)
            if place >= 0:
                rows.append(
                    TokenReport(token, alpha[place], weight[place], True, spread[place], nats[place], place=place)
                )
            elif homes is not None and homes[index] >= 0:
                rows.append(TokenReport(token, None, 0.0, False, None, None, shared=True, place=homes[index]))
            elif latent.prior.keep_share is not None:
                rows.append(TokenReport(token, 0.0, 0.0, False, None, None))
            else:
                rows.append(TokenReport(token, alpha[index], weight[index], False, spread[index], nats[index]))
        return rows, weight[-1]
    kept = latent.mask[0].tolist()
    kept += [False] * (len(tokens) - len(kept))  # a pooled latent has one vector for all
    count = max(1, sum(kept))
    noise = gaussian_kl(latent.mu, latent.log_sigma)[0].tolist() if isinstance(latent, VectorLatent) else None
    sigma = latent.log_sigma.exp().mean(-1)[0].tolist() if isinstance(latent, VectorLatent) else None
    rows = []
    for index, (token, present) in enumerate(zip(tokens, kept, strict=False)):
        spread = sigma[index] if present and sigma is not None else None
        information = noise[index] if present and noise is not None else None
        place = index if present else None
        rows.append(TokenReport(token, None, present / count, present, spread, information, place=place))
    return rows, 0.0


def _beginnings(alpha: Sequence[float], homes: Sequence[int]) -> dict[int, int]:
    """The first token of each vector, to the place of the vector.

    That is the first of those that have most of themselves in it, or the token that it stands at where there is none.
    """
    first: dict[int, int] = {}
    for index, home in enumerate(homes):
        first.setdefault(home, index)
    begins: dict[int, int] = {}
    for place in reversed([place for place, count in enumerate(alpha) if count > 0]):
        index = first.get(place, place)
        begins[place if index in begins else index] = place
    return begins


def vectors_of(tokens: Sequence[TokenReport]) -> list[tuple[int, list[TokenReport]]]:
    """The vectors of a text: the place of each in the latent, and the tokens that are in it."""
    vectors: dict[int, list[TokenReport]] = {}
    for token in tokens:
        if token.place is not None:
            vectors.setdefault(token.place, []).append(token)
    return list(vectors.items())


def load_run(path: str | Path, *, device: str | None = None) -> Run:
    """Open a run directory that `nvib train` wrote."""
    path = Path(path).expanduser()
    if not is_run(path):
        found = "there is no such directory" if not path.exists() else "this is not a run of open_nvib"
        raise InputError(f"{path}: {found}, wanted a directory that `nvib train --output {path}` writes.")
    if not (path / MODEL).is_dir():
        raise InputError(f"{path}: this run has no model yet. Run its `nvib train` command again to finish it.")
    disable_progress_bar()
    read_config(path)
    histogram = torch.tensor(read_lengths(path)["lengths"])
    model, tokenizer = _load_model(path / MODEL), _load_tokenizer(path / TOKENIZER)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"{path / TOKENIZER}: has {len(tokenizer)} entries, more than the {model.config.vocab_size} of the model. "
            f"{COPY}"
        )
    if device is not None:
        try:
            model.to(device)  # pyright: ignore[reportArgumentType]
            if model.device.type == "meta":
                raise RuntimeError("it holds shapes and no numbers")
        except (AssertionError, RuntimeError) as error:  # what torch raises for a device that is not there
            raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}).") from error
    return Run(path, model.eval(), tokenizer, histogram)


def _load_model(path: Path) -> TextAutoencoder:
    load: Any = TextAutoencoder.from_pretrained
    try:
        model, found = load(path, output_loading_info=True)
    except Exception as error:  # a damaged file is an error of many kinds
        raise damaged(path, error, fix=COPY) from error
    if found["missing_keys"]:  # which would be drawn at random
        raise damaged(path, f"no weights for {', '.join(sorted(found['missing_keys'])[:3])}", fix=COPY)
    return model


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # as above
        raise damaged(path, error, fix=COPY) from error
