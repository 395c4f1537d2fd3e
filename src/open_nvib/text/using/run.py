"""A trained model with all that belongs to it, loaded in one call: encode, decode, reconstruct, sample, interpolate."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from huggingface_hub import HfApi, snapshot_download
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from open_nvib.attention import Mixture
from open_nvib.store.files import (
    InputError,
    as_builtins,
    check_characters,
    check_manifest,
    damaged,
    in_one_line,
    obstacle_to_writing,
    write_text,
)
from open_nvib.store.runs import (
    CONFIG,
    LENGTHS,
    MODEL,
    RESTORE,
    TOKENIZER,
    Numbers,
    RunMetrics,
    complete_replacement,
    is_run,
    read_config,
    read_lengths,
    read_metrics,
    read_numbers,
    write_lengths,
    write_numbers,
)
from open_nvib.store.settings import TrainConfig, check_number
from open_nvib.text.data.tokenizer import open_tokenizer
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.model.decoding import (
    BATCH,
    NO_CUTS,
    decode,
    encode,
    encode_batches,
    in_batches,
    make_batch,
    reconstruct_ids,
)
from open_nvib.text.model.number import Needed, Share, Vectors, choose_cuts, find_needed, vectors_at
from open_nvib.text.using.inspection import LatentReport, TextReport, inspect_latent

MODEL_CONFIG = "config.json"
TEXTS_AT_ONCE = 4096
"""Texts that are tokenised at once."""
CARD = "README.md"
CARD_TEMPLATE = """\
---
{head}---

# {name}

A text autoencoder of open_nvib ({kind}, {parameters:,} parameters), for texts of up to {longest} tokens.

```python
from open_nvib.text import Run

run = Run.from_pretrained("{name}")  # the id of this model, or the folder
run.reconstruct("A sentence.")
run.encode("A sentence.").mu
```

## Metrics

{metrics}
"""


@dataclass(frozen=True)
class Run:
    """A trained model, opened by `load_run`.

    Attributes:
        path: the run directory, or a folder that `save_pretrained` wrote.
        settings: those of its training; None in such a folder.
        lengths: entry k is the number of training sentences of k tokens; None if they are not known.
        numbers: how many vectors training sentences need; None if it was not counted.
    """

    path: Path
    settings: TrainConfig | None
    model: TextAutoencoder
    tokenizer: PreTrainedTokenizerBase
    lengths: Int[Tensor, " longest"] | None
    numbers: Numbers | None = None

    @property
    def config(self) -> TrainConfig:
        """The settings that the model was trained with; an InputError if they are not known."""
        if self.settings is None:
            raise InputError(f"{self.path}: has no {CONFIG}, expected the run directory that `nvib train` wrote.")
        return self.settings

    @property
    def histogram(self) -> Int[Tensor, " longest"]:
        """Entry k is the number of training sentences of k tokens; an InputError if they are not known."""
        if self.lengths is None:
            raise InputError(f"{self.path}: has no {LENGTHS} to draw lengths from. Give a length.")
        return self.lengths

    def tokenize(self, texts: str | Sequence[str]) -> list[list[int]]:
        """Return token ids without special tokens; empty texts and those that are too long are InputErrors."""
        ids, unusable = self.tokenize_usable(texts)
        if unusable:
            raise InputError(f"texts: {'; '.join(f'[{index}] {why}' for index, why in list(unusable.items())[:10])}.")
        return list(ids.values())

    def tokenize_usable(self, texts: str | Sequence[str]) -> tuple[dict[int, list[int]], dict[int, str]]:
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

    def normalise(self, texts: str | Sequence[str]) -> list[str]:
        """Return the texts as the tokenizer gives them back, as a perfect reconstruction would."""
        return self.tokenizer.batch_decode(self.tokenize(texts))

    def encode(
        self, texts: str | Sequence[str], *, vectors: Vectors | None = None, share: Share | None = None
    ) -> Latent:
        """Return the latents of texts as one batch: look at it, prune it, mix it, decode it.

        The batch is as wide as its longest text; `encode_batches` takes less memory for many texts.

        Args:
            texts: one or more.
            vectors: how many vectors a text gets, for a model that takes any number: a number for all texts or one for
                each; "needed", the fewest with which it comes back (`find_needed`); or "decided" in two looks
                (`decide_number`). As in training if neither this nor `share` is given.
            share: vectors for each token instead, above 0 and at most 1.
        """
        return self.encode_ids(self.tokenize(texts), vectors=vectors, share=share)

    def encode_batches(
        self, texts: str | Sequence[str], *, vectors: Vectors | None = None, share: Share | None = None
    ) -> Iterator[tuple[list[int], Latent]]:
        """Iterate over the latents of any number of texts as (indices, latent), in batches of similar length."""
        ids = self.tokenize(texts)
        return encode_batches(self.model, ids, self.cuts(ids, vectors=vectors, share=share))

    def encode_ids(
        self, ids: Sequence[Sequence[int]], *, vectors: Vectors | None = None, share: Share | None = None
    ) -> Latent:
        """Return the latents of texts that are tokenised already."""
        if not ids:
            raise InputError("no texts to encode, expected at least one.")
        return encode(self.model, ids, self.cuts(ids, vectors=vectors, share=share))

    def cuts(
        self, ids: Sequence[Sequence[int]], *, vectors: Vectors | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Return the number of vectors of each text, and the place of its cuts, as the encoder takes them."""
        return choose_cuts(self.model, ids, vectors=vectors, share=share)

    def find_needed(
        self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, max_wrong: int = 0, max_nats: float | None = None
    ) -> Needed:
        """Find the fewest vectors with which each text comes back, and whether it does: see `find_needed`.

        Texts can be given as token ids. `max_wrong` tokens may be wrong, or else there may be `max_nats` for each.
        """
        as_text = isinstance(texts, str) or not texts or isinstance(texts[0], str)
        ids: Any = self.tokenize(texts) if as_text else texts  # pyright: ignore[reportArgumentType]
        if not ids:
            raise InputError("no texts to encode, expected at least one.")
        return find_needed(self.model, ids, max_wrong=max_wrong, max_nats=max_nats)

    def decode(self, mixture: Mixture, limits: Sequence[int] | Tensor | None = None, **generation: Any) -> list[str]:
        """Decode each mixture, such as `latent.mean()`, until the end of the text or its limit in tokens.

        Without limits, texts have up to twice the tokens of the longest training sentence, if that is known. Decoding
        is greedy; `generation` goes to the `generate` of Hugging Face.
        """
        if limits is None:
            limits = [self.longest if self.lengths is None else 2 * (len(self.lengths) - 1)] * len(mixture)
        return self.tokenizer.batch_decode(decode(self.model, mixture, torch.as_tensor(limits), **generation))

    def reconstruct(
        self,
        texts: str | Sequence[str],
        *,
        vectors: Vectors | None = None,
        share: Share | None = None,
        **generation: Any,
    ) -> list[str]:
        """Decode the mean of the latent of each text, up to twice its length; `vectors` and `share` as in `encode`."""
        ids = self.tokenize(texts)
        cuts = self.cuts(ids, vectors=vectors, share=share)
        return self.tokenizer.batch_decode(reconstruct_ids(self.model, ids, cuts=cuts, **generation))

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        length: int | None = None,
        delta: float | None = None,
        vectors: int | None = None,
        share: float | None = None,
        **generation: Any,
    ) -> list[str]:
        """Generate texts from the prior: a length from the training data unless given, then a latent of that length.

        Args:
            count: of texts.
            seed: the same seed gives the same texts.
            length: in tokens.
            delta: Δ of the NVAE's conditional prior, the model's if not given.
            vectors: how many vectors a latent has, for a model that takes any number. If neither this nor `share` is
                given, as many as a training sentence of the length needs, drawn from those that the run has counted.
            share: vectors for each token of the length instead.
            generation: options of Hugging Face's `generate`.
        """
        options: dict[str, Any] = {"length": length, "delta": delta, "vectors": vectors, "share": share}
        return self.tokenizer.batch_decode(self.sample_ids(count, seed=seed, **options, **generation))

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
        if self.lengths is None and length is not None:
            lengths = torch.full((count,), length)
        else:  # drawn for a given length as well: a seed gives the same latents
            lengths = torch.multinomial(self.histogram.double(), count, replacement=True, generator=generator)
            lengths = lengths if length is None else torch.full_like(lengths, length)
        numbers = self._numbers(lengths, vectors, share, generator)
        samples: list[list[int]] = [[]] * count
        for indices, batch in in_batches(lengths.tolist(), BATCH, int, progress):
            chosen = None if numbers is None else numbers[indices]
            mixture = bottleneck.prior(torch.tensor(batch), generator, delta=delta, vectors=chosen)
            decoded = decode(self.model, mixture, 2 * torch.tensor(batch), **generation)
            for index, ids in zip(indices, decoded, strict=True):
                samples[index] = ids
        return samples

    def _numbers(
        self, lengths: Int[Tensor, " count"], vectors: int | None, share: float | None, generator: torch.Generator
    ) -> Int[Tensor, " count"] | None:
        """Return the number of vectors of each sample; None if it follows from the length."""
        if given := choose_cuts(self.model, lengths.tolist(), vectors=vectors, share=share):
            if share is not None:
                return vectors_at(given["share"].cpu(), lengths)
            return given["vectors"].cpu().minimum(lengths)
        if self.numbers is None:
            return None
        known, number, count = torch.tensor(self.numbers.counts).T
        nearest = (lengths.unsqueeze(-1) - known).abs()  # those of the nearest length, for a length that has none
        weights = torch.where(nearest == nearest.amin(-1, keepdim=True), count, 0).double()
        chosen = torch.multinomial(weights, 1, generator=generator).squeeze(-1)
        scaled = (number[chosen] * lengths / known[chosen]).round().long()
        return scaled.clamp(min=1).minimum(lengths)

    def interpolate(
        self,
        first: str,
        second: str,
        *,
        steps: int = 7,
        vectors: Vectors | None = None,
        share: Share | None = None,
        **generation: Any,
    ) -> list[str]:
        """Decode `steps` points on the path from one text to the other, both ends included."""
        if steps < 2:
            raise InputError(f"steps is {steps}, expected at least 2: both ends.")
        number = {"vectors": vectors, "share": share}
        weights = [step / (steps - 1) for step in range(steps)]
        return [self.between(first, second, weight, **number, **generation) for weight in weights]

    def between(
        self,
        first: str,
        second: str,
        weight: float,
        *,
        vectors: Vectors | None = None,
        share: Share | None = None,
        **generation: Any,
    ) -> str:
        """Decode one point of that path: at 0 the first text, at 1 the second; `vectors` and `share` as in `encode`."""
        if not 0 <= weight <= 1:
            raise InputError(f"weight is {weight}, expected 0 to 1.")
        latent = self.encode([first, second], vectors=vectors, share=share)
        mixture = latent[0].mix(latent[1], weight)  # pyright: ignore[reportArgumentType]
        return self.decode(mixture, [2 * int(latent.lengths.max())], **generation)[0]

    def inspect(
        self, texts: str | Sequence[str], *, vectors: Vectors | None = None, share: Share | None = None
    ) -> list[TextReport]:
        """Report on each token of each text: its pseudo-count, its share of the weight, and the KL of its vector.

        `vectors` and `share` as in `encode`.
        """
        texts, reports = _as_texts(texts), []
        all_ids = self.tokenize(texts)
        cuts = self.cuts(all_ids, vectors=vectors, share=share)
        for index, (text, ids) in enumerate(zip(texts, all_ids, strict=True)):
            found = self.inspect_ids(ids, {name: values[index : index + 1] for name, values in cuts.items()})
            (decoded,) = self.decode(found.latent.mean(), 2 * found.latent.lengths)
            reports.append(TextReport(text, decoded, found.tokens, found.prior_weight))
        return reports

    @torch.no_grad()
    def inspect_ids(self, ids: Sequence[int], cuts: Mapping[str, Tensor] = NO_CUTS) -> LatentReport:
        """Return the latent of one text that is tokenised already, with a report on each of its tokens.

        `cuts` are those of `Run.cuts` for this text.
        """
        inputs = make_batch(self.model, [ids])
        mask = inputs["attention_mask"].bool()
        encoder = self.model.encoder
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        return inspect_latent(encoder.bottleneck, encoder.hidden_states(inputs["input_ids"], mask), mask, tokens, cuts)

    # Publishing

    def save_pretrained(self, folder: str | Path, *, name: str | None = None) -> None:
        """Write the model, its tokenizer, the lengths of its training data and a model card to a folder.

        `load_run`, `Run.from_pretrained` and the Auto classes of transformers open it. The card calls the model by
        `name`, by the name of the run directory if not given.
        """
        folder = Path(folder).expanduser()
        if why := obstacle_to_writing(folder):
            raise InputError(f"{folder}: cannot be written to ({why}). Give another folder.")
        disable_progress_bar()
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(str(folder))
        if self.lengths is not None:
            write_lengths(folder, read_lengths(self.path))
        if self.numbers is not None:
            write_numbers(folder, self.numbers)
        card = model_card(name or self.path.resolve().name, self.model, read_metrics(self.path))
        write_text(folder / CARD, card)

    @staticmethod
    def from_pretrained(name: str | Path, *, device: str | None = None, **kwargs: Any) -> "Run":
        """Open a folder, or download what `push_to_hub` uploaded under this id; `kwargs` go to `snapshot_download`."""
        if Path(name).expanduser().exists():
            return load_run(name, device=device)
        with _hub_errors(str(name)):
            folder = snapshot_download(str(name), ignore_patterns=["*.py", "*.bin", "*.pt", "checkpoints/*"], **kwargs)
        return load_run(folder, device=device)

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, token: str | None = None, **kwargs: Any
    ) -> None:
        """Upload what `save_pretrained` writes to the Hugging Face hub; `kwargs` go to `HfApi.upload_folder`."""
        api = HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, name=repo_id)
            with _hub_errors(repo_id):
                api.create_repo(repo_id, private=private, exist_ok=True)
                api.upload_folder(repo_id=repo_id, folder_path=folder, **kwargs)


def _as_texts(texts: str | Sequence[str]) -> list[str]:
    """Wrap one text; an InputError for what is not text."""
    found = [texts] if isinstance(texts, str) else list(texts)
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"texts[{index}] is of type {type(text).__name__}, expected str.")
    check_characters(found)
    return found


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn what the hub and the network raise into an InputError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: cannot be found on the Hugging Face hub or uploaded to it ({in_one_line(error)}). Give the path "
            f"of a folder, or an id such as me/nvae; the hub needs a network and, to upload, `hf auth login`."
        ) from error


def load_run(path: str | Path, *, device: str | None = None) -> Run:
    """Open a run directory that `nvib train` wrote, or a folder that `save_pretrained` wrote."""
    path = Path(path).expanduser()
    complete_replacement(path)
    try:
        published = not (path / CONFIG).is_file() and (path / MODEL_CONFIG).is_file()
        found = is_run(path) or published
    except OSError as error:  # of a folder that may not be read
        raise damaged(path, error, fix=RESTORE) from error
    if not found:
        kind = "there is no such directory" if not path.exists() else "this is not a run of open_nvib"
        raise InputError(f"{path}: {kind}, expected a directory that `nvib train --output {path}` writes.")
    if not published and not (path / MODEL).is_dir():
        raise InputError(f"{path}: this run has no model yet. Run its `nvib train` command again to finish it.")
    check_manifest(path, fix=RESTORE)
    disable_progress_bar()
    settings = None if published else read_config(path)
    histogram = torch.tensor(read_lengths(path).lengths) if (path / LENGTHS).is_file() else None
    model_folder, tokenizer_folder = (path, path) if published else (path / MODEL, path / TOKENIZER)
    model, tokenizer = _load_model(model_folder), open_tokenizer(tokenizer_folder, fix=RESTORE)
    if len(tokenizer) != model.config.vocab_size:
        raise InputError(
            f"{tokenizer_folder}: has {len(tokenizer)} entries, expected the {model.config.vocab_size} of the model. "
            f"{RESTORE}"
        )
    if device is not None:
        try:
            model.to(device)  # pyright: ignore[reportArgumentType]
            if model.device.type == "meta":
                raise RuntimeError("it holds shapes and no numbers")
        except (AssertionError, RuntimeError) as error:  # what torch raises for a device that is not there
            raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}).") from error
    return Run(path, settings, model.eval(), tokenizer, histogram, read_numbers(path))


def _load_model(path: Path) -> TextAutoencoder:
    load: Any = TextAutoencoder.from_pretrained
    try:
        model, found = load(path, output_loading_info=True, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file is an error of many kinds
        raise damaged(path, error, fix=RESTORE) from error
    if found["missing_keys"]:  # which would be drawn at random
        raise damaged(path, f"no weights for {', '.join(sorted(found['missing_keys'])[:3])}", fix=RESTORE)
    return model


def model_card(name: str, model: TextAutoencoder, metrics: RunMetrics) -> str:
    """Write the model card of a run, in Markdown: how to load the model, and what was measured."""
    kind = model.config.bottleneck
    rows = [("at the end of training", "validation", metrics.validation)]
    for label, found in metrics.evaluations.items():
        parts = [*(found.reconstruction or {}).items(), ("generation", found.generation), ("latent", found.latent)]
        rows += [(label, part, as_builtins(values)) for part, values in parts if values is not None]
    lines = [
        f"| {label} | {part} | {measure} | {value:.4g} |"
        for label, part, values in rows
        for measure, value in values.items()
        if isinstance(value, (int, float))
    ]
    head = {"library_name": "open_nvib", "tags": ["open_nvib", "autoencoder", kind], "metrics": ["bleu", "perplexity"]}
    return CARD_TEMPLATE.format(
        head=yaml.safe_dump(head, sort_keys=False),
        name=name,
        kind=kind,
        parameters=model.num_parameters(),
        longest=model.config.max_positions - 1,
        metrics="\n".join(["| measured | part | measure | value |", "|---|---|---|---|", *lines]) if lines else "None.",
    )
