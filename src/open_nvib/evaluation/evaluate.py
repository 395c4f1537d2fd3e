"""`evaluate`: measure a trained run, step by step."""

import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import open_nvib
from open_nvib.evaluation.generation import draw_samples, measure_generation, measure_real_text
from open_nvib.evaluation.interpolation import measure_interpolation
from open_nvib.evaluation.latent import diagnose
from open_nvib.evaluation.reconstruction import measure_number, measure_reconstruction
from open_nvib.evaluation.references import References, choose
from open_nvib.store.evaluations import (
    Evaluation,
    Generation,
    Interpolation,
    LatentDiagnosis,
    NumberOfVectors,
    Reconstruction,
    merge,
)
from open_nvib.store.files import InputError, ResultCache, digest_of_file, obstacle_to_writing
from open_nvib.store.runs import MODEL, PRIOR, WEIGHTS, RunMetrics, change_metrics, read_lengths, read_metrics
from open_nvib.store.task_settings import PARTS, EvaluateConfig, Part
from open_nvib.text.data import Prepared, load_prepared
from open_nvib.text.using.run import MODEL_CONFIG, Prior, Run, load_run

T = TypeVar("T")

DIRECTORY, SCORERS = "evaluation", "scorers"
SENTENCES_OF_OTHERS = 200
"""Sentences of partitions that the model was not trained on for which numbers of vectors are tried: it takes long."""
PACKAGES = ("torch", "transformers", "sacrebleu")


def print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def evaluate(
    run: str | Path,
    settings: EvaluateConfig | None = None,
    *,
    data: str | Path | None = None,
    device: str | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> Evaluation:
    """Measure a run, and write the results to its `metrics.json` under `evaluations`.

    What was measured before, with the same settings on the same model, is not measured again. The result has the parts
    of an earlier evaluation that are not measured now, where they fit: see `merge`.

    Args:
        run: the run directory.
        settings: what to measure, and on how much.
        data: where its prepared data is; where it was at training if not given.
        device: such as "cuda"; the CPU if not given.
        say: takes a line of progress.
    """
    settings = EvaluateConfig() if settings is None else settings
    loaded = load_run(run, device=device)
    read_metrics(loaded.path)  # written last: a damaged file is to be found before the work
    for directory in (loaded.path, loaded.path / DIRECTORY):
        if (why := obstacle_to_writing(directory)) is not None:
            raise InputError(
                f"{directory}: cannot be written ({why}). An evaluation keeps its results there: copy the run to where "
                f"it can be written."
            )
    fresh = _Evaluator(loaded, settings, data_of(loaded, data), say).measure()

    def add(metrics: RunMetrics) -> RunMetrics:
        merged = merge(metrics.evaluations.get(fresh.name), fresh, lambda text: say(f"{loaded.path}: {text}"))
        return replace(metrics, evaluations={**metrics.evaluations, fresh.name: merged})

    return change_metrics(loaded.path, add).evaluations[fresh.name]


def data_of(run: Run, data: str | Path | None) -> Prepared:
    """Load the data that the run was trained on; an InputError if its recipe is another."""
    try:
        prepared = load_prepared(run.config.data if data is None else data)
    except InputError as error:
        if data is not None:
            raise
        raise InputError(f"{error} If the data of {run.path} has moved, give its place: --data.") from error
    recipe = read_lengths(run.path).recipe
    if recipe is not None and prepared.recipe.differences(recipe):
        raise InputError(
            f"{prepared.path}: prepared with another recipe than the data that {run.path} was trained on. Give that "
            f"data as --data, or prepare it again."
        )
    return prepared


class _Evaluator:
    """Measures the parts of an evaluation, in one step or several each; a step done before is read from disk."""

    def __init__(self, run: Run, settings: EvaluateConfig, prepared: Prepared, say: Callable[[str], None]) -> None:
        self.run, self.settings, self.prepared, self.say = run, settings, prepared, say
        self.partition: str = run.config.partition
        self.cache = ResultCache(run.path / DIRECTORY, lambda name: say(f"{run.path}: {name}"))
        config: Any = run.model.config
        own = run.path / DIRECTORY / SCORERS
        self.references = References(prepared, self.partition, config, settings, own, say, run.model.device)
        self.held_out = self.references.held_out

    def measure(self) -> Evaluation:
        parts = self.possible_parts()
        _ = self.references.judge  # one that cannot be opened is to be found before the work
        _ = "generation" in parts and self.run.has_learned_prior and self.run.learned_prior  # likewise
        self.check_partitions()
        return Evaluation(
            settings=self.settings,
            config=self.run.config,
            recipe=self.prepared.recipe,
            model=self.model,
            seed=self.run.config.seed,
            versions={
                "open_nvib": open_nvib.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in PACKAGES},
            },
            **{part: getattr(self, part)() for part in PARTS if part in parts},
        )

    @cached_property
    def model(self) -> str:
        return digest_of_file(self.run.path / MODEL / WEIGHTS)

    @property
    def model_inputs(self) -> dict[str, Any]:
        """Inputs of every step: the weights, how they are used, and the version of the code that reads them."""
        config = digest_of_file(self.run.path / MODEL / MODEL_CONFIG)
        return {"model": self.model, "config": config, "version": open_nvib.__version__}

    @property
    def data_inputs(self) -> dict[str, Any]:
        """Inputs of every step that reads the data."""
        return {"recipe": self.prepared.recipe, "split": self.settings.split}

    def possible_parts(self) -> list[Part]:
        """List the parts of `measure` that can be measured; an InputError if none can."""
        reasons = {part: reason for part in self.settings.measure if (reason := self._obstacle(part)) is not None}
        for part, reason in reasons.items():
            if len(reasons) == len(set(self.settings.measure)):
                raise InputError(f"{self.run.path}: nothing to measure, {part} is not possible: {reason}")
            if part != "number":  # which only some models have
                self.say(f"{self.run.path}: {part} is left out: {reason}")
        return [part for part in self.settings.measure if part not in reasons]

    def _obstacle(self, part: Part) -> str | None:
        """Say why a part cannot be measured; None if it can."""
        if part in ("generation", "latent") and not self.run.model.encoder.bottleneck.has_prior:
            return "a plain Transformer has no prior. Measure reconstruction or interpolation."
        if part == "number" and not self.run.model.encoder.bottleneck.any_number:
            return "the model has a fixed number of vectors. Measure reconstruction."
        if part == "interpolation" and len(self.held_out) < 2:
            return f"it takes two sentences, and {self._where(self.partition)} has {len(self.held_out)}."
        return None

    def _where(self, partition: str) -> Path:
        return self.prepared.path / partition / self.settings.split

    def check_partitions(self) -> None:
        """Raise an InputError where there are no sentences to measure on; say how many are too long."""
        settings, where = self.settings, self._where(self.partition)
        # A partition without sentences was left out of the data; `others` leaves it out, too.
        known = {*self.prepared.partitions, *self.prepared.recipe.settings["partitions"]}
        unknown = [name for name in settings.generalise if name not in known]
        if unknown and settings.generalise != EvaluateConfig().generalise:
            raise InputError(
                f"{self.prepared.path}: no partition {unknown[0]!r} to generalise to; available: "
                f"{', '.join(self.prepared.partitions)}."
            )
        every, longest = len(self.prepared.split(self.partition, settings.split)), self.run.longest
        if not self.held_out:
            raise InputError(
                f"{where}: no sentence has 1 to {longest} tokens, as this model expects. Give another --split, or "
                f"prepare more data."
            )
        if left := every - len(self.held_out):
            self.say(f"{where}: left out {left} of {every} sentences, longer than the model's {longest} tokens")

    @cached_property
    def others(self) -> dict[str, list[list[int]]]:
        """Sentences of the partitions that the model was not trained on and that are not too long for it."""
        found = {}
        for name in self.settings.generalise:
            if name == self.partition or name not in self.prepared.partitions:
                continue
            texts = list(self.prepared.split(name, self.settings.split)["input_ids"])
            most, longest = max(map(len, texts)), self.run.longest
            if most <= longest:
                found[name] = texts
            else:
                where = self._where(name)
                self.say(f"{where}: left out, has sentences of {most} tokens, longer than the model's {longest}")
        return found

    def measure_partitions(
        self,
        name: str,
        kind: type[T],
        measure: Callable[[str, list[list[int]]], T],
        *,
        of_others: int = 0,
        **inputs: str,
    ) -> dict[str, T]:
        """Measure each partition in a step of its own: `sentences` texts, and at most `of_others` of the others."""
        settings, results = self.settings, {}
        for partition, texts in {self.partition: self.held_out, **self.others}.items():
            count = settings.sentences
            if of_others and partition != self.partition:
                count = min(count or of_others, of_others)
            inputs_of_step = {"partition": partition, "sentences": count, "seed": settings.seed, **inputs}
            compute = partial(measure, partition, choose(texts, count, settings.seed))
            results[partition] = self.step(f"{name}-{partition}", kind, compute, {**self.data_inputs, **inputs_of_step})
        return results

    def step(self, name: str, kind: type[T], compute: Callable[[], T], inputs: dict[str, Any]) -> T:
        """Compute a result from the model and the `inputs`, or read it from disk if that was done before."""
        return self.cache.run(name, {**self.model_inputs, **inputs}, compute, kind)

    def originals(self, partition: str) -> list[str] | None:
        """Texts of `reconstruction` before they were tokenised; None of data without them."""
        rows = self.prepared.split(partition, self.settings.split)
        if "text" not in rows.column_names:
            return None
        pairs = zip(rows["text"], rows["input_ids"], strict=True)
        texts = [text for text, ids in pairs if len(ids) <= self.run.longest]
        return choose(texts, self.settings.sentences, self.settings.seed)

    def reconstruction(self) -> dict[str, Reconstruction]:
        """Measure reconstruction of the partition that the model was trained on, and of others."""
        return self.measure_partitions(
            "reconstruction",
            Reconstruction,
            lambda partition, texts: measure_reconstruction(self.run, texts, self.originals(partition)),
            references="tokens and text",
            readings="mean and points",
        )

    def number(self) -> dict[str, NumberOfVectors]:
        """Measure several numbers of vectors, on the texts of `reconstruction`; on fewer of other partitions."""
        return self.measure_partitions(
            "number", NumberOfVectors, lambda _, texts: measure_number(self.run, texts), of_others=SENTENCES_OF_OTHERS
        )

    def generation(self) -> Generation:
        """Measure samples from the prior, of a learned one as well if there is one, and real text beside them."""
        real = measure_real_text(self.references)
        learned = replace(self._samples("learned"), real=real) if self.run.has_learned_prior else None
        return replace(self._samples("unit"), real=real, learned=learned)

    def _samples(self, prior: Prior) -> Generation:
        count, seed = self.settings.samples, self.settings.seed
        inputs = self.model_inputs | ({"prior": digest_of_file(self.run.path / PRIOR)} if prior == "learned" else {})

        def compute() -> Generation:
            samples = draw_samples(self.run, count, seed=seed, cache=self.cache, inputs=inputs, prior=prior)
            return measure_generation(self.run, samples, self.references)

        how = {**self.references.judged_inputs, "samples": count, "split": self.settings.split}
        return self.step("generation", Generation, compute, {**inputs, **how})

    def latent(self) -> LatentDiagnosis:
        count, samples, seed = self.settings.latent_sentences, self.settings.importance_samples, self.settings.seed

        def compute() -> LatentDiagnosis:
            texts = choose(self.held_out, count, seed)
            return diagnose(self.run.model, texts, importance_samples=samples, seed=seed)

        inputs = {**self.data_inputs, "sentences": count, "samples": samples, "seed": seed}
        found = self.step("latent", LatentDiagnosis, compute, inputs)
        if found.mean_is_worse:
            self.say(
                f"{self.run.path}: warning: decoding from the mean of the latent costs {found.mean_nll:.2f} nats a "
                f"token, from a sample {found.sample_nll:.2f}, from the points {found.points_nll:.2f}. docs/theory.md "
                f"says when they part; model.reading is the setting."
            )
        return found

    def interpolation(self) -> Interpolation:
        count, points, references = self.settings.interpolations, self.settings.interpolation_steps, self.references

        def compute() -> Interpolation:
            texts = choose(self.held_out, 2 * count, self.settings.seed)
            pairs = list(zip(texts[::2], texts[1::2], strict=False))
            judge = None if references.judge is None else references.word_perplexity
            scorers: Any = {"perplexity": references.perplexity, "word_perplexity": judge}
            return measure_interpolation(self.run, pairs, steps=points, **scorers)

        how = {"split": self.settings.split, "pairs": count, "points": points, "texts": "token ids"}
        return self.step("interpolation", Interpolation, compute, {**references.judged_inputs, **how})
