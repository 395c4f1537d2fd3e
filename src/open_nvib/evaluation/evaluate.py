"""`evaluate`: a run directory to its metrics, step by step."""

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import open_nvib
from open_nvib.errors import InputError
from open_nvib.evaluation.generation import describe, draw, perplexities
from open_nvib.evaluation.interpolation import measure_interpolation
from open_nvib.evaluation.latent import diagnose
from open_nvib.evaluation.reconstruction import reconstruction
from open_nvib.evaluation.references import References, choose
from open_nvib.evaluation.settings import EvaluateConfig
from open_nvib.evaluation.steps import Steps, digest_of_file, write_json
from open_nvib.text.bottlenecks import PlainBottleneck
from open_nvib.text.data import Prepared, load_prepared
from open_nvib.text.run import LENGTHS, METRICS, MODEL, Run, load_run

DIRECTORY = "evaluation"
EVALUATIONS = "evaluations"


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

    What was measured before, with the same settings on the same model, is not measured again.

    Args:
        run: the run directory.
        data: where its prepared data is; where it was at training if not given.
        device: such as "cuda"; the CPU if not given.
        say: is told what is going on.
    """
    settings = EvaluateConfig() if settings is None else settings
    loaded = load_run(run, device=device)
    evaluation = Evaluation(loaded, settings, _data_of(loaded, data), say)
    parts = {name: value for name in settings.measure if (value := getattr(evaluation, name)()) is not None}
    record = {**evaluation.circumstances(), **parts}
    path = loaded.path / METRICS
    metrics = json.loads(path.read_text()) if path.exists() else {}
    metrics.setdefault(EVALUATIONS, {})[f"{settings.split}-{settings.scorer}"] = record
    write_json(path, metrics)
    return record


def _data_of(run: Run, data: str | Path | None) -> Prepared:
    """The data that the run was trained on, found to be the same by its recipe."""
    prepared = load_prepared(run.config["data"] if data is None else data)
    recipe = json.loads((run.path / LENGTHS).read_text()).get("recipe")
    if recipe is not None and prepared.recipe != recipe:
        raise InputError(
            f"{prepared.path}: prepared with another recipe than the data that {run.path} was trained on. Give that data "
            f"as --data, or prepare it again."
        )
    return prepared


class Evaluation:
    """The parts of an evaluation; each is a step or several, and is read from disk where it was done before."""

    def __init__(self, run: Run, settings: EvaluateConfig, prepared: Prepared, say: Callable[[str], None]) -> None:
        self.run, self.settings, self.prepared, self.say = run, settings, prepared, say
        self.partition: str = run.config["partition"]
        self.steps = Steps(run.path / DIRECTORY, lambda name: say(f"{run.path}: {name}"))
        self.references = References(
            prepared,
            self.partition,
            run.model.config,
            settings.scorer,
            settings.scorer_steps,
            settings.seed,
            say,
            run.model.device,
        )

    @cached_property
    def model_inputs(self) -> dict[str, Any]:
        """What every step depends on: the weights and the code that reads them."""
        return {"model": digest_of_file(self.run.path / MODEL / "model.safetensors"), "version": open_nvib.__version__}

    def held_out(self, partition: str) -> list[list[int]]:
        return list(self.prepared.split(partition, self.settings.split)["input_ids"])

    @property
    def has_prior(self) -> bool:
        return not isinstance(self.run.model.encoder.bottleneck, PlainBottleneck)

    def reconstruction(self) -> dict[str, Any]:
        """Of the partition that the model was trained on, and of those that it never saw."""
        settings = self.settings
        others = [name for name in settings.generalise if name in self.prepared.partitions and name != self.partition]
        results = {}
        for partition in (self.partition, *others):
            inputs = {
                **self.model_inputs,
                "recipe": self.prepared.recipe,
                "partition": partition,
                "split": settings.split,
                "sentences": settings.sentences,
                "seed": settings.seed,
            }

            def compute(partition: str = partition) -> dict[str, Any]:
                return reconstruction(self.run, choose(self.held_out(partition), settings.sentences, settings.seed))

            results[partition] = self.steps.run(f"reconstruction-{partition}", inputs, compute)
        return results

    def generation(self) -> dict[str, Any] | None:
        """None for a model without a prior."""
        if not self.has_prior:
            return None
        settings, references = self.settings, self.references
        inputs = {**self.model_inputs, **references.inputs, "samples": settings.samples, "split": settings.split}

        def compute() -> dict[str, Any]:
            samples = draw(
                self.run, settings.samples, seed=settings.seed, steps=self.steps, inputs=self.model_inputs
            )
            found = perplexities(samples, references, settings.split)
            return {
                "forward_perplexity": found.forward,
                "reverse_perplexity": found.reverse,
                **describe(samples, self.run, references.training),
            }

        measured = self.steps.run("generation", inputs, compute)
        return measured | references.of_real_text(settings.split, settings.samples)

    def latent(self) -> dict[str, Any] | None:
        """None for a model without a prior."""
        if not self.has_prior:
            return None
        settings = self.settings
        inputs = {
            **self.model_inputs,
            "recipe": self.prepared.recipe,
            "split": settings.split,
            "sentences": settings.latent_sentences,
            "samples": settings.importance_samples,
            "seed": settings.seed,
        }

        def compute() -> dict[str, Any]:
            texts = choose(self.held_out(self.partition), settings.latent_sentences, settings.seed)
            found = diagnose(
                self.run.model, texts, importance_samples=settings.importance_samples, seed=settings.seed
            )
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
        }

        def compute() -> dict[str, Any]:
            texts = choose(self.held_out(self.partition), 2 * settings.interpolations, settings.seed)
            ends = self.run.tokenizer.batch_decode(texts)
            pairs = list(zip(ends[::2], ends[1::2], strict=False))
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
            "config": self.run.config,
            "recipe": self.prepared.recipe,
            "seed": self.run.config["seed"],
            "versions": {
                "open_nvib": open_nvib.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }
