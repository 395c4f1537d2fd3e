"""Parts measured at different times in one record, and records written at once."""

import json
import multiprocessing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from open_nvib.store.evaluations import merge
from open_nvib.store.runs import change_metrics
from open_nvib.store.settings import EvaluateConfig, Part


def make_record(*parts: Part, model: str = "a", **settings: Any) -> dict[str, Any]:
    config = EvaluateConfig(measure=list(parts), **settings)
    circumstances = {"model": model, "config": {"seed": 3}, "recipe": {}, "versions": {"torch": "2"}}
    return {"settings": asdict(config), **circumstances, **{part: {"of": settings} for part in parts}}


def merged(known: dict[str, Any], fresh: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    return merge(known, fresh, said.append), said


def test_the_first_record_is_as_it_is():
    fresh = make_record("reconstruction", "latent")
    assert merged({}, fresh) == (fresh, [])


def test_parts_stay_with_the_settings_that_they_were_measured_with():
    known = make_record("generation", "reconstruction", samples=500, sentences=7)
    record, said = merged(known, make_record("reconstruction", sentences=9))
    assert said == []
    assert record["generation"] == known["generation"]
    assert record["reconstruction"] == {"of": {"sentences": 9}}
    assert (record["settings"]["samples"], record["settings"]["sentences"]) == (500, 9)
    assert record["settings"]["measure"] == ["reconstruction", "generation"]


def test_parts_that_share_a_setting_with_another_value_are_left_out_with_a_word():
    known = make_record("generation", "latent", scorer_steps=600, latent_sentences=5)
    record, said = merged(known, make_record("interpolation", scorer_steps=50))
    assert "generation" not in record
    assert record["latent"] == known["latent"]
    (words,) = said
    assert "generation of an earlier evaluation is left out: scorer_steps was 600, now 50." in words
    record, said = merged(known, make_record("reconstruction", seed=1))
    assert set(record) == set(make_record("reconstruction"))
    assert len(said) == 2


def test_parts_of_another_model_are_left_out():
    record, said = merged(make_record("latent", model="b"), make_record("reconstruction"))
    assert "latent" not in record
    assert "another model" in said[0]


def test_parts_of_a_record_that_says_nothing_are_left_out():
    record, said = merged({"latent": {}, "settings": 3}, make_record("reconstruction"))
    assert "latent" not in record
    assert len(said) == 1


def add(run: Path, name: str) -> None:
    def another(metrics: dict[str, Any]) -> None:
        records = metrics.setdefault("evaluations", {})
        records[f"{name}-{len(records)}"] = {}

    for _ in range(20):
        change_metrics(run, another)


def test_records_written_at_once_are_all_there(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(tmp_path, name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert len(written["evaluations"]) == 40
