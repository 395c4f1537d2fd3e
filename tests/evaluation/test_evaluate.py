"""A small run evaluated: what is written, that it is repeatable, that it goes on, and what is refused."""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from open_nvib.cli import main
from open_nvib.errors import InputError
from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.evaluation.reconstruction import by_length, kept_share, vectors_kept
from open_nvib.text.data import load_prepared
from open_nvib.text.run import load_run

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
CIRCUMSTANCES = {"settings", "config", "recipe", "seed", "versions"}


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


def test_a_damaged_step_is_done_again(run):
    first = evaluate(run, SMALL, say=quiet)
    (damaged,) = (run / "evaluation").glob("latent-*.json")
    damaged.write_text('{"kl_gauss')
    assert evaluate(run, SMALL, say=quiet) == first


def test_a_plain_transformer_has_no_generation_and_no_latent_to_measure(plain, tmp_path):
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    assert set(evaluate(run, SMALL, say=quiet)) == {"reconstruction", "interpolation"} | CIRCUMSTANCES


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
