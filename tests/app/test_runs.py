from dataclasses import replace
from pathlib import Path

import pytest
import torch

from open_nvib.app.runs import EXAMPLES, _names, example_pairs, example_texts, open_runs
from open_nvib.store.evaluations import Chosen, Evaluation, Example, NumberExample, NumberOfVectors, Reconstruction
from open_nvib.store.files import InputError
from open_nvib.store.runs import change_metrics
from open_nvib.store.task_settings import EvaluateConfig, Recipe
from open_nvib.text import Run
from open_nvib.text.data import load_prepared
from open_nvib.text.model.vector_count import VectorCounts


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


def test_pairs_to_compare_are_of_one_length(runs, monkeypatch):
    run = runs["any"]

    def need(self: Run, ids: list[list[int]]) -> VectorCounts:
        """What a better model might find: all texts come back, each with its own number."""
        vectors = torch.tensor([1 + sum(text) % len(text) for text in ids])
        nothing = torch.zeros(len(ids))
        return VectorCounts(vectors, nothing, nothing == 0, nothing.long(), nothing.long(), nothing > 0)

    monkeypatch.setattr(Run, "find_fewest", need)
    pairs = example_pairs({"paper": runs["paper"], "any": run})
    assert pairs
    for pair in pairs:
        first, second = run.tokenize(list(pair))
        assert len(first) == len(second)
        few, many = need(run, [first, second]).vectors.tolist()
        assert few <= many
    assert len(example_pairs({"paper": runs["paper"]})) == len(example_texts(runs["paper"])) - 1


def test_pairs_to_compare_come_from_the_evaluation_where_there_is_one(runs, tmp_path):
    run = replace(runs["any"], path=tmp_path)
    examples = (NumberExample("one text", 2, 1), NumberExample("another text", 2, 2))
    chosen = Chosen(kept=0.5, vectors=1.5)
    part = NumberOfVectors(2, shares=(), fewest=chosen, auto=chosen, examples=examples)
    found = Evaluation(EvaluateConfig(), run.config, Recipe({}, {}), number={"short": part})
    change_metrics(run.path, lambda metrics: replace(metrics, evaluations={found.name: found}))
    assert example_pairs({"any": run}) == [("one text", "another text")]
