"""`nvib convert` and `nvib tune` on tiny models, and what a pipeline makes of them."""

import json
import math
import shutil

import pytest
from tiny import tiny, word_texts, word_tokenizer
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, pipeline

from open_nvib.cli import main
from open_nvib.pretrained import NVIBConfig
from open_nvib.pretrained.tuning import TRIALS, read_trials


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
    assert [trial.number for trial in read_trials(model / TRIALS)] == [0, 1, 2, 3]


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
    assert not (tmp_path / "out").exists()


def test_the_config_on_disk_is_plain_json(folder):
    found = json.loads((folder / "bart" / "config.json").read_text())["quantization_config"]
    assert found["quant_method"] == "nvib"
    assert set(found["sections"]) == {"encoder", "cross", "decoder"}
