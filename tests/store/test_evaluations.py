"""Parts measured at different times are merged to one evaluation, and evaluations written at once are all kept."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from open_nvib.store.evaluations import Evaluation, Generation, Interpolation, LatentDiagnosis, Reconstruction, merge
from open_nvib.store.files import as_builtins, from_builtins
from open_nvib.store.runs import RunMetrics, change_metrics
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import EvaluateConfig, Part, Recipe

MEASURED: dict[Part, Any] = {
    "reconstruction": {"short": Reconstruction(sentences=7, bleu=61.5)},
    "generation": Generation(samples=500, distinct={1: 0.5, 4: None}),
    "latent": LatentDiagnosis(elbo=-67.0),
    "interpolation": Interpolation(pairs=3, perplexity=(107.0, None)),
}


def make(*parts: Part, model: str | None = "a", **settings: Any) -> Evaluation:
    return Evaluation(
        settings=EvaluateConfig(measure=list(parts), **settings),
        config=TrainConfig(seed=3),
        recipe=Recipe({"source": "enwik8"}, {}),
        model=model,
        seed=3,
        versions={"torch": "2"},
        **{part: MEASURED[part] for part in parts},
    )


def merged(known: Evaluation | None, fresh: Evaluation) -> tuple[Evaluation, list[str]]:
    said: list[str] = []
    return merge(known, fresh, said.append), said


def test_the_first_evaluation_is_kept_as_it_is():
    fresh = make("reconstruction", "latent")
    assert merged(None, fresh) == (fresh, [])


def test_an_evaluation_comes_back_from_json_without_the_parts_that_were_not_measured():
    evaluation = make("generation", "interpolation")
    plain = json.loads(json.dumps(as_builtins(evaluation)))
    assert "latent" not in plain
    assert "reconstruction" not in plain
    assert plain["generation"]["distinct"] == {"1": 0.5, "4": None}
    assert from_builtins(plain, Evaluation) == evaluation


def test_parts_keep_the_settings_that_they_were_measured_with():
    known = make("generation", "reconstruction", samples=500, sentences=7)
    fresh = replace(
        make("reconstruction", sentences=9), reconstruction={"short": Reconstruction(sentences=9, bleu=60.0)}
    )
    evaluation, said = merged(known, fresh)
    assert said == []
    assert evaluation.generation == known.generation
    assert evaluation.reconstruction == fresh.reconstruction
    assert (evaluation.settings.samples, evaluation.settings.sentences) == (500, 9)
    assert evaluation.settings.measure == ["reconstruction", "generation"]


def test_parts_that_share_a_setting_with_another_value_are_left_out():
    known = make("generation", "latent", scorer_steps=600, latent_sentences=5)
    evaluation, said = merged(known, make("interpolation", scorer_steps=50))
    assert evaluation.generation is None
    assert evaluation.latent == known.latent
    (line,) = said
    assert line.startswith("generation")
    assert "scorer_steps was 600, now 50" in line
    evaluation, said = merged(known, make("reconstruction", seed=1))
    assert set(evaluation.measured) == {"reconstruction"}
    assert len(said) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "b"),
        ("config", TrainConfig(seed=4)),
        ("recipe", Recipe({"source": "wikitext-2"}, {})),
        ("versions", {"torch": "3"}),
    ],
)
def test_parts_of_another_model_data_or_version_are_left_out(name, value):
    evaluation, said = merged(replace(make("latent"), **{name: value}), make("reconstruction"))
    assert evaluation.latent is None
    assert f"another {name}" in said[0]


def test_parts_of_an_early_record_without_model_and_versions_stay():
    evaluation, said = merged(replace(make("latent", model=None), versions={}), make("reconstruction"))
    assert set(evaluation.measured) == {"reconstruction", "latent"}
    assert said == []


def add(run: Path, name: str) -> None:
    def another(metrics: RunMetrics) -> RunMetrics:
        evaluations = metrics.evaluations
        return replace(metrics, evaluations={**evaluations, f"{name}-{len(evaluations)}": make("latent")})

    for _ in range(20):
        change_metrics(run, another)


def test_evaluations_written_at_once_are_all_there(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(tmp_path, name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert len(written["evaluations"]) == 40
