"""A run or its data with a piece damaged: one line that names it, whatever the piece and the damage."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from open_nvib.cli import main
from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import load_run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    ignored = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(trained.path, tmp_path / "run", ignore=ignored))


DAMAGES = {
    "nothing": b"",
    "a list": b"[]",
    "an empty object": b"{}",
    "a number": b"3",
    "half": b'{"a": [1, 2',
    "binary": b"\xff\x00\xfe\x80",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "piece",
    ["config.yaml", "lengths.json", "model/config.json", "model/model.safetensors", "tokenizer/tokenizer.json"],
)
def test_a_damaged_piece_is_one_line(run, piece, damage):
    (run / piece).write_bytes(DAMAGES[damage])
    folder = "tokenizer" if piece.startswith("tokenizer") else piece.split("/")[0]
    with pytest.raises(InputError, match=folder) as stopped:
        load_run(run)
    assert len(str(stopped.value).splitlines()) == 1


@pytest.mark.parametrize("piece", ["model/model.safetensors", "model/config.json", "tokenizer"])
def test_a_missing_piece_is_one_line(run, piece):
    shutil.rmtree(run / piece) if (run / piece).is_dir() else (run / piece).unlink()
    with pytest.raises(InputError, match=piece.split("/")[0]):
        load_run(run)


def test_a_model_without_some_of_its_weights_is_refused_not_drawn_at_random(run):
    weights = load_file(run / "model" / "model.safetensors")
    del weights["head.weight"]
    save_file(weights, run / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for head\.weight"):
        load_run(run)


@pytest.mark.parametrize("lengths", [[], [0, 0], [1.5], ["a"], [-1, 2], None, 3])
def test_lengths_are_numbers_of_sentences(run, lengths):
    (run / "lengths.json").write_text(json.dumps({"lengths": lengths}))
    with pytest.raises(InputError, match=r"lengths\.json: cannot be used"):
        load_run(run)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "config.yaml"),
        ("a: [", "config.yaml"),
        ("data: 3\npartition: short\nseed: 0\n", "wrong: data"),
        ("data: a\npartition: short\nseed: x\n", "wrong: seed"),
    ],
)
def test_training_over_a_damaged_configuration_is_one_line(run, content, words, capsys):
    arguments = ["--data", load_run(run).config.data, "--optimiser.batch_size", "8", "--output", str(run)]
    (run / "config.yaml").write_text(content)
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line


@pytest.mark.parametrize("content", ["[]", "", '{"validation": null}'])
def test_a_finished_run_with_damaged_metrics_is_one_line(run, content, capsys):
    (run / "metrics.json").write_text(content)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--config", str(run / "config.yaml"), "--output", str(run)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "metrics.json: cannot be used" in line


@pytest.mark.parametrize("name", ["counts", "lengths", "recipe"])
@pytest.mark.parametrize("value", [None, 3, [], {}])
def test_a_record_of_data_that_lacks_something_is_one_line(data, tmp_path, name, value):
    if (name, value) == ("lengths", []):
        return  # of the right kind
    record = json.loads((data / "recipe.json").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps(record | {name: value}))
    with pytest.raises(InputError, match=rf"recipe\.json: cannot be used .*\$\.{name}"):
        load_prepared(tmp_path)


def test_a_damaged_split_is_one_line(data, tmp_path):
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    for file in (copy / "short" / "test").iterdir():
        file.write_text("{}")
    with pytest.raises(InputError, match="short/test: cannot be used") as stopped:
        load_prepared(copy).split("short", "test")
    assert len(str(stopped.value).splitlines()) == 1
