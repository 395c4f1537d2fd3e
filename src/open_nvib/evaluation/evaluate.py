"""`evaluate`: a run directory to its metrics, step by step."""

import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import open_nvib
from open_nvib.evaluation.generation import describe, draw, perplexities
from open_nvib.evaluation.interpolation import measure_interpolation
from open_nvib.evaluation.latent import diagnose
from open_nvib.evaluation.reconstruction import reconstruction
from open_nvib.evaluation.references import References, choose
from open_nvib.store.evaluations import merge
from open_nvib.store.files import InputError, Steps, as_builtins, check_writable, digest_of_file, finite, from_builtins
from open_nvib.store.runs import EVALUATIONS, MODEL, WEIGHTS, change_metrics, read_lengths, read_metrics
from open_nvib.store.settings import EvaluateConfig, Part, Recipe
from open_nvib.text.data import Prepared, load_prepared
from open_nvib.text.model.bottlenecks import PlainBottleneck
from open_nvib.text.using.run import Run, load_run

DIRECTORY, SCORERS = "evaluation", "scorers"


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def evaluate(
    run: str | Path,
    settings: EvaluateConfig | None = None,
    *,
    data: str | Path | None = None,
    device: str | None = None,
    say: Callable[[str], None] = to_stderr,
) -> dict[str, Any]:
    """Measure a run, and write what was found to its `metrics.json` under `evaluations`.

    What was measured before, with the same settings on the same model, is not measured again; parts that are not
    measured now stay in the record, see `merge`, which is what is returned.

    Args:
        run: the run directory.
        data: where its prepared data is; where it was at training if not given.
        device: such as "cuda"; the CPU if not given.
        say: is told what is going on.
    """
    settings = EvaluateConfig() if settings is None else settings
    loaded = load_run(run, device=device)
    read_metrics(loaded.path)  # which is written last, and to be found damaged first
    for directory in (loaded.path, loaded.path / DIRECTORY):
        check_writable(directory, fix="An evaluation keeps its results there: copy the run to where it can be written.")
    evaluation = Evaluation(loaded, settings, _data_of(loaded, data), say)
    parts = evaluation.possible()
    evaluation.check_partitions()
    fresh = {**evaluation.circumstances(), **{part: getattr(evaluation, part)() for part in parts}}
    record: dict[str, Any] = {}

    def add(metrics: dict[str, Any]) -> None:
        records = metrics.setdefault(EVALUATIONS, {})
        name = f"{settings.split}-{settings.scorer}"
        record.update(merge(records.get(name, {}), fresh, lambda text: say(f"{loaded.path}: {text}")))
        records[name] = record

    change_metrics(loaded.path, add)
    return finite(record)


def _data_of(run: Run, data: str | Path | None) -> Prepared:
    """The data that the run was trained on, found to be the same by its recipe."""
    try:
        prepared = load_prepared(run.config["data"] if data is None else data)
    except InputError as error:
        if data is not None:
            raise
        raise InputError(f"{error} If the data of {run.path} has moved, give its place: --data.") from error
    recipe = read_lengths(run.path).get("recipe")
    if recipe is not None and prepared.recipe.differences(from_builtins(recipe, Recipe)):
        raise InputError(
            f"{prepared.path}: prepared with another recipe than the data that {run.path} was trained on. Give that "
            f"data as --data, or prepare it again."
        )
    return prepared


class Evaluation:
    """The parts of an evaluation; each is a step or several, and is read from disk where it was done before."""

    def __init__(self, run: Run, settings: EvaluateConfig, prepared: Prepared, say: Callable[[str], None]) -> None:
        self.run, self.settings, self.prepared, self.say = run, settings, prepared, say
        self.partition: str = run.config["partition"]
        self.steps = Steps(run.path / DIRECTORY, lambda name: say(f"{run.path}: {name}"))
        config: Any = run.model.config
        self.references = References(
            prepared,
            self.partition,
            config,
            settings.scorer,
            settings.scorer_steps,
            settings.seed,
            run.path / DIRECTORY / SCORERS,
            say,
            run.model.device,
        )

    @cached_property
    def model(self) -> str:
        """A name for the weights."""
        return digest_of_file(self.run.path / MODEL / WEIGHTS)

    @property
    def model_inputs(self) -> dict[str, Any]:
        """What every step depends on: the weights and the code that reads them."""
        return {"model": self.model, "version": open_nvib.__version__}

    @cached_property
    def held_out(self) -> list[list[int]]:
        """Sentences of the partition that the model was trained on."""
        return self.references.held_out(self.settings.split)

    def possible(self) -> list[Part]:
        """The parts of `measure` that there are; an InputError if there is none."""
        reasons = {part: reason for part in self.settings.measure if (reason := self._obstacle(part)) is not None}
        for part, reason in reasons.items():
            if len(reasons) == len(set(self.settings.measure)):
                raise InputError(f"{self.run.path}: nothing to measure, {part} is not possible: {reason}")
            self.say(f"{self.run.path}: {part} is left out: {reason}")
        return [part for part in self.settings.measure if part not in reasons]

    def _obstacle(self, part: Part) -> str | None:
        """Why a part cannot be measured; None if it can."""
        if part in ("generation", "latent") and isinstance(self.run.model.encoder.bottleneck, PlainBottleneck):
            return "a plain Transformer has no prior. Measure reconstruction or interpolation."
        if part == "interpolation" and len(self.held_out) < 2:
            return f"it goes from one sentence to another, and {self._where(self.partition)} has {len(self.held_out)}."
        return None

    def _where(self, partition: str) -> str:
        return f"{self.prepared.path / partition / self.settings.split}"

    def check_partitions(self) -> None:
        """An InputError where there are no sentences to measure on; a word on those that are too long."""
        settings, longest = self.settings, self.run.model.config.max_positions - 1
        unknown = [name for name in settings.generalise if name not in self.prepared.partitions]
        if unknown and settings.generalise != EvaluateConfig().generalise:
            raise InputError(
                f"{self.prepared.path}: no partition {unknown[0]!r} to generalise to, there is "
                f"{', '.join(self.prepared.partitions)}."
            )
        every = len(self.prepared.split(self.partition, settings.split))
        where = self._where(self.partition)
        if not self.held_out:
            raise InputError(
                f"{where}: has no sentence of 1 to {longest} tokens, which is what this model takes. Give another "
                f"--split, or prepare more data."
            )
        if len(self.held_out) < every:
            left = every - len(self.held_out)
            self.say(f"{where}: {left} of {every} sentences have more than the {longest} tokens that the model takes")

    @cached_property
    def others(self) -> dict[str, list[list[int]]]:
        """The sentences of partitions that the model never saw, where it takes all of them."""
        longest = self.run.model.config.max_positions - 1
        found = {}
        for name in self.settings.generalise:
            if name == self.partition or name not in self.prepared.partitions:
                continue
            texts = list(self.prepared.split(name, self.settings.split)["input_ids"])
            most = max(map(len, texts))
            if most <= longest:
                found[name] = texts
            else:
                self.say(f"{self._where(name)}: left out, it has sentences of {most} tokens, the model takes {longest}")
        return found

    def reconstruction(self) -> dict[str, Any]:
        """Of the partition that the model was trained on, and of those that it never saw."""
        settings = self.settings
        results = {}
        for partition, texts in {self.partition: self.held_out, **self.others}.items():
            inputs = {
                **self.model_inputs,
                "recipe": as_builtins(self.prepared.recipe),
                "partition": partition,
                "split": settings.split,
                "sentences": settings.sentences,
                "seed": settings.seed,
            }

            def compute(texts: list[list[int]] = texts) -> dict[str, Any]:
                return reconstruction(self.run, choose(texts, settings.sentences, settings.seed))

            results[partition] = self.steps.run(f"reconstruction-{partition}", inputs, compute)
        return results

    def generation(self) -> dict[str, Any]:
        """Of samples from the prior."""
        settings, references = self.settings, self.references
        inputs = {**self.model_inputs, **references.inputs, "samples": settings.samples, "split": settings.split}

        def compute() -> dict[str, Any]:
            samples = draw(self.run, settings.samples, seed=settings.seed, steps=self.steps, inputs=self.model_inputs)
            found = perplexities(samples, references, settings.split)
            return {
                "forward_perplexity": found.forward,
                "reverse_perplexity": found.reverse,
                **describe(samples, self.run, references.training),
            }

        measured = self.steps.run("generation", inputs, compute)
        return measured | references.of_real_text(settings.split, settings.samples)

    def latent(self) -> dict[str, Any]:
        """On held-out sentences."""
        settings = self.settings
        inputs = {
            **self.model_inputs,
            "recipe": as_builtins(self.prepared.recipe),
            "split": settings.split,
            "sentences": settings.latent_sentences,
            "samples": settings.importance_samples,
            "seed": settings.seed,
        }

        def compute() -> dict[str, Any]:
            texts = choose(self.held_out, settings.latent_sentences, settings.seed)
            found = diagnose(self.run.model, texts, importance_samples=settings.importance_samples, seed=settings.seed)
            return asdict(found)

        return self.steps.run("latent", inputs, compute)

    def interpolation(self) -> dict[str, Any]:
        """Between pairs of held-out sentences."""
        settings = self.settings
        inputs = {
            **self.model_inputs,
            **self.references.inputs,
            "split": settings.split,
            "pairs": settings.interpolations,
            "points": settings.interpolation_steps,
            "texts": "token ids",
        }

        def compute() -> dict[str, Any]:
            texts = choose(self.held_out, 2 * settings.interpolations, settings.seed)
            pairs = list(zip(texts[::2], texts[1::2], strict=False))
            found = measure_interpolation(
                self.run, pairs, steps=settings.interpolation_steps, perplexity=self.references.perplexity
            )
            return asdict(found)

        return self.steps.run("interpolation", inputs, compute)

    def circumstances(self) -> dict[str, Any]:
        """What the numbers are of."""
        packages = ("torch", "transformers", "sacrebleu")
        return {
            "settings": asdict(self.settings),
            "model": self.model,
            "config": self.run.config,
            "recipe": as_builtins(self.prepared.recipe),
            "seed": self.run.config["seed"],
            "versions": {
                "open_nvib": open_nvib.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }
