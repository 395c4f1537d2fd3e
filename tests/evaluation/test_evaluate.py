"""A small run evaluated: what is written, that it is repeatable, that it goes on, and what is refused."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from open_nvib.cli import main
from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.evaluation.references import choose
from open_nvib.evaluation.scorers import open_judge
from open_nvib.store.files import InputError, as_builtins
from open_nvib.store.runs import read_metrics
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
UNSEALED = shutil.ignore_patterns("manifest.json")  # files of the copy are changed


def quiet(text: str) -> None: ...


def said_on_a_terminal(command: list[str]) -> str:
    """What a command writes to standard error where that is a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen(command, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    said = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while piece := os.read(master, 65536):
            said += piece
    os.close(master)
    assert process.wait() == 0
    return said.decode()


@pytest.fixture
def run(nvae: Path, tmp_path: Path) -> Path:
    """A copy to write into."""
    return Path(shutil.copytree(nvae, tmp_path / "run", ignore=UNSEALED))


def test_an_evaluation_is_written_with_what_it_is_of(run):
    evaluation = evaluate(run, SMALL, say=quiet)
    written = json.loads((run / "metrics.json").read_text())
    assert set(written["evaluations"][evaluation.name]) == PARTS | CIRCUMSTANCES
    assert written["evaluations"]["validation-causal"] == json.loads(json.dumps(as_builtins(evaluation)))
    assert read_metrics(run).evaluations == {"validation-causal": evaluation}
    assert set(written) == {"step", "validation", "evaluations"}, "what training wrote is still there"
    assert evaluation.config.model.bottleneck == "nvae"
    assert evaluation.trained_on is not None
    assert evaluation.trained_on.sentences == 12
    assert evaluation.generation is not None
    assert sum(evaluation.generation.lengths) == 30


def test_a_terminal_shows_what_is_measured_and_the_time_left(run):
    (run.parent / "small.yaml").write_text(yaml.safe_dump(as_builtins(SMALL)))
    command = [sys.executable, "-m", "open_nvib", "evaluate", str(run), "--config", str(run.parent / "small.yaml")]
    said = said_on_a_terminal(command)
    for step in ("reconstruct", "sample", "train a scorer", "score", "encode", "bound the likelihood"):
        assert re.search(rf"{step}: .*\[\d\d:\d\d<", said), step
    shutil.rmtree(run / "evaluation")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "[00:0" not in done.stderr + done.stdout


def test_a_terminal_shows_the_time_that_training_takes(evaluation_data, tmp_path):
    options = ["--data", str(evaluation_data), "--output", str(tmp_path / "run"), "--optimiser.steps", "3"]
    sizes = ["--model.d_model", "16", "--model.ffn_size", "16", "--optimiser.batch_size", "8"]
    said = said_on_a_terminal([sys.executable, "-m", "open_nvib", "train", *options, *sizes])
    assert re.search(r"3/3 \[\d\d:\d\d<\d\d:\d\d", said)


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
    assert read_metrics(run).evaluations == {}
    said: list[str] = []
    evaluate(run, SMALL, say=said.append)
    steps = [text.split(": ")[1] for text in said if text.startswith(str(run))]
    assert steps == ["latent", "interpolation"]


def test_a_changed_model_is_measured_again(run):
    first = evaluate(run, SMALL, say=quiet)
    model = load_run(run).model
    model.head.weight.data.zero_()
    model.save_pretrained(run / "model")
    assert evaluate(run, SMALL, say=quiet).reconstruction != first.reconstruction


def test_the_same_weights_read_in_another_way_are_measured_again(run):
    """As after `nvib train --overwrite` with another `model.reading`, on which training does not depend."""
    first = evaluate(run, SMALL, say=quiet)
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(config | {"reading": "points"}))
    again = evaluate(run, SMALL, say=quiet)
    shutil.rmtree(run / "evaluation")
    assert again == evaluate(run, SMALL, say=quiet)
    assert again.reconstruction != first.reconstruction


def test_a_plain_transformer_has_no_generation_and_no_latent_to_measure(plain, tmp_path):
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    said: list[str] = []
    assert set(evaluate(run, SMALL, say=said.append).measured) == {"reconstruction", "interpolation"}
    assert sum("no prior" in text for text in said) == 2
    before = (run / "metrics.json").read_bytes()
    with pytest.raises(InputError, match=r"run: .*generation.*no prior"):
        evaluate(run, EvaluateConfig(measure=["generation", "latent"]), say=quiet)
    assert (run / "metrics.json").read_bytes() == before


def test_a_part_measured_alone_joins_the_others(run):
    whole = evaluate(run, SMALL, say=quiet)
    evaluation = evaluate(run, EvaluateConfig(measure=["reconstruction"], sentences=7), say=quiet)
    assert evaluation.trained_on is not None
    assert evaluation.trained_on.sentences == 7
    settings = replace(whole.settings, sentences=7, measure=evaluation.settings.measure)
    assert evaluation == replace(whole, reconstruction=evaluation.reconstruction, settings=settings)
    assert set(evaluation.settings.measure) == PARTS
    assert read_metrics(run).evaluations == {"validation-causal": evaluation}


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
    with pytest.raises(InputError, match=r"metrics\.json: cannot be used \(.*\)") as stopped:
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
    evaluation = evaluate(run, RECONSTRUCT, say=quiet)
    main(["train", "--config", str(run / "config.yaml"), "--output", str(run)])
    written = json.loads((run / "metrics.json").read_text())
    assert written["step"] == metrics["step"]
    assert written["validation"]["bleu"] == metrics["validation"]["bleu"]
    assert read_metrics(run).evaluations == {"validation-causal": evaluation}


@pytest.mark.parametrize("place", ["evaluation", "read-only"])
def test_a_run_that_cannot_be_written_is_told_before_the_work(run, place, monkeypatch):
    if place == "evaluation":
        (run / "evaluation").write_text("a file of the user")
    else:
        monkeypatch.setattr("open_nvib.store.files.tempfile.TemporaryFile", refuse)
    said: list[str] = []
    with pytest.raises(InputError, match=r"run.*: cannot be written \(.*\)"):
        evaluate(run, SMALL, say=said.append)
    assert said == []


def refuse(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_partition_that_the_data_does_not_have_is_refused(run):
    with pytest.raises(InputError, match=r"foo.*generalise.*short"):
        evaluate(run, EvaluateConfig(generalise=["foo"]), say=quiet)


def with_validation(run: Path, **sentences: list[list[int]]) -> Path:
    """A copy of the data of a run, with other validation sentences in its partitions."""
    copy = Path(shutil.copytree(load_run(run).config.data, run.parent / "data", ignore=UNSEALED))
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
    evaluation = evaluate(run, settings, data=data, say=said.append)
    assert evaluation.reconstruction is not None
    assert {name: each.sentences for name, each in evaluation.reconstruction.items()} == {"short": 2}
    assert evaluation.interpolation is not None
    assert evaluation.interpolation.pairs == 1
    assert any("short/validation" in text and "1 of 3 sentences" in text for text in said)
    assert any("long/validation" in text and "30 tokens" in text for text in said)


def test_one_sentence_is_measured_without_interpolation(run):
    said: list[str] = []
    evaluation = evaluate(run, SMALL, data=with_validation(run, short=[[5, 6, 7]]), say=said.append)
    assert set(evaluation.measured) == PARTS - {"interpolation"}
    assert any("interpolation is left out" in text for text in said)
    assert evaluation.trained_on is not None
    assert evaluation.trained_on.sentences == 1
    assert evaluation.latent is not None
    assert evaluation.latent.mutual_information == 0


def test_no_sentence_at_all_is_refused(run):
    with pytest.raises(InputError, match=r"short/validation: no sentence.*63 tokens"):
        evaluate(run, SMALL, data=with_validation(run, short=[[5] * 64]), say=quiet)


def test_both_scorers_side_by_side(run):
    causal = evaluate(run, SMALL, say=quiet)
    copying = evaluate(
        run, EvaluateConfig(samples=30, scorer="autoencoder", scorer_steps=4, measure=["generation"]), say=quiet
    )
    written = json.loads((run / "metrics.json").read_text())["evaluations"]
    assert set(written) == {"validation-causal", "validation-autoencoder"}
    assert causal.generation is not None
    assert copying.generation is not None
    assert causal.generation.examples == copying.generation.examples
    assert causal.generation.forward_perplexity != copying.generation.forward_perplexity


def test_a_judge_scores_samples_interpolations_and_real_text(run, judge):
    settings = replace(SMALL, judge=str(judge), measure=["generation", "interpolation"], samples=7)
    evaluation = evaluate(run, settings, say=quiet)
    opened, loaded = open_judge(str(judge)), load_run(run)
    generation, interpolation = evaluation.generation, evaluation.interpolation
    assert generation is not None
    assert interpolation is not None
    assert generation.word_perplexity == pytest.approx(opened.word_perplexity(generation.examples), rel=1e-4)
    held_out = load_prepared(loaded.config.data).split("short", "validation")["input_ids"]
    real = loaded.tokenizer.batch_decode(choose(list(held_out), 7, settings.seed))
    assert generation.real.word_perplexity == pytest.approx(opened.word_perplexity(real), rel=1e-4)
    points = list(zip(*interpolation.examples, strict=True))
    expected = [opened.word_perplexity(texts) for texts in points]
    assert interpolation.word_perplexity == pytest.approx(expected, rel=1e-4)
    without = evaluate(run, replace(settings, judge=None), say=quiet).generation
    assert without is not None
    assert without.word_perplexity is None, "what was judged is not taken for what was not"


def test_bleu_is_that_of_the_sacrebleu_command(run, tmp_path):
    texts = [list(ids) for ids in load_prepared(load_run(run).config.data).split("short", "validation")["input_ids"]]
    evaluation = evaluate(run, EvaluateConfig(measure=["reconstruction"], sentences=0), say=quiet)
    loaded = load_run(run)
    references = loaded.tokenizer.batch_decode(texts)
    (tmp_path / "references.txt").write_text("\n".join(references) + "\n")
    (tmp_path / "hypotheses.txt").write_text("\n".join(loaded.reconstruct(references)) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "references.txt", "-i", "hypotheses.txt", "-b", "-w", "6"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert evaluation.trained_on is not None
    assert evaluation.trained_on.bleu == pytest.approx(float(printed), abs=1e-5)


def test_data_of_another_recipe_is_refused(run, tmp_path):
    data = Path(shutil.copytree(load_run(run).config.data, tmp_path / "other", ignore=UNSEALED))
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
        ({"seed": 10**30}, "seed is .*4294967295"),
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
        (["{run}", "--samples", "1"], ["samples is 1", "2"]),
        (["{run}", "--scorer", "gpt"], ["scorer", "gpt"]),
        (["{run}", "--measure", "[beauty]"], ["measure", "beauty"]),
        (["{run}", "--data", "nowhere"], ["nowhere", "no such directory"]),
        (["{modelless}"], ["no model yet"]),
        (["{run}", "--seed", "99999999999999999999"], ["seed is", "4294967295"]),
        (["{run}", "--generalise", "[foo]"], ["foo", "short"]),
        (["{run}", "--judge", "{run}"], ["judge", "causal language model"]),
        (["{run}", "--file", ""], ["--file"]),
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
