"""A run or its data with a piece damaged: one line that names it, whatever the piece and the damage."""

import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from safetensors.torch import load_file, save_file

from open_nvib.cli import main
from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import load_run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A run without a manifest, as early ones are: its files are looked at one by one."""
    ignored = shutil.ignore_patterns("checkpoints", "manifest.json")
    return Path(shutil.copytree(trained.path, tmp_path / "run", ignore=ignored))


@pytest.fixture
def sealed(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained.path, tmp_path / "sealed", ignore=shutil.ignore_patterns("checkpoints")))


def flip_a_bit(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)


def check(path: Path, capsys) -> list[str]:
    """Lines of `nvib check`, which exits with 2 if there are any."""
    capsys.readouterr()
    code = 0
    try:
        main(["check", str(path)])
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert (code, "undamaged" in printed.out) in ((0, True), (2, False))
    return printed.err.splitlines()


@pytest.mark.parametrize(
    "piece", ["config.yaml", "lengths.json", "manifest.json", "model/model.safetensors", "tokenizer/tokenizer.json"]
)
def test_every_flipped_bit_of_a_run_is_seen(sealed, piece, capsys):
    assert check(sealed, capsys) == []
    whole = (sealed / piece).read_bytes()
    random = Random(0)
    for _ in range(20):
        flip_a_bit(sealed / piece, random.randrange(8 * len(whole)))
        with pytest.raises(InputError, match=r"cannot be used|not a run") as stopped:
            load_run(sealed)
        assert len(str(stopped.value).splitlines()) == 1
        assert check(sealed, capsys)
        (sealed / piece).write_bytes(whole)
    assert check(sealed, capsys) == []


def test_every_flipped_bit_of_data_is_seen(data, tmp_path, capsys):
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    assert check(copy, capsys) == []
    (file,) = (copy / "short" / "train").glob("*.arrow")
    whole, random = file.read_bytes(), Random(0)
    for _ in range(20):
        flip_a_bit(file, random.randrange(8 * len(whole)))
        with pytest.raises(InputError, match=file.name):
            load_prepared(copy).split("short", "train")
        (line,) = check(copy, capsys)
        assert file.name in line
        file.write_bytes(whole)
    flip_a_bit(copy / "tokenizer" / "tokenizer.json", 800)
    with pytest.raises(InputError, match="tokenizer"):
        _ = load_prepared(copy).tokenizer


def test_each_missing_or_replaced_file_is_a_line_of_the_check(sealed, capsys):
    (sealed / "tokenizer" / "tokenizer.json").unlink()
    (sealed / "model" / "model.safetensors").unlink()
    (sealed / "model" / "model.safetensors").mkdir()
    lines = check(sealed, capsys)
    assert len(lines) == 2
    with pytest.raises(InputError, match=r"tokenizer|model"):
        load_run(sealed)
    (sealed / "manifest.json").unlink()
    (line,) = check(sealed, capsys)
    assert "manifest.json" in line


def test_run_without_the_words_of_its_tokenizer_is_refused(run):
    (run / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer"):
        load_run(run)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", None])
def test_damaged_tokenizer_of_early_data_is_one_line(data, tmp_path, damage):
    copy = Path(shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("manifest.json")))
    file = copy / "tokenizer" / "tokenizer.json"
    file.unlink()
    file.mkdir() if damage is None else file.write_bytes(damage)
    with pytest.raises(InputError, match="tokenizer") as stopped:
        _ = load_prepared(copy).tokenizer
    assert len(str(stopped.value).splitlines()) == 1


def test_files_have_the_mode_of_the_umask_and_permission_is_named(sealed, tmp_path):
    weights = sealed / "model" / "model.safetensors"
    assert {
        file.stat().st_mode & 0o777 for file in sealed.rglob("*") if file.is_file() and "lock" not in file.name
    } == {(sealed / "config.yaml").stat().st_mode & 0o777}
    if os.geteuid() != 0:
        pytest.skip("only root can become another user: run the tests as root, such as in a container")
    weights.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(InputError, match=r"(?i)permission denied"):
            load_run(sealed)
    finally:
        os.seteuid(0)


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
        ("data: 3\npartition: short\nseed: 0\n", "`$.data`"),
        ("data: a\npartition: short\nseed: x\n", "`$.seed`"),
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
    with pytest.raises(InputError, match=r"short/test.*: cannot be used") as stopped:
        load_prepared(copy).split("short", "test")
    assert len(str(stopped.value).splitlines()) == 1
