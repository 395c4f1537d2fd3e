"""`nvib convert` and `nvib tune` on tiny models, and what a pipeline makes of them."""

import json
import math
import shutil
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tiny import tiny, word_texts, word_tokenizer
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, pipeline

from open_nvib.cli import main
from open_nvib.experiments.engines import Serial
from open_nvib.pretrained import NVIBConfig
from open_nvib.pretrained.tuning import (
    TRIALS,
    FailedTrial,
    Trial,
    read_pairs,
    read_trials,
    suggest_at_random,
    suggest_by_optuna,
    tune,
)
from open_nvib.store.files import InputError


def fails(capsys, *arguments: object) -> str:
    """The one line on standard error of an exit with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("nvib: ")]
    assert len(lines) == 1, said
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BART and a tiny BERT that classifies, converted with the command, and pairs for both."""
    folder = tmp_path_factory.mktemp("models")
    texts = word_texts(30)
    (folder / "texts.txt").write_text("\n".join(texts) + "\n\n")
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(texts[:4], texts[4:8], strict=True)))
    (folder / "labels.tsv").write_text("".join(f"{text}\t{index % 2}\n" for index, text in enumerate(texts[:8])))
    for name, model in (
        ("bart", tiny("bart")),
        ("bert", tiny("bert", kind="BertForSequenceClassification")),
    ):
        model.save_pretrained(folder / f"{name}-original")
        word_tokenizer().save_pretrained(folder / f"{name}-original")
        command = ["convert", folder / f"{name}-original", "--texts", folder / "texts.txt", "--output", folder / name]
        main([str(word) for word in command])
    return folder


def test_a_converted_directory_opens_in_a_pipeline(folder):
    texts = word_texts(3, seed=1)
    original, converted = (
        pipeline("text-classification", model=str(folder / name)) for name in ("bert-original", "bert")
    )
    for a, b in zip(original(texts), converted(texts), strict=True):
        assert a["label"] == b["label"]
        assert a["score"] == pytest.approx(b["score"], abs=1e-3)
    assert isinstance(converted.model.config.quantization_config, NVIBConfig)


def test_a_search_goes_on_where_it_stopped(folder, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(folder / "bart", model)
    command = ["tune", str(model), "--pairs", str(folder / "pairs.tsv"), "--where", "cross", "--trials"]
    main([*command, "2"])
    first = read_trials(model / TRIALS)
    assert [trial.number for trial in first] == [0, 1]
    assert first[0].settings == {"cross": {"tau_alpha": math.inf, "tau_sigma": 0.0}}
    with (model / TRIALS).open("a") as file:
        file.write('{"number": 2, "me')  # cut off while it was written
    main([*command, "4", "--apply"])
    again = read_trials(model / TRIALS)
    assert again[:2] == first
    assert [trial.number for trial in again] == [0, 1, 2, 3]
    best = max(again, key=lambda trial: trial.score)
    assert capsys.readouterr().out.splitlines()[-1] == f"best: {best.number}"
    sections = AutoConfig.from_pretrained(model).quantization_config["sections"]
    assert {name: float(sections["cross"][name]) for name in best.settings["cross"]} == best.settings["cross"]
    opened = AutoModelForSeq2SeqLM.from_pretrained(model)
    assert opened.config.quantization_config.sections["cross"]["tau_alpha"] == best.settings["cross"]["tau_alpha"]


def test_a_classifier_is_tuned_by_accuracy(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "bert", model)
    main(["tune", str(model), "--pairs", str(folder / "labels.tsv"), "--metric", "accuracy", "--trials", "3"])
    trials = read_trials(model / TRIALS)
    assert all(0 <= trial.score <= 1 for trial in trials)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder / "bert-original")
    tokenizer = word_tokenizer()
    rows = [line.split("\t") for line in (folder / "labels.tsv").read_text().splitlines()]
    right = [
        int(classifier(**tokenizer([text], return_tensors="pt")).logits.argmax(-1)) == int(label)
        for text, label in rows
    ]
    assert trials[0].score == pytest.approx(sum(right) / len(right))


def test_optuna_goes_on_from_known_trials(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "bert", model)
    command = ["tune", str(model), "--pairs", str(folder / "labels.tsv"), "--metric", "accuracy", "--sampler", "optuna"]
    main([*command, "--trials", "2"])
    main([*command, "--trials", "4"])
    trials = read_trials(model / TRIALS)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert len({str(trial.taus) for trial in trials}) == 4  # what was tried is not tried again


@pytest.mark.parametrize("suggest", [suggest_at_random, suggest_by_optuna])
def test_suggestions_turn_dials_off_and_learn_from_trials(suggest):
    """A score that is best with the noise off and τ_α at 4: Optuna finds more of that than chance."""
    names = ["cross tau_alpha", "cross tau_sigma"]
    done = []
    for number in range(40):
        taus = suggest(0, [number], names, done)[number]
        alpha, sigma = taus["cross"]["tau_alpha"], taus["cross"]["tau_sigma"]
        assert (alpha == math.inf and sigma == 0.0) or number > 0
        assert alpha == math.inf or 0 <= alpha <= 10
        assert 0 <= sigma <= 0.5
        score = -abs(min(alpha, 10.0) - 4.0) - 10 * sigma
        done.append(Trial(number, "chrf", "", taus, score))
    late = [trial.score for trial in done[20:]]
    assert any(trial.settings["cross"]["tau_alpha"] == math.inf for trial in done[1:])
    assert any(trial.settings["cross"]["tau_sigma"] == 0.0 for trial in done[1:])
    assert (sum(late) / len(late) > -2.5) == (suggest is suggest_by_optuna)


class Unreliable(Serial):
    """Runs jobs from the last to the first, and loses trial 1."""

    def run(self, jobs, *, say):
        for job in reversed(jobs):
            yield job.lost("its process was killed", 7) if str(job) == "trial 1" else job.run(say=say, wait_seconds=0.0)


def test_trials_that_an_engine_lost_are_tried_again(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "bert", model)
    pairs = read_pairs(str(folder / "labels.tsv"))
    settings: dict[str, Any] = {"metric": "accuracy", "trials": 4, "say": lambda line: None}
    found = list(tune(str(model), pairs, Unreliable(), **settings))
    assert [trial.number for trial in found] == [3, 2, 1, 0]
    assert isinstance(found[2], FailedTrial)
    again = list(tune(str(model), pairs, Serial(), **settings))
    assert [trial.number for trial in again] == [3, 2, 0, 1]
    assert again[:3] == [trial for trial in found if isinstance(trial, Trial)]
    settings["trials"] = 1
    other = list(tune(str(model), pairs[:4], Serial(), **settings))
    assert [trial.number for trial in other] == [0]  # scores of other pairs are another search
    assert len(read_trials(model / TRIALS)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("engine", [["processes", "--workers", "2"], ["ray", "--address", "local"]], ids=lambda x: x[0])
def test_engines_give_the_same_trials(folder, tmp_path, engine, capsys):
    found = []
    for name, options in (("serial", ["serial"]), ("engine", engine)):
        shutil.copytree(folder / "bert", tmp_path / name)
        command = ["tune", str(tmp_path / name), "--pairs", str(folder / "labels.tsv"), "--metric", "accuracy"]
        main([*command, "--trials", "3", "--engine", *options])
        found.append(sorted(read_trials(tmp_path / name / TRIALS), key=lambda trial: trial.number))
    assert found[0] == found[1]
    assert "trial 2" in capsys.readouterr().err or engine[0] == "ray"


def test_mistakes_are_one_line(folder, tmp_path, capsys):
    texts, pairs = folder / "texts.txt", folder / "pairs.tsv"
    (tmp_path / "few.txt").write_text("word5 word6\n")
    (tmp_path / "wrong.tsv").write_text("word5 word6\n")
    (tmp_path / "empty").mkdir()
    convert = ("convert", folder / "bart-original", "--texts")
    assert "expected at least" in fails(capsys, *convert, tmp_path / "few.txt", "--output", tmp_path / "out")
    assert "exists already" in fails(capsys, *convert, texts, "--output", folder / "bart")
    assert "converted" in fails(capsys, "convert", folder / "bart", "--texts", texts, "--output", tmp_path / "out")
    assert "cannot be opened" in fails(
        capsys, "convert", tmp_path / "empty", "--texts", texts, "--output", tmp_path / "o"
    )
    assert "not a converted model" in fails(capsys, "tune", folder / "bart-original", "--pairs", pairs)
    assert "line 1" in fails(capsys, "tune", folder / "bart", "--pairs", tmp_path / "wrong.tsv")
    assert "classifier" in fails(capsys, "tune", folder / "bart", "--pairs", pairs, "--metric", "accuracy")
    assert "translates" in fails(capsys, "tune", folder / "bert", "--pairs", pairs)
    (tmp_path / "labels.tsv").write_text("word5 word6\t2\n")
    labels = ("--pairs", tmp_path / "labels.tsv", "--metric", "accuracy")
    assert "'2' is no label" in fails(capsys, "tune", folder / "bert", *labels)
    assert "workers is 0" in fails(capsys, "tune", folder / "bert", *labels, "--engine=processes", "--workers=0")
    assert not (tmp_path / "out").exists()
    assert "at least 1" in fails(capsys, "tune", folder / "bart", "--pairs", pairs, "--trials", "0")
    bert = shutil.copytree(folder / "bert-original", tmp_path / "bert")
    weights = bert / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    command = ("convert", bert, "--texts", texts, "--output", tmp_path / "out")
    assert "cannot be opened" in fails(capsys, *command)
    shutil.copy(folder / "bert-original" / "model.safetensors", weights)
    for file in bert.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer" in fails(capsys, *command)
    assert not (tmp_path / "out").exists()


def test_infinity_is_a_dial_and_pairs_end_with_their_line(folder, tmp_path):
    command = ["convert", folder / "bart-original", "--texts", folder / "texts.txt", "--output", tmp_path / "out"]
    main([*map(str, command), "--tau-alpha", "inf"])
    assert '"tau_alpha": "inf"' in (tmp_path / "out" / "config.json").read_text()
    (tmp_path / "pairs.tsv").write_text("word5\u2028word6\tword7\n")
    assert read_pairs(str(tmp_path / "pairs.tsv")) == [("word5\u2028word6", "word7")]


def test_trials_of_other_weights_do_not_count(folder, tmp_path):
    model = shutil.copytree(folder / "bert", tmp_path / "model")
    pairs = read_pairs(str(folder / "labels.tsv"))

    def search() -> float:
        (trial,) = tune(str(model), pairs, Serial(), metric="accuracy", trials=1, say=print)
        assert isinstance(trial, Trial)
        return trial.score

    first = search()
    state = load_file(model / "model.safetensors")
    save_file({name: -x if "classifier" in name else x for name, x in state.items()}, model / "model.safetensors")
    assert search() == pytest.approx(1 - first)
    lines = model / TRIALS
    lines.write_text(lines.read_text().removesuffix("\n"))  # a last line that lost its end is still a line
    assert len(read_trials(lines)) == 2
    assert lines.read_text().endswith("\n")
    lines.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        search()


def test_the_config_on_disk_is_plain_json(folder):
    found = json.loads((folder / "bart" / "config.json").read_text())["quantization_config"]
    assert found["quant_method"] == "nvib"
    assert set(found["sections"]) == {"encoder", "cross", "decoder"}
