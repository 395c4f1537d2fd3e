"""Real text to hold a model's texts against, and its scorer, which is kept beside the data."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from open_nvib.evaluation import scorers
from open_nvib.store.files import ResultCache, damage, digest, file_lock, obstacle_to_writing, seal
from open_nvib.store.task_settings import EvaluateConfig
from open_nvib.text.data import Prepared
from open_nvib.text.data.prepared import SCORERS
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import Texts, detokenize
from open_nvib.text.opening import open_saved

T = TypeVar("T")


@dataclass(frozen=True)
class References:
    """Real text and its scorer: what all runs of one size on one partition of the data share."""

    prepared: Prepared
    partition: str  # that the models are trained on
    config: TextAutoencoderConfig  # of a model that is evaluated: the scorers have its size and vocabulary
    settings: EvaluateConfig  # the kind of the scorers, their training steps, the seed, and the split to measure on
    own: Path  # directory for scorers and results if the data's directory cannot be written
    say: Callable[[str], None]  # is told what is trained
    device: torch.device | str = "cpu"

    @property
    def inputs(self) -> dict[str, Any]:
        """All that the scorer of real text depends on."""
        how = {"kind": self.settings.scorer, "steps": self.settings.scorer_steps, "seed": self.settings.seed}
        sizes = {name: getattr(self.config, name) for name in scorers.TAKEN_OVER[self.settings.scorer]}
        return {"recipe": self.prepared.recipe, "partition": self.partition, **how, **sizes}

    @cached_property
    def judged_inputs(self) -> dict[str, Any]:
        """All that the scores of texts depend on."""
        return self.inputs | ({} if self.settings.judge is None else scorers.identify_judge(self.settings.judge))

    @property
    def shared(self) -> Path:
        return self.prepared.path / SCORERS

    @cached_property
    def obstacle(self) -> str | None:
        """Reason why nothing can be written beside the data."""
        return obstacle_to_writing(self.shared)

    @property
    def directory(self) -> Path:
        return self.shared if self.obstacle is None else self.own

    @property
    def cache(self) -> ResultCache:
        """Results that depend on real text only."""
        return ResultCache(self.directory, self.say, others=(self.shared, self.own))

    @cached_property
    def training(self) -> list[list[int]]:
        return list(self.prepared.split(self.partition, "train")["input_ids"])

    @cached_property
    def held_out(self) -> list[list[int]]:
        """Sentences to measure on, without those that are too long for the models."""
        texts = list(self.prepared.split(self.partition, self.settings.split)["input_ids"])
        return [text for text in texts if len(text) < self.config.max_positions]

    @cached_property
    def scorer(self) -> scorers.Scorer:
        """Scorer trained on the training text; from disk if one was trained before."""
        name = f"{self.settings.scorer}-{digest(self.inputs)}"
        for path in (self.shared / name, self.own / name):
            if damage(path) is None:
                return self._load(path)
        path = self.directory / name
        with file_lock(path.with_name(f"{name}.lock")):
            if damage(path) is not None:  # another process may have trained it in the meantime
                self._train_and_keep(path)
        return self._load(path)

    def _train_and_keep(self, path: Path) -> None:
        """Train the scorer of real text, in place of a damaged one if there is one."""
        why = "" if self.obstacle is None else f", as {self.shared} cannot be written ({self.obstacle})"
        self.say(f"scorer of real text, kept in {path}{why}")
        scorer = self.train(self.training)
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        scorer.model.save_pretrained(partial)
        seal(partial)
        shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)

    def _load(self, path: Path) -> scorers.Scorer:
        scorer = scorers.KINDS[self.settings.scorer](self.config)
        scorer.model = open_saved(type(scorer.model), path)
        return scorer.to(self.device).eval()

    def train(self, texts: Texts) -> scorers.Scorer:
        """Train a scorer of other texts as that of real text is trained."""
        settings = self.settings
        options: Any = {"steps": settings.scorer_steps, "seed": settings.seed, "say": self.say, "device": self.device}
        return scorers.train_scorer(settings.scorer, self.config, texts, **options)

    @cached_property
    def judge(self) -> scorers.Judge | None:
        """Language model of the settings that was not trained here; None if they name none."""
        return None if self.settings.judge is None else scorers.open_judge(self.settings.judge, self.device)

    def word_perplexity(self, texts: Texts) -> float | None:
        """Perplexity of texts by word under the judge; None without one, or if no text has a word."""
        return None if self.judge is None else self.judge.word_perplexity(detokenize(self.prepared.tokenizer, texts))

    def perplexity(self, texts: Texts) -> float:
        """Perplexity of texts under the scorer of real text."""
        return scorers.perplexity(*scorers.score(self.scorer, texts))

    def reverse_perplexity(self, texts: Texts) -> float:
        """Perplexity of held-out text under a scorer of `texts`."""
        return scorers.perplexity(*scorers.score(self.train(texts), self.held_out))


def choose(texts: list[T], count: int, seed: int) -> list[T]:
    """Choose some of the texts, in an order that the seed determines; all if `count` is 0 or more than there are.

    Of several lists of one length, the same places are chosen.
    """
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[index] for index in order[: count or None]]
