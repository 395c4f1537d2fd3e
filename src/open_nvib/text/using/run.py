"""A trained model with all that belongs to it, loaded in one call: encode, decode, reconstruct, sample, interpolate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from open_nvib.attention import Mixture
from open_nvib.store.files import InputError, check_characters, check_manifest, damaged
from open_nvib.store.runs import MODEL, RESTORE, TOKENIZER, is_run, read_config, read_lengths
from open_nvib.store.settings import TrainConfig, check_number
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.model.decoding import BATCH, decode, encode, in_batches, make_batch, reconstruct_ids
from open_nvib.text.using.inspection import LatentReport, TextReport, inspect_latent


@dataclass(frozen=True)
class Run:
    """A trained model, opened by `load_run`.

    Attributes:
        path: the run directory.
        config: the settings that the model was trained with.
        histogram: entry k is the number of training sentences of k tokens.
    """

    path: Path
    config: TrainConfig
    model: TextAutoencoder
    tokenizer: PreTrainedTokenizerBase
    histogram: Int[Tensor, " longest"]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids without special tokens; an empty text and one that is too long are InputErrors."""
        check_characters(texts)
        ids = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise InputError(f"the text {text!r} has no tokens. Give at least a word.")
            if len(tokens) > self.longest:
                raise InputError(
                    f"the text {text[:40]!r}… has {len(tokens)} tokens, this model takes {self.longest}. Cut it."
                )
        return ids

    @property
    def longest(self) -> int:
        """Most tokens of a text that the model takes."""
        return self.model.config.max_positions - 1

    def normalise(self, texts: Sequence[str]) -> list[str]:
        """Return the texts as the tokenizer gives them back, as a perfect reconstruction would."""
        return self.tokenizer.batch_decode(self.tokenize(texts))

    def encode(self, texts: Sequence[str]) -> Latent:
        """Return the latents of texts as one batch: look at it, prune it, mix it, decode it."""
        return self.encode_ids(self.tokenize(texts))

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Latent:
        """Return the latents of texts that are tokenised already."""
        return encode(self.model, ids)

    def decode(self, mixture: Mixture, limits: Sequence[int] | Tensor | None = None, **generation: Any) -> list[str]:
        """Decode each mixture, such as `latent.mean()`, until the end of the text or its limit in tokens.

        Without limits, texts have up to twice the tokens of the longest training sentence. Decoding is greedy;
        `generation` goes to the `generate` of Hugging Face.
        """
        if limits is None:
            limits = [2 * (len(self.histogram) - 1)] * len(mixture)
        return self.tokenizer.batch_decode(decode(self.model, mixture, torch.as_tensor(limits), **generation))

    def reconstruct(self, texts: Sequence[str], **generation: Any) -> list[str]:
        """Decode the mean of the latent of each text, up to twice its length."""
        return self.tokenizer.batch_decode(reconstruct_ids(self.model, self.tokenize(texts), **generation))

    def sample(
        self, count: int, *, seed: int = 0, length: int | None = None, delta: float | None = None, **generation: Any
    ) -> list[str]:
        """Generate texts from the prior: a length from the training data unless given, then a latent of that length.

        `delta` is the Δ of the NVAE's conditional prior, the model's if not given.
        """
        return self.tokenizer.batch_decode(self.sample_ids(count, seed=seed, length=length, delta=delta, **generation))

    @torch.no_grad()
    def sample_ids(
        self,
        count: int,
        *,
        seed: int = 0,
        length: int | None = None,
        delta: float | None = None,
        progress: str | None = None,
        **generation: Any,
    ) -> list[list[int]]:
        """Return the token ids of `sample`; with `progress`, a terminal shows a bar of that name."""
        for name, value in (("count", count), ("seed", seed), ("delta", delta)):
            check_number(name, value)
        if length is not None and not 1 <= length <= self.longest:
            raise InputError(f"length is {length}, expected 1 to {self.longest}.")
        bottleneck = self.model.encoder.bottleneck
        if not bottleneck.has_prior:
            raise InputError(f"{self.path.name}: a plain Transformer has no prior to sample. Train a vt, vts or nvae.")
        if delta is not None and bottleneck.delta is None:
            raise InputError(f"{self.path.name}: delta belongs to the prior of an nvae, and this model is not one.")
        generator = torch.Generator(self.model.device).manual_seed(seed)
        lengths = torch.multinomial(self.histogram.double(), count, replacement=True, generator=generator)
        lengths = lengths if length is None else torch.full_like(lengths, length)
        samples: list[list[int]] = [[]] * count
        for indices, batch in in_batches(lengths.tolist(), BATCH, int, progress):
            mixture = bottleneck.prior(torch.tensor(batch), generator, delta=delta)
            decoded = decode(self.model, mixture, 2 * torch.tensor(batch), **generation)
            for index, ids in zip(indices, decoded, strict=True):
                samples[index] = ids
        return samples

    def interpolate(self, first: str, second: str, *, steps: int = 7, **generation: Any) -> list[str]:
        """Decode `steps` points on the path from one text to the other, both ends included."""
        if steps < 2:
            raise InputError(f"steps is {steps}, expected at least 2: both ends.")
        return [self.between(first, second, step / (steps - 1), **generation) for step in range(steps)]

    def between(self, first: str, second: str, weight: float, **generation: Any) -> str:
        """Decode one point of that path: at 0 the first text, at 1 the second."""
        if not 0 <= weight <= 1:
            raise InputError(f"weight is {weight}, expected 0 to 1.")
        latent = self.encode([first, second])
        mixture = latent[0].mix(latent[1], weight)  # pyright: ignore[reportArgumentType]
        return self.decode(mixture, [2 * int(latent.lengths.max())], **generation)[0]

    def inspect(self, texts: Sequence[str]) -> list[TextReport]:
        """Report on each token of each text: its pseudo-count, its share of the weight, and the KL of its vector."""
        reports = []
        for text, ids in zip(texts, self.tokenize(texts), strict=True):
            found = self.inspect_ids(ids)
            (decoded,) = self.decode(found.latent.mean(), 2 * found.latent.lengths)
            reports.append(TextReport(text, decoded, found.tokens, found.prior_weight))
        return reports

    @torch.no_grad()
    def inspect_ids(self, ids: Sequence[int]) -> LatentReport:
        """Return the latent of one text that is tokenised already, with a report on each of its tokens."""
        inputs = make_batch(self.model, [ids])
        mask = inputs["attention_mask"].bool()
        encoder = self.model.encoder
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        return inspect_latent(encoder.bottleneck, encoder.hidden_states(inputs["input_ids"], mask), mask, tokens)


def load_run(path: str | Path, *, device: str | None = None) -> Run:
    """Open a run directory that `nvib train` wrote."""
    path = Path(path).expanduser()
    if not is_run(path):
        found = "there is no such directory" if not path.exists() else "this is not a run of open_nvib"
        raise InputError(f"{path}: {found}, expected a directory that `nvib train --output {path}` writes.")
    if not (path / MODEL).is_dir():
        raise InputError(f"{path}: this run has no model yet. Run its `nvib train` command again to finish it.")
    check_manifest(path, fix=RESTORE)
    disable_progress_bar()
    config, histogram = read_config(path), torch.tensor(read_lengths(path).lengths)
    model, tokenizer = _load_model(path / MODEL), _load_tokenizer(path / TOKENIZER)
    if len(tokenizer) != model.config.vocab_size:
        expected = f"expected the {model.config.vocab_size} of the model"
        raise InputError(f"{path / TOKENIZER}: has {len(tokenizer)} entries, {expected}. {RESTORE}")
    if device is not None:
        try:
            model.to(device)  # pyright: ignore[reportArgumentType]
            if model.device.type == "meta":
                raise RuntimeError("it holds shapes and no numbers")
        except (AssertionError, RuntimeError) as error:  # what torch raises for a device that is not there
            raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}).") from error
    return Run(path, config, model.eval(), tokenizer, histogram)


def _load_model(path: Path) -> TextAutoencoder:
    load: Any = TextAutoencoder.from_pretrained
    try:
        model, found = load(path, output_loading_info=True)
    except Exception as error:  # a damaged file is an error of many kinds
        raise damaged(path, error, fix=RESTORE) from error
    if found["missing_keys"]:  # which would be drawn at random
        raise damaged(path, f"no weights for {', '.join(sorted(found['missing_keys'])[:3])}", fix=RESTORE)
    return model


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # as above
        raise damaged(path, error, fix=RESTORE) from error
