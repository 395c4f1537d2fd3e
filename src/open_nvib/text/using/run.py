"""A trained model with all that belongs to it, loaded in one call: encode, decode, reconstruct, sample, interpolate."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from open_nvib._deprecation import warn_renamed
from open_nvib.attention import Mixture
from open_nvib.merging import VectorRequest
from open_nvib.store import files, runs
from open_nvib.store.files import InputError, OutsideTraining
from open_nvib.store.settings import TrainConfig, check_number
from open_nvib.text.data.tokenizer import token_names
from open_nvib.text.model import decoding, learned_prior, vector_count
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.model.decoding import Texts, detokenize
from open_nvib.text.model.learned_prior import FEWEST_TEXTS, NOISE_SCALE, PRIOR_SHARE, LearnedPrior
from open_nvib.text.model.vector_count import Share, VectorCounts, Vectors, check_any_number, vectors_at
from open_nvib.text.opening import find_device, open_tokenizer, open_weights, opening
from open_nvib.text.using import publishing
from open_nvib.text.using.inspection import LatentReport, TextReport, inspect_latent

MODEL_CONFIG = "config.json"
FIT_AGAIN = "Run `nvib fit-prior` on it again."
Prior = Literal["unit", "learned"]
OneOrMore = str | Sequence[str]
TEXTS_AT_ONCE = 4096
"""Texts that are tokenised at once."""


@dataclass(frozen=True)
class Run:
    """A trained model, opened by `load_run`.

    ```python
    run = load_run("runs/nvae")
    run.reconstruct("A sentence.", vectors="fewest")
    run.sample(3)
    ```

    Attributes:
        path: the run directory, or a folder that `save_pretrained` wrote.
        settings: those of its training; None in such a folder.
        lengths: entry k is the number of training sentences of k tokens; None if they are not known.
        numbers: the fewest vectors of training sentences; None if they were not counted.
    """

    path: Path
    settings: TrainConfig | None
    model: TextAutoencoder
    tokenizer: PreTrainedTokenizerBase
    lengths: Int[Tensor, " longest"] | None
    numbers: runs.Numbers | None = None

    @property
    def config(self) -> TrainConfig:
        """The settings that the model was trained with; an InputError if they are not known."""
        if self.settings is None:
            raise InputError(f"{self.path}: has no {runs.CONFIG}, expected the run directory that `nvib train` wrote.")
        return self.settings

    @property
    def histogram(self) -> Int[Tensor, " longest"]:
        """Entry k is the number of training sentences of k tokens; an InputError if they are not known."""
        if self.lengths is None:
            raise InputError(f"{self.path}: has no {runs.LENGTHS} to draw lengths from. Give a length.")
        return self.lengths

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """Fewest and most tokens of a training sentence; None if they are not known."""
        seen = [] if self.lengths is None else self.lengths.nonzero().flatten().tolist()
        return (seen[0], seen[-1]) if seen else None

    def length_warning(self, ids: Texts) -> str | None:
        """Say which texts are shorter or longer than all training sentences; None if none is, or it is not known."""
        if self.trained_lengths is None:
            return None
        low, high = self.trained_lengths
        outside = [text for text in ids if not low <= len(text) <= high]
        if not outside:
            return None
        start = files.in_one_line(detokenize(self.tokenizer, [list(outside[0][:20])])[0], longest=40)
        tokens = "1 token" if len(outside[0]) == 1 else f"{len(outside[0])} tokens"
        others = len(outside) - 1
        also = f", as may {others:,} more text{'s' * (others != 1)}" if others else ""
        return f"{start!r} has {tokens}, but the model was trained on {low} to {high}: it may come out wrong{also}."

    def tokenize(self, texts: OneOrMore) -> list[list[int]]:
        """Return token ids without special tokens; empty texts and those that are too long are InputErrors."""
        ids, unusable = self.tokenize_usable(texts)
        if unusable:
            raise InputError(f"texts: {'; '.join(f'[{index}] {why}' for index, why in list(unusable.items())[:10])}.")
        return list(ids.values())

    def tokenize_usable(self, texts: OneOrMore) -> tuple[dict[int, list[int]], dict[int, str]]:
        """Return the token ids of each text that the model takes, and why it does not take the others, by index."""
        texts = _as_texts(texts)
        ids: dict[int, list[int]] = {}
        unusable: dict[int, str] = {}
        for index, tokens in enumerate(self._token_ids(texts)):
            if not tokens:
                unusable[index] = f"{texts[index][:40]!r} has no tokens, expected at least a word"
            elif len(tokens) > self.longest:
                unusable[index] = f"{texts[index][:40]!r}… has {len(tokens)} tokens, expected at most {self.longest}"
            else:
                ids[index] = tokens
        return ids, unusable

    def _token_ids(self, texts: list[str]) -> Iterator[list[int]]:
        """Tokenise some texts at a time: what a tokenizer makes of a text besides its ids takes kilobytes."""
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[first : first + TEXTS_AT_ONCE]
            yield from self.tokenizer(some, add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]

    @property
    def longest(self) -> int:
        """Most tokens of a text that the model takes."""
        return self.model.config.max_positions - 1

    def normalise(self, texts: OneOrMore) -> list[str]:
        """Return the texts as the tokenizer gives them back, as a perfect reconstruction would."""
        return self.tokenizer.batch_decode(self.tokenize(texts))

    def encode(self, texts: OneOrMore, *, vectors: Vectors = None, share: Share = None) -> Latent:
        """Return the latents of texts as one batch: look at it, prune it, mix it, decode it.

        The batch is as wide as its longest text; `encode_batches` takes less memory for many texts.

        Args:
            texts: one or more.
            vectors: how many vectors a text gets, for a model that takes any number: a number for all texts or one for
                each; "fewest", the smallest number that is exact (`find_fewest`); or "auto" (`choose_auto`). The
                share of training if neither this nor `share` is given.
            share: vectors per token instead, above 0 and at most 1.
        """
        ids = self.tokenize(texts)
        return self.encode_ids(ids, self.request(ids, vectors=vectors, share=share))

    def encode_batches(
        self, texts: OneOrMore, *, vectors: Vectors = None, share: Share = None
    ) -> Iterator[tuple[list[int], Latent]]:
        """Iterate over the latents of any number of texts as (indices, latent), in batches of similar length."""
        ids = self.tokenize(texts)
        return decoding.encode_batches(self.model, ids, self.request(ids, vectors=vectors, share=share))

    def encode_ids(self, ids: Texts, request: VectorRequest | None = None) -> Latent:
        """Return the latents of texts that are tokenised already; `request` is that of `Run.request`."""
        self._check_ids(ids)
        return decoding.encode(self.model, ids, request)

    def _check_ids(self, ids: Texts) -> None:
        if not ids:
            raise InputError("no texts to encode, expected at least one.")
        vocabulary = self.model.config.vocab_size
        for index, text in enumerate(ids):
            if not 1 <= len(text) <= self.longest:
                raise InputError(f"texts[{index}] has {len(text)} tokens, expected 1 to {self.longest}.")
            if not 0 <= min(text) <= max(text) < vocabulary:
                raise InputError(f"texts[{index}] has a token beyond the vocabulary, expected 0 to {vocabulary - 1}.")

    def request(self, ids: Texts, *, vectors: Vectors = None, share: Share = None) -> VectorRequest | None:
        """Return the number of vectors of each text as the encoder takes it; warn of lengths not seen in training."""
        if text := self.length_warning(ids):
            warnings.warn(text, OutsideTraining, stacklevel=3)
        return vector_count.make_request(self.model, ids, vectors=vectors, share=share)

    def find_fewest(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, max_wrong: int = 0) -> VectorCounts:
        """Find the fewest vectors from which each text is reconstructed exactly: see `vector_count.find_fewest`.

        Texts can be given as token ids. `max_wrong` tokens may be wrong.
        """
        as_text = isinstance(texts, str) or not texts or isinstance(texts[0], str)
        ids: Any = self.tokenize(texts) if as_text else texts  # pyright: ignore[reportArgumentType]
        self._check_ids(ids)
        return vector_count.find_fewest(self.model, ids, max_wrong=max_wrong)

    def find_needed(self, *args: Any, **kwargs: Any) -> VectorCounts:
        """Old name of `find_fewest`."""
        warn_renamed("Run.find_needed", "find_fewest")
        return self.find_fewest(*args, **kwargs)

    def decode(self, mixture: Mixture, limits: Sequence[int] | Tensor | None = None, **generation: Any) -> list[str]:
        """Decode each mixture, such as `latent.mean()`, until the end of the text or its limit in tokens.

        Without limits, texts have up to twice the tokens of the longest training sentence, if that is known. Decoding
        is greedy; `generation` goes to the `generate` of Hugging Face.
        """
        if limits is None:
            limits = [self.longest if self.lengths is None else 2 * (len(self.lengths) - 1)] * len(mixture)
        return detokenize(self.tokenizer, decoding.decode(self.model, mixture, torch.as_tensor(limits), **generation))

    def reconstruct(
        self,
        texts: OneOrMore,
        *,
        vectors: Vectors = None,
        share: Share = None,
        seed: int | None = None,
        **generation: Any,
    ) -> list[str]:
        """Decode the mean of the latent of each text, up to twice its length; `vectors` and `share` as in `encode`.

        With `seed`, a sample of the latent is decoded instead, as in training.
        """
        ids = self.tokenize(texts)
        request = self.request(ids, vectors=vectors, share=share)
        decoded = decoding.reconstruct_ids(self.model, ids, request=request, seed=seed, **generation)
        return detokenize(self.tokenizer, decoded)

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        length: int | None = None,
        delta: float | None = None,
        vectors: int | None = None,
        share: float | None = None,
        prior: Prior = "unit",
        noise_scale: float | None = None,
        **generation: Any,
    ) -> list[str]:
        """Generate texts from the prior: a length from the training data unless given, then a latent of that length.

        Args:
            count: of texts.
            seed: the same seed gives the same texts.
            length: in tokens.
            delta: Δ of the NVAE's conditional prior, the model's if not given.
            vectors: how many vectors a latent has, for a model that takes any number. If neither this nor `share` is
                given, the fewest of a training sentence of the length, drawn from those that the run has counted.
            share: vectors per token of the length instead.
            prior: unit, the prior of the loss, or learned, that of `fit_prior`, which takes none of the three above.
            noise_scale: factor of the noise of the learned prior, 0.3 if not given.
            generation: options of Hugging Face's `generate`.
        """
        options: dict[str, Any] = {"length": length, "delta": delta, "vectors": vectors, "share": share}
        options |= {"prior": prior, "noise_scale": noise_scale}
        return detokenize(self.tokenizer, self.sample_ids(count, seed=seed, **options, **generation))

    @torch.no_grad()
    def sample_ids(
        self,
        count: int,
        *,
        seed: int = 0,
        length: int | None = None,
        delta: float | None = None,
        vectors: int | None = None,
        share: float | None = None,
        prior: Prior = "unit",
        noise_scale: float | None = None,
        progress: str | None = None,
        **generation: Any,
    ) -> list[list[int]]:
        """Return the token ids of `sample`; with `progress`, a terminal shows a bar of that name."""
        for name, value in (("count", count), ("seed", seed), ("delta", delta), ("noise_scale", noise_scale)):
            check_number(name, value)
        if length is not None and (type(length) is not int or not 1 <= length <= self.longest):
            raise InputError(f"length is {length}, expected a whole number from 1 to {self.longest}.")
        low, high = self.trained_lengths or (1, self.longest)
        if length is not None and not low <= length <= high:
            outside = f"length is {length}, but the model was trained on {low} to {high}"
            warnings.warn(f"{outside}: the texts may come out wrong.", OutsideTraining, stacklevel=3)
        bottleneck = self.model.encoder.bottleneck
        if not bottleneck.has_prior:
            raise InputError(f"{self.path.name}: a plain Transformer has no prior. Train a vt, vtp, vts or nvae.")
        if prior == "learned" and (delta is not None or vectors is not None or share is not None):
            raise InputError(
                "delta, vectors and share belong to the unit prior; the learned one was fitted to a share."
            )
        if prior == "unit" and noise_scale is not None:
            raise InputError(f"noise_scale is {noise_scale}, expected none: it belongs to the learned prior.")
        if delta is not None and bottleneck.delta is None:
            raise InputError(f"{self.path.name}: delta belongs to the prior of an nvae, and this model is not one.")
        # Lengths and numbers are drawn on the CPU, noise where the model is; a generator belongs to one device.
        generator = noise = torch.Generator().manual_seed(seed)
        if self.model.device.type != "cpu":
            noise = torch.Generator(self.model.device).manual_seed(seed)
        if self.lengths is None and length is not None:
            lengths = torch.full((count,), length)
        else:  # drawn for a given length as well: a seed gives the same latents
            lengths = torch.multinomial(self.histogram.double(), count, replacement=True, generator=generator)
            lengths = lengths if length is None else torch.full_like(lengths, length)
        learned = self.learned_prior if prior == "learned" else None
        numbers = None if learned else self._numbers(lengths, vectors, share, generator)
        samples: list[list[int]] = [[]] * count
        for indices, batch in decoding.in_batches(lengths.tolist(), decoding.BATCH, int, progress):
            chosen = None if numbers is None else numbers[indices]
            if learned is None:
                mixture = bottleneck.prior(torch.tensor(batch), noise, delta=delta, vectors=chosen)
            else:
                scale = NOISE_SCALE if noise_scale is None else noise_scale
                mixture = learned.sample(self.model, torch.tensor(batch), generator, noise_scale=scale)
            decoded = decoding.decode(self.model, mixture, 2 * torch.tensor(batch), **generation)
            for index, ids in zip(indices, decoded, strict=True):
                samples[index] = ids
        return samples

    def _numbers(
        self, lengths: Int[Tensor, " count"], vectors: int | None, share: float | None, generator: torch.Generator
    ) -> Int[Tensor, " count"] | None:
        """Return the number of vectors of each sample; None if it follows from the length."""
        given = vector_count.make_request(self.model, lengths.tolist(), vectors=vectors, share=share)
        if given is not None:
            if share is not None:
                return vectors_at(torch.as_tensor(given.share).cpu(), lengths)
            return torch.as_tensor(given.vectors).cpu().minimum(lengths)
        return None if self.numbers is None else learned_prior.draw_numbers(self.numbers, lengths, generator)

    @property
    def has_learned_prior(self) -> bool:
        """Whether `fit_prior` was called on the run."""
        return (self.path / runs.PRIOR).is_file()

    @cached_property
    def learned_prior(self) -> LearnedPrior:
        """The prior that `fit_prior` wrote; an InputError if there is none for these weights."""
        path = self.path / runs.PRIOR
        if not self.has_learned_prior:
            raise InputError(f"{self.path}: has no learned prior. Fit one with `nvib fit-prior {self.path}`.")
        found = learned_prior.load_prior(path, fix=FIT_AGAIN)
        features = self.model.config.p + (self.model.encoder.bottleneck.delta is not None)  # an nvae's have a count
        if found.settings.model != self._weights_digest() or len(found.centre) != features:
            raise InputError(f"{path}: was fitted to other weights than those of this run. {FIT_AGAIN}")
        return found

    def _weights_digest(self) -> str:
        inside = self.path / runs.MODEL / runs.WEIGHTS
        return files.digest_of_file(inside if inside.is_file() else self.path / runs.WEIGHTS)

    def fit_prior(self, ids: Texts, *, share: float | None = None) -> LearnedPrior:
        """Fit a prior to the latents of tokenised training texts, and write it to the run: `sample(prior="learned")`.

        `share` is the number of vectors per token, of a model that takes any number: 0.25 if not given and the model
        was trained for any, and otherwise the number that the model gives a text by itself.
        """
        if share is not None and not 0 < share <= 1:
            raise InputError(f"share is {share}, expected a number above 0 and at most 1.")
        bottleneck = self.model.encoder.bottleneck
        if not bottleneck.has_prior:
            raise InputError(f"{self.path.name}: a plain Transformer has no prior. Train a vt, vtp, vts or nvae.")
        self._check_ids(ids)
        if len(ids) < FEWEST_TEXTS:
            raise InputError(f"ids has {len(ids)} texts, expected at least {FEWEST_TEXTS} to fit a prior to.")
        if why := files.obstacle_to_writing(self.path):
            raise InputError(f"{self.path}: cannot be written ({why}). Copy the run to where it can be.")
        if share is not None:
            check_any_number(self.model)
        elif self.model.config.shares is not None:
            share = PRIOR_SHARE
        fitted = learned_prior.fit_prior(self.model, ids, share=share, model_digest=self._weights_digest())
        learned_prior.save_prior(fitted, self.path / runs.PRIOR)
        self.__dict__.pop("learned_prior", None)  # an earlier one
        return fitted

    def interpolate(
        self,
        first: str,
        second: str,
        *,
        steps: int = 7,
        vectors: Vectors = None,
        share: Share = None,
        **generation: Any,
    ) -> list[str]:
        """Decode `steps` points on the path from one text to the other, both ends included."""
        if steps < 2:
            raise InputError(f"steps is {steps}, expected at least 2: both ends.")
        latent = self.encode([first, second], vectors=vectors, share=share)
        return [self._decode_between(latent, step / (steps - 1), **generation) for step in range(steps)]

    def between(
        self, first: str, second: str, weight: float, *, vectors: Vectors = None, share: Share = None, **generation: Any
    ) -> str:
        """Decode one point of that path: at 0 the first text, at 1 the second; `vectors` and `share` as in `encode`."""
        if not 0 <= weight <= 1:
            raise InputError(f"weight is {weight}, expected 0 to 1.")
        return self._decode_between(self.encode([first, second], vectors=vectors, share=share), weight, **generation)

    def _decode_between(self, latent: Latent, weight: float, **generation: Any) -> str:
        """Decode one point between two texts that are encoded."""
        mixture = latent[0].mix(latent[1], weight)  # pyright: ignore[reportArgumentType]
        return self.decode(mixture, [2 * int(latent.lengths.max())], **generation)[0]

    def inspect(self, texts: OneOrMore, *, vectors: Vectors = None, share: Share = None) -> list[TextReport]:
        """Report on each token of each text: its pseudo-count, its share of the weight, and the KL of its vector.

        `vectors` and `share` as in `encode`.
        """
        texts, reports = _as_texts(texts), []
        all_ids = self.tokenize(texts)
        request = self.request(all_ids, vectors=vectors, share=share)
        for index, (text, ids) in enumerate(zip(texts, all_ids, strict=True)):
            found = self.inspect_ids(ids, request and request[[index]])
            (decoded,) = self.decode(found.latent.mean(), 2 * found.latent.lengths)
            reports.append(TextReport(text, decoded, found.tokens, found.prior_weight))
        return reports

    @torch.no_grad()
    def inspect_ids(self, ids: Sequence[int], request: VectorRequest | None = None) -> LatentReport:
        """Return the latent of one text that is tokenised already, with a report on each of its tokens."""
        self._check_ids([ids])
        inputs = decoding.make_batch(self.model, [ids])
        mask = inputs["attention_mask"].bool()
        encoder = self.model.encoder
        tokens = token_names(self.tokenizer, ids)
        hidden = encoder.hidden_states(inputs["input_ids"], mask)
        return inspect_latent(encoder.bottleneck, hidden, mask, tokens, request)

    # Publishing

    save_pretrained = publishing.save_pretrained
    push_to_hub = publishing.push_to_hub

    @staticmethod
    def from_pretrained(name: str | Path, *, device: str | None = None, **kwargs: Any) -> "Run":
        """Open a folder, or download what `push_to_hub` uploaded under this id; `kwargs` go to `snapshot_download`."""
        if Path(name).expanduser().exists():
            return load_run(name, device=device)
        return load_run(publishing.download(str(name), **kwargs), device=device)


def _as_texts(texts: OneOrMore) -> list[str]:
    """Wrap one text; an InputError for what is not text."""
    found = [texts] if isinstance(texts, str) else list(texts)
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"texts[{index}] is of type {type(text).__name__}, expected str.")
    files.check_characters(found)
    return found


def load_run(path: str | Path, *, device: str | None = None) -> Run:
    """Open a run directory that `nvib train` wrote, or a folder that `save_pretrained` wrote."""
    path = Path(path).expanduser()
    runs.complete_replacement(path)
    try:
        published = not (path / runs.CONFIG).is_file() and (path / MODEL_CONFIG).is_file()
        found = runs.is_run(path) or published
    except OSError as error:  # of a folder that may not be read
        raise files.damaged(path, error, fix=runs.RESTORE) from error
    if not found:
        kind = "there is no such directory" if not path.exists() else "this is not a run of open_nvib"
        raise InputError(f"{path}: {kind}, expected a directory that `nvib train --output {path}` writes.")
    if not published and not (path / runs.MODEL).is_dir():
        raise InputError(f"{path}: this run has no model yet. Run its `nvib train` command again to finish it.")
    files.check_manifest(path, fix=runs.RESTORE)
    disable_progress_bar()
    settings = None if published else runs.read_config(path)
    histogram = torch.tensor(runs.read_lengths(path).lengths) if (path / runs.LENGTHS).is_file() else None
    model_folder, tokenizer_folder = (path, path) if published else (path / runs.MODEL, path / runs.TOKENIZER)
    with opening(model_folder, fix=runs.RESTORE):
        model = open_weights(TextAutoencoder, model_folder, local_files_only=True)
    tokenizer = open_tokenizer(tokenizer_folder, fix=runs.RESTORE)
    spare = model.config.vocab_size - len(tokenizer)
    if spare < 0 or (spare and model.config.pretrained is None):  # pretrained models may have rows that no token uses
        raise InputError(
            f"{tokenizer_folder}: has {len(tokenizer)} entries, expected the {model.config.vocab_size} of the model. "
            f"{runs.RESTORE}"
        )
    if device is not None:
        model.to(find_device(device))  # pyright: ignore[reportArgumentType]
    return Run(path, settings, model.eval(), tokenizer, histogram, runs.read_numbers(path))
