from dataclasses import replace
from pathlib import Path

import pytest

from open_nvib.app.runs import EXAMPLES, _names, example_texts, open_runs
from open_nvib.store.evaluations import Evaluation, Example, Reconstruction
from open_nvib.store.files import InputError
from open_nvib.store.runs import change_metrics
from open_nvib.store.settings import EvaluateConfig, Recipe
from open_nvib.text.data import load_prepared


def test_names_are_as_long_as_they_must_be():
    assert _names([Path("/x/runs/nvae")]) == ["nvae"]
    assert _names([Path("/x/runs/nvae"), Path("/x/runs/vt")]) == ["nvae", "vt"]
    assert _names([Path("/x/nvae/seed-0/run"), Path("/x/vt/seed-0/run")]) == ["nvae", "vt"]
    assert _names([Path("/x/vt/seed-0/run"), Path("/x/vt/seed-1/run")]) == ["seed-0", "seed-1"]
    assert _names([Path("/x/a/vt"), Path("/x/b/vt"), Path("/x/b/t")]) == ["a/vt", "b/vt", "b/t"]


def test_a_run_that_is_given_twice_is_opened_once(trained):
    assert list(open_runs([trained.path, str(trained.path)])) == [trained.path.name]


def test_no_run_is_an_error():
    with pytest.raises(InputError, match="run"):
        open_runs([])


@pytest.fixture
def copy(trained, tmp_path):
    """The same run in a directory of its own."""
    return replace(trained, path=tmp_path)


def test_texts_to_try_come_from_the_evaluation_where_there_is_one(copy):
    examples = tuple(Example(text, "") for text in ("one text", "another text", "x" * 200))
    reconstruction = {"short": Reconstruction(sentences=3, examples=examples)}
    found = Evaluation(EvaluateConfig(), copy.config, Recipe({}, {}), reconstruction=reconstruction)
    change_metrics(copy.path, lambda metrics: replace(metrics, evaluations={found.name: found}))
    assert example_texts(copy) == ["one text", "another text"]


@pytest.mark.parametrize("damaged", ["", "[]", '{"evaluations": 3}', '{"evaluations": {}}'])
def test_without_one_they_are_sentences_of_the_data(copy, damaged):
    (copy.path / "metrics.json").write_text(damaged)
    texts = example_texts(copy)
    assert 2 <= len(texts) <= 4
    assert set(texts) <= set(load_prepared(copy.config.data).split("short", "validation")["text"])


def test_without_data_they_are_plain_english(copy):
    moved = replace(copy, settings=replace(copy.config, data=str(copy.path / "moved")))
    assert example_texts(moved) == list(EXAMPLES)
