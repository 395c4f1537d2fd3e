"""A small run evaluated: what is written, that it is repeatable, that it goes on, and what is refused."""

import errno
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from open_nvib.cli import main
from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.evaluation.reconstruction import by_length, kept_share, vectors_kept
from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.using.run import load_run

SMALL = EvaluateConfig(
    sentences=12,
    samples=30,
    scorer_steps=4,
    latent_sentences=5,
    importance_samples=3,
    interpolations=2,
    interpolation_steps=3,
)
PARTS = {"reconstruction", "generation", "latent", "interpolation"}
CIRCUMSTANCES = {"settings", "model", "config", "recipe", "seed", "versions"}


def quiet(text: str) -> None: ...


@pytest.fixture
def run(nvae: Path, tmp_path: Path) -> Path:
    """A copy to write into."""
    return Path(shutil.copytree(nvae, tmp_path / "run"))


def test_an_evaluation_is_written_with_what_it_is_of(run):
    record = evaluate(run, SMALL, say=quiet)
    assert set(record) == PARTS | CIRCUMSTANCES
    written = json.loads((run / "metrics.json").read_text())
    assert written["evaluations"]["validation-causal"] == json.loads(json.dumps(record))
    assert set(written) == {"step", "validation", "evaluations"}, "what training wrote is still there"
    assert record["config"]["model"]["bottleneck"] == "nvae"
    assert record["reconstruction"]["short"]["sentences"] == 12
    assert sum(record["generation"]["lengths"]) == 30


def test_evaluating_twice_gives_the_same_numbers(run, tmp_path):
    """From what is kept, and again from nothing."""
    first = evaluate(run, SMALL, say=quiet)
    assert evaluate(run, SMALL, say=quiet) == first
    shutil.rmtree(run / "evaluation")
    assert evaluate(run, SMALL, say=quiet) == first


def test_an_interrupted_evaluation_goes_on(run, monkeypatch):
    """Interrupted in its third part, it does the first two no more."""

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["open_nvib.evaluation.evaluate"], "diagnose", interrupt)
        with pytest.raises(KeyboardInterrupt):
            evaluate(run, SMALL, say=quiet)
    assert "evaluations" not in json.loads((run / "metrics.json").read_text())
    said: list[str] = []
    evaluate(run, SMALL, say=said.append)
    steps = [text.split(": ")[1] for text in said if text.startswith(str(run))]
    assert steps == ["latent", "interpolation"]


def test_a_changed_model_is_measured_again(run):
    first = evaluate(run, SMALL, say=quiet)
    model = load_run(run).model
    model.head.weight.data.zero_()
    model.save_pretrained(run / "model")
    assert evaluate(run, SMALL, say=quiet)["reconstruction"] != first["reconstruction"]


def test_a_plain_transformer_has_no_generation_and_no_latent_to_measure(plain, tmp_path):
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    said: list[str] = []
    assert set(evaluate(run, SMALL, say=said.append)) == {"reconstruction", "interpolation"} | CIRCUMSTANCES
    assert sum("is left out: a plain Transformer has no prior" in text for text in said) == 2
    before = (run / "metrics.json").read_bytes()
    with pytest.raises(InputError, match="nothing to measure, generation is not possible: a plain Transformer"):
        evaluate(run, EvaluateConfig(measure=["generation", "latent"]), say=quiet)
    assert (run / "metrics.json").read_bytes() == before


def test_a_part_measured_alone_joins_the_others(run):
    whole = evaluate(run, SMALL, say=quiet)
    record = evaluate(run, EvaluateConfig(measure=["reconstruction"], sentences=7), say=quiet)
    assert record["reconstruction"]["short"]["sentences"] == 7
    for part in PARTS - {"reconstruction"}:
        assert record[part] == whole[part]
    assert record["settings"] == whole["settings"] | {"sentences": 7, "measure": record["settings"]["measure"]}
    assert set(record["settings"]["measure"]) == PARTS
    assert json.loads((run / "metrics.json").read_text())["evaluations"]["validation-causal"] == record


@pytest.mark.parametrize(
    "content",
    ["[]", "", "\x00\xff", '{"evaluations": null}', '{"evaluations": {"a": 3}}', '{"validation": 3}', None],
    ids=["list", "empty", "binary", "null", "number", "validation", "directory"],
)
def test_damaged_metrics_are_found_before_the_work_and_left_alone(run, content):
    path = run / "metrics.json"
    path.unlink()
    path.mkdir() if content is None else path.write_text(content, encoding="latin-1")
    said: list[str] = []
    with pytest.raises(InputError, match=r"metrics\.json: cannot be used \(.*\)\. Move it away") as stopped:
        evaluate(run, SMALL, say=said.append)
    assert "\n" not in str(stopped.value)
    assert said == []
    assert path.is_dir() if content is None else path.read_text(encoding="latin-1") == content


RECONSTRUCT = EvaluateConfig(measure=["reconstruction"], sentences=4)


def test_numbers_of_training_that_are_not_finite_do_not_stop_an_evaluation(run):
    (run / "metrics.json").write_text('{"step": 3, "validation": {"perplexity": Infinity}}')
    evaluate(run, RECONSTRUCT, say=quiet)
    written = json.loads((run / "metrics.json").read_text())
    assert written["validation"] == {"perplexity": None}
    assert "validation-causal" in written["evaluations"]


def test_a_run_evaluated_without_its_metrics_can_be_trained_to_its_end(run):
    """And keeps the evaluation of the model, which is the same."""
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").unlink()
    record = evaluate(run, RECONSTRUCT, say=quiet)
    main(["train", "--config", str(run / "config.yaml"), "--output", str(run)])
    written = json.loads((run / "metrics.json").read_text())
    assert written["step"] == metrics["step"]
    assert written["validation"]["bleu"] == metrics["validation"]["bleu"]
    assert written["evaluations"] == {"validation-causal": record}


@pytest.mark.parametrize("place", ["evaluation", "read-only"])
def test_a_run_that_cannot_be_written_is_told_before_the_work(run, place, monkeypatch):
    if place == "evaluation":
        (run / "evaluation").write_text("a file of the user")
    else:
        monkeypatch.setattr("open_nvib.store.files.tempfile.TemporaryFile", refuse)
    said: list[str] = []
    with pytest.raises(InputError, match=r"cannot be written \(.*\)\. An evaluation keeps"):
        evaluate(run, SMALL, say=said.append)
    assert said == []


def refuse(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_partition_that_the_data_does_not_have_is_refused(run):
    with pytest.raises(InputError, match="no partition 'foo' to generalise to, there is short"):
        evaluate(run, EvaluateConfig(generalise=["foo"]), say=quiet)


def with_validation(run: Path, **sentences: list[list[int]]) -> Path:
    """A copy of the data of a run, with other validation sentences in its partitions."""
    copy = Path(shutil.copytree(load_run(run).config["data"], run.parent / "data"))
    record = json.loads((copy / "recipe.json").read_text())
    for partition, texts in sentences.items():
        shutil.rmtree(copy / partition / "validation", ignore_errors=True)
        Dataset.from_dict({"input_ids": texts}).save_to_disk(copy / partition / "validation")
        record["counts"]["partitions"].setdefault(partition, record["counts"]["partitions"]["short"])
    (copy / "recipe.json").write_text(json.dumps(record))
    return copy


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_partitions_and_sentences_that_the_model_is_too_short_for_are_left_out(run, positions):
    config: Any = {**load_run(run).model.config.to_diff_dict(), "max_positions": 8, "positions": positions}
    TextAutoencoder(TextAutoencoderConfig(**config)).save_pretrained(run / "model")
    data = with_validation(run, short=[[5] * 7, [6] * 8, [7] * 3], long=[[5] * 7, [5] * 30])
    said: list[str] = []
    settings = EvaluateConfig(measure=["reconstruction", "interpolation"], scorer_steps=2)
    shutil.rmtree(data / "short" / "train")
    Dataset.from_dict({"input_ids": [[5] * 7, [7] * 3]}).save_to_disk(data / "short" / "train")
    record = evaluate(run, settings, data=data, say=said.append)
    assert {name: each["sentences"] for name, each in record["reconstruction"].items()} == {"short": 2}
    assert record["interpolation"]["pairs"] == 1
    assert any("1 of 3 sentences have more than the 7 tokens" in text for text in said)
    assert any("long/validation: left out, it has sentences of 30 tokens, the model takes 7" in x for x in said)


def test_one_sentence_is_measured_without_interpolation(run):
    said: list[str] = []
    record = evaluate(run, SMALL, data=with_validation(run, short=[[5, 6, 7]]), say=said.append)
    assert set(record) == PARTS - {"interpolation"} | CIRCUMSTANCES
    assert any("interpolation is left out: it goes from one sentence to another" in text for text in said)
    assert record["reconstruction"]["short"]["sentences"] == 1
    assert record["latent"]["mutual_information"] == 0


def test_no_sentence_at_all_is_refused(run):
    with pytest.raises(InputError, match="has no sentence of 1 to 63 tokens"):
        evaluate(run, SMALL, data=with_validation(run, short=[[5] * 64]), say=quiet)


def test_both_scorers_side_by_side(run):
    causal = evaluate(run, SMALL, say=quiet)
    copying = evaluate(
        run, EvaluateConfig(samples=30, scorer="autoencoder", scorer_steps=4, measure=["generation"]), say=quiet
    )
    written = json.loads((run / "metrics.json").read_text())["evaluations"]
    assert set(written) == {"validation-causal", "validation-autoencoder"}
    assert causal["generation"]["examples"] == copying["generation"]["examples"]
    assert causal["generation"]["forward_perplexity"] != copying["generation"]["forward_perplexity"]


def test_bleu_is_that_of_the_sacrebleu_command(run, tmp_path):
    texts = [list(ids) for ids in load_prepared(load_run(run).config["data"]).split("short", "validation")["input_ids"]]
    record = evaluate(run, EvaluateConfig(measure=["reconstruction"], sentences=0), say=quiet)
    loaded = load_run(run)
    references = loaded.tokenizer.batch_decode(texts)
    (tmp_path / "references.txt").write_text("\n".join(references) + "\n")
    (tmp_path / "hypotheses.txt").write_text("\n".join(loaded.reconstruct(references)) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "references.txt", "-i", "hypotheses.txt", "-b", "-w", "6"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert record["reconstruction"]["short"]["bleu"] == pytest.approx(float(printed), abs=1e-5)


def test_kept_share_is_the_mean_over_sentences_counted_by_hand(run):
    """A sentence at a time, without padding: tokens with α > 0."""
    loaded: Any = load_run(run)
    texts = list(load_prepared(loaded.config["data"]).split("short", "validation")["input_ids"])[:9]
    sentences = loaded.tokenizer.batch_decode(texts)

    def alphas(sentence: str) -> list[float]:
        return [token.alpha for token in loaded.inspect([sentence])[0].tokens]

    median = statistics.median(alpha for sentence in sentences for alpha in alphas(sentence))
    loaded.model.encoder.bottleneck.nvib.to_alpha.bias.data -= median  # α is a ReLU: now about half are dropped
    counts = [sum(alpha > 0 for alpha in alphas(sentence)) for sentence in sentences]
    assert vectors_kept(loaded.model, texts) == counts
    assert 0 < sum(counts) < sum(len(text) for text in texts)
    share = sum(count / len(text) for count, text in zip(counts, texts, strict=True)) / 9
    assert kept_share(texts, counts) == pytest.approx(share)


def test_number_kept_by_length():
    texts = [[5] * 3, [5] * 3, [5] * 7]
    assert by_length(texts, [1, 3, 6]) == [
        {"length": 3, "sentences": 2, "kept": 2.0, "sd": 1.0},
        {"length": 7, "sentences": 1, "kept": 6.0, "sd": 0.0},
    ]


def test_data_of_another_recipe_is_refused(run, tmp_path):
    data = Path(shutil.copytree(load_prepared(load_run(run).config["data"]).path, tmp_path / "other"))
    record = json.loads((data / "recipe.json").read_text())
    record["recipe"]["config"]["seed"] = 7
    (data / "recipe.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="another recipe"):
        evaluate(run, SMALL, data=data, say=quiet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 1}, "samples is 1"),
        ({"measure": []}, "measure is"),
        ({"interpolation_steps": 1}, "interpolation_steps is 1"),
        ({"scorer_steps": 0}, "scorer_steps is 0"),
        ({"seed": 10**30}, "wanted at most 4294967295"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        EvaluateConfig(**change)


def test_command_line_prints_a_summary(run, capsys):
    arguments = ["--sentences", "5", "--samples", "20", "--scorer_steps", "2", "--latent_sentences", "3"]
    main(["evaluate", str(run), *arguments, "--importance_samples", "2", "--interpolations", "2"])
    printed = capsys.readouterr().out
    for word in ("BLEU", "nrefs:1", "F-PPL", "R-PPL", "real text", "L_D", "smoothness"):
        assert word in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["nowhere", "no such directory"]),
        (["{run}", "--samples", "1"], ["samples is 1", "at least 2"]),
        (["{run}", "--scorer", "gpt"], ["scorer", "gpt"]),
        (["{run}", "--measure", "[beauty]"], ["measure", "beauty"]),
        (["{run}", "--data", "nowhere"], ["nowhere", "no such directory"]),
        (["{modelless}"], ["no model yet"]),
        (["{run}", "--seed", "99999999999999999999"], ["seed is", "at most"]),
        (["{run}", "--generalise", "[foo]"], ["foo", "there is short"]),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, tmp_path, capsys, arguments, words):
    modelless = Path(shutil.copytree(run, tmp_path / "modelless", ignore=shutil.ignore_patterns("model")))
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *(text.format(run=run, modelless=modelless) for text in arguments)])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert all(word in printed[0] for word in words)
