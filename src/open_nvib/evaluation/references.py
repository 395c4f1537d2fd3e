"""Scorers of real text, kept beside the data, and what a perfect generator would reach."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from transformers import GPT2LMHeadModel

from open_nvib.evaluation.diversity import diversity
from open_nvib.evaluation.scorers import Kind, Scorer, Texts, make_scorer, score, train_scorer
from open_nvib.store.files import Steps, as_builtins, digest, obstacle_to_writing
from open_nvib.store.runs import damage, seal
from open_nvib.text.data import Prepared
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig

DIRECTORY = "scorers"
SIZES = (
    "vocab_size",
    "d_model",
    "ffn_size",
    "encoder_layers",
    "decoder_layers",
    "heads",
    "max_positions",
    "positions",
    "tie_word_embeddings",
)


@dataclass(frozen=True)
class References:
    """Everything about real text that runs of one size, on one partition of the data, share.

    Args:
        prepared: the data.
        partition: the part of it that the models are trained on.
        config: of a model that is evaluated: the scorers have its size and vocabulary.
        kind: of the scorers.
        steps: training steps of each scorer.
        seed: of the scorers and of the choice of sentences.
        own: where to keep scorers if nothing may be written beside the data.
    """

    prepared: Prepared
    partition: str
    config: TextAutoencoderConfig
    kind: Kind
    steps: int
    seed: int
    own: Path
    say: Callable[[str], None]
    device: torch.device | str = "cpu"

    @property
    def inputs(self) -> dict[str, Any]:
        """What a scorer of real text depends on."""
        sizes = {name: getattr(self.config, name) for name in SIZES}
        return {
            "recipe": as_builtins(self.prepared.recipe),
            "partition": self.partition,
            "kind": self.kind,
            "steps": self.steps,
            "seed": self.seed,
            **sizes,
        }

    @property
    def shared(self) -> Path:
        return self.prepared.path / DIRECTORY

    @cached_property
    def obstacle(self) -> str | None:
        """Why nothing can be written beside the data."""
        return obstacle_to_writing(self.shared)

    @property
    def directory(self) -> Path:
        return self.shared if self.obstacle is None else self.own

    @cached_property
    def training(self) -> list[list[int]]:
        return list(self.prepared.split(self.partition, "train")["input_ids"])

    def held_out(self, split: str) -> list[list[int]]:
        """Sentences to measure on, as long as the models take them."""
        texts = list(self.prepared.split(self.partition, split)["input_ids"])
        return [text for text in texts if len(text) < self.config.max_positions]

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer trained on the training text; from disk if one was trained before."""
        name = f"{self.kind}-{digest(self.inputs)}"
        for path in (self.shared / name, self.own / name):
            if damage(path) is None:
                return self._load(path)
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if damage(path) is not None:
                self._keep(path)
        return self._load(path)

    def _keep(self, path: Path) -> None:
        """Train the scorer of real text, in place of a damaged one if there is one."""
        why = "" if self.obstacle is None else f", as {self.shared} cannot be written ({self.obstacle})"
        self.say(f"scorer of real text, kept in {path}{why}")
        scorer = self.train(self.training)
        partial = path.with_name(f"{path.name}.partial")
        _remove(partial)
        scorer.model.save_pretrained(partial)
        seal(partial)
        _remove(path)
        partial.replace(path)

    def _load(self, path: Path) -> Scorer:
        scorer = make_scorer(self.kind, self.config)
        kind = GPT2LMHeadModel if self.kind == "causal" else TextAutoencoder
        scorer.model = kind.from_pretrained(path)  # pyright: ignore[reportAttributeAccessIssue]
        return scorer.to(self.device).eval()

    def train(self, texts: Texts) -> Scorer:
        """A scorer of other texts, trained as the one of real text is."""
        return train_scorer(
            self.kind, self.config, texts, steps=self.steps, seed=self.seed, say=self.say, device=self.device
        )

    def perplexity(self, texts: Texts) -> float:
        """Of texts, under the scorer of real text."""
        return score(self.scorer, self.config, texts).perplexity

    def of_real_text(self, split: str, samples: int) -> dict[str, Any]:
        """What real sentences get where the samples of a model are measured.

        `real_forward_perplexity` is held-out text under the scorer of the training text. `real_reverse_perplexity` is
        held-out text under a scorer of as many training sentences as there are samples; of all, if there are fewer.
        """
        steps = Steps(self.directory, self.say, others=(self.shared, self.own))

        def compute() -> dict[str, Any]:
            held_out, chosen = self.held_out(split), self.choose(samples)
            measured = diversity(chosen)
            return {
                "real_forward_perplexity": self.perplexity(held_out),
                "real_reverse_perplexity": score(self.train(chosen), self.config, held_out).perplexity,
                "real_distinct": measured.distinct,
                "real_self_bleu": measured.self_bleu,
                "real_lengths": np.bincount([len(text) for text in self.training]).tolist(),
            }

        return steps.run("real-text", {**self.inputs, "split": split, "samples": samples}, compute)

    def choose(self, count: int) -> list[list[int]]:
        """Training sentences, chosen by the seed."""
        return choose(self.training, count, self.seed)


def _remove(path: Path) -> None:
    """Whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def choose(texts: list[list[int]], count: int, seed: int) -> list[list[int]]:
    """Some of the texts, in an order that the seed determines; all if 0 or more than there are."""
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[index] for index in order[: count or None]]
