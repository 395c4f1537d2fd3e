"""The command line: what it prints, and one line with exit code 2 for every mistake."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from open_nvib.cli import main
from open_nvib.cli.commands import NVIB
from open_nvib.store.files import InputError, find_config


def out(capsys, *arguments: str) -> list[str]:
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()


def fails(capsys, *arguments: str) -> str:
    """The one line on standard error of an exit with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nvib: ")
    assert said.err.count("\n") == 1
    return said.err


def test_reconstruct_prints_a_line_for_each_text(trained, known, tmp_path, capsys, monkeypatch):
    expected = trained.reconstruct(known[:3])
    assert out(capsys, "reconstruct", trained.path, *known[:3]) == expected
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(known[:3]) + "\n\n")
    assert out(capsys, "reconstruct", trained.path, "--file", file) == expected
    with file.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert out(capsys, "reconstruct", trained.path, "--file", "-") == expected


def test_texts_may_follow_options(trained, known, capsys):
    main(["reconstruct", str(trained.path), "--device", "cpu", *known[:2]])
    after = capsys.readouterr().out
    main(["reconstruct", str(trained.path), *known[:2], "--device", "cpu"])
    assert len(after.splitlines()) == 2
    assert capsys.readouterr().out == after


def test_sample_prints_what_python_samples(trained, capsys):
    lines = out(capsys, "sample", trained.path, "--count", "4", "--seed", "2")
    assert lines == trained.sample(4, seed=2)
    assert len(out(capsys, "sample", trained.path, "--count", "2", "--length", "9")) == 2


def test_interpolate_prints_the_path(trained, known, capsys):
    lines = out(capsys, "interpolate", trained.path, known[0], known[1], "--steps", "3")
    assert lines == trained.interpolate(known[0], known[1], steps=3)


def test_inspect_prints_json_or_a_table(trained, known, capsys):
    (report,) = trained.inspect(known[:1])
    (line,) = out(capsys, "inspect", trained.path, known[0], "--json")
    assert json.loads(line) == dataclasses.asdict(report)
    table = out(capsys, "inspect", trained.path, known[0])
    assert table[0] == known[0]
    assert table[1].strip() == f"-> {report.reconstruction}"
    rows = table[3:-1]
    assert [row.split()[0] for row in rows] == [token.token for token in report.tokens]
    assert [row.endswith("dropped") for row in rows] == [not token.kept for token in report.tokens]
    assert f"{report.prior_weight:.1%}" in table[-1]


HELP = [[], *([name] for name in NVIB.commands), ["experiment", "run"], ["experiment", "status"]]


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_exits_with_0(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: nvib")
    assert all(name in text for name in ([] if command else NVIB.commands))


WRONG = [
    [],
    ["sing"],
    ["train"],
    ["train", "--model.foo", "1"],
    ["train", "--output", "x", "--model.d_model", "wide"],
    ["train", "--output", "x", "--model.stride", "3"],
    ["prepare", "--vocab_size", "0"],
    ["evaluate", "x", "--samples", "0"],
    ["experiment", "run", "x.yaml", "--engine", "steam"],
    ["demo", "--steps", "0"],
    ["sample", "x", "--count", "many"],
]


def test_help_and_wrong_options_import_no_engine():
    """Settings and argparse are enough to explain the options and to check them."""
    program = """
import json, sys
from open_nvib.cli import main

found = {}
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as stopped:
        heavy = {"torch", "transformers", "datasets", "gradio", "ray", "numpy", "matplotlib"} & set(sys.modules)
        found[" ".join(command)] = [stopped.code, sorted(heavy)]
print(json.dumps(found), file=sys.__stderr__)
"""
    helped = [[*command, "--help"] for command in HELP]
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(helped + WRONG)], capture_output=True, text=True, check=True
    )
    expected = {" ".join(command): [0 if command in helped else 2, []] for command in helped + WRONG}
    assert json.loads(done.stderr.splitlines()[-1]) == expected


def test_reconstruct_imports_neither_datasets_nor_the_trainer(trained):
    program = """
import sys
from open_nvib.cli import main

main(["reconstruct", sys.argv[1], "a text"])
print(sorted({"datasets", "pandas", "transformers.trainer", "matplotlib", "gradio", "sacrebleu"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", program, str(trained.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_print_config_is_a_config(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "train",
                "--output=x",
                "--model.d_model=48",
                "--loss.delta.start=1",
                "--loss.delta.end=0.5",
                "--print_config",
            ]
        )
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["train", f"--config={tmp_path / 'config.yaml'}", "--print_config"])
    printed = yaml.safe_load(text)
    assert yaml.safe_load(capsys.readouterr().out) == printed
    assert printed["model"]["d_model"] == 48
    assert printed["loss"]["delta"]["end"] == 0.5


CONFIGS = {
    "unknown key": ("model:\n  d_modle: 3\n", "d_modle"),
    "wrong type": ("model:\n  d_model: wide\n", "d_model"),
    "wrong choice": ("model:\n  bottleneck: vae\n", "bottleneck"),
    "not yaml": ("model: [\n", ""),
    "a list": ("- model\n", ""),
    "much text": ("The old river.\n" * 999, "config.yaml"),
    "ramp without room": ("loss:\n  delta: {start: 1, end: 0, from_step: 5, to_step: 5}\n", "to_step"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_bad_config_is_one_line(name, data, tmp_path, capsys):
    text, what = CONFIGS[name]
    (tmp_path / "config.yaml").write_text(text)
    output = tmp_path / "run"
    line = fails(capsys, "train", f"--config={tmp_path / 'config.yaml'}", f"--data={data}", f"--output={output}")
    assert what in line
    assert len(line) < 1000
    assert not output.exists()


def test_binary_or_missing_config_is_one_line(data, tmp_path, capsys):
    (tmp_path / "config.yaml").write_bytes(bytes(range(256)))
    for path in (tmp_path / "config.yaml", tmp_path / "nowhere.yaml"):
        fails(capsys, "train", f"--config={path}", f"--data={data}", f"--output={tmp_path / 'run'}")


ARGUMENTS = {
    "no command": ([], ""),
    "unknown command": (["recontruct"], "recontruct"),
    "unknown option": (["sample", "RUN", "--number=3"], "number"),
    "wrong type": (["sample", "RUN", "--count=many"], "count"),
    "count of 0": (["sample", "RUN", "--count=0"], "count"),
    "no count": (["sample", "RUN", "--count=null"], "count"),
    "length of 0": (["sample", "RUN", "--length=0"], "length"),
    "one step": (["interpolate", "RUN", "a war", "the war", "--steps=1"], "steps"),
    "empty text": (["reconstruct", "RUN", ""], "text"),
    "no text": (["reconstruct", "RUN"], "--file"),
    "text of spaces": (["inspect", "RUN", "   "], "text"),
    "one of two empty": (["interpolate", "RUN", "", "the war"], "text"),
    "missing file": (["reconstruct", "RUN", "--file=TMP/nowhere.txt"], "nowhere.txt"),
    "binary file": (["inspect", "RUN", "--file=TMP/binary"], "binary"),
    "empty file": (["reconstruct", "RUN", "--file=TMP/empty"], "--file"),
    "folder for a file": (["reconstruct", "RUN", "--file=TMP"], "TMP"),
    "not a run": (["sample", "TMP"], "TMP"),
    "missing run": (["sample", "TMP/nowhere"], "TMP/nowhere"),
    "file for a run": (["inspect", "TMP/empty", "text"], "TMP/empty"),
    "data for a run": (["sample", "DATA"], "DATA"),
    "run for data": (["train", "--data=RUN", "--output=TMP/run"], "recipe.json"),
    "missing data": (["train", "--data=TMP/nowhere", "--output=TMP/run"], "TMP/nowhere"),
    "unknown device": (["sample", "RUN", "--device=abacus"], "abacus"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_input_is_one_line(name, trained, data, tmp_path, capsys):
    arguments, what = ARGUMENTS[name]
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_text("")
    places = {"RUN": trained.path, "TMP": tmp_path, "DATA": data}
    for short, path in places.items():
        what, *arguments = [argument.replace(short, str(path)) for argument in (what, *arguments)]
    assert what in fails(capsys, *arguments)
    assert not (tmp_path / "run").exists()


def test_text_that_is_too_long_is_one_line_in_a_process_of_its_own(trained):
    command = [sys.executable, "-m", "open_nvib", "reconstruct", str(trained.path), "war " * 600]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    assert done.stderr.startswith("nvib: ")
    assert all(piece in done.stderr for piece in ("war war", "600", "63"))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "closed",
    ["<&-", pytest.param(">&-", marks=pytest.mark.slow), pytest.param("2>&-", marks=pytest.mark.slow), "<&- >&- 2>&-"],
)
def test_commands_do_without_the_streams_that_the_caller_closed(closed, trained, data, tmp_path):
    nvib = f"{sys.executable} -m open_nvib"
    tiny = "--model.d_model=16 --optimiser.steps=1 --optimiser.batch_size=16 --watch.bleu_sentences=2"
    lines = {
        f"{nvib} train --data={data} --output=run {tiny}": 0,
        f"{nvib} reconstruct {trained.path} --file=-": 2 if "<" in closed else 0,
    }
    for line, code in lines.items():
        done = subprocess.run(f"{line} {closed}", shell=True, cwd=tmp_path, capture_output=True, input=b"the war\n")
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stdout + done.stderr


def test_a_terminal_that_is_not_utf_8_is_written_to(trained):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "open_nvib", "inspect", str(trained.path), "the wär Δ"]
    done = subprocess.run(command, capture_output=True, env=ascii_only, check=True)
    assert b"\\xe4r" in done.stdout


def test_a_current_directory_that_was_removed_is_one_line(tmp_path):
    """A process of its own: the other commands of this one need their directory."""
    (tmp_path / "gone").mkdir()
    command = f'rmdir "$PWD"; exec {sys.executable} -m open_nvib train --config configs/small/nvae.yaml --output x'
    done = subprocess.run(command, shell=True, cwd=tmp_path / "gone", capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_plain_transformer_cannot_be_sampled(data, tmp_path, capsys):
    tiny = ["--model.d_model=16", "--optimiser.steps=1", "--optimiser.batch_size=16", "--watch.bleu_sentences=2"]
    main(["train", f"--data={data}", f"--output={tmp_path / 'run'}", "--model.bottleneck=t", *tiny])
    assert "prior" in fails(capsys, "sample", str(tmp_path / "run"))


def test_prepare_draws_the_lengths(tmp_path, capsys):
    """Into the output, once, where no other place is given."""
    text = tmp_path / "text.txt"
    words = ["river", "stone", "green", "walked", "winter", "quiet"]
    lines = [" ".join(words[(i * k) % 6] for k in range(1, 7 + i % 6)).capitalize() + f" {i}." for i in range(300)]
    text.write_text("\n".join(lines))
    arguments = ["prepare", "--source", str(text), "--output", str(tmp_path / "data"), "--vocab_size", "120"]
    arguments += ["--tokenizer_kind", "wordpiece"]
    for _ in range(2):
        main([*arguments, "--layout", "sentences", "--partitions", "{short: [5, 40]}"])
        assert f"length distributions: {tmp_path / 'data' / 'lengths.svg'}" in capsys.readouterr().out
    assert (tmp_path / "data" / "lengths.svg").stat().st_size > 1000


def test_configurations_come_with_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = Path("configs/small/nvae.yaml")
    assert find_config(str(name)).read_text().startswith("# nvib train")
    with pytest.raises(InputError, match=r"configs/none\.yaml"):
        find_config("configs/none.yaml")
    name.parent.mkdir(parents=True)
    name.write_text("seed: 1")
    assert find_config(str(name)).read_text() == "seed: 1"


CONFIG = "model: {heads: 2}\noptimiser: {steps: 7}\nloss: {delta: {start: 1, end: 0.5, to_step: 3}}\n"


@pytest.mark.parametrize("first", [False, True])
def test_options_win_over_the_file_wherever_they_stand(first, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(CONFIG)
    file, options = [f"--config={tmp_path / 'config.yaml'}"], ["--optimiser.steps", "5", "--loss.delta.end=0.25"]
    with pytest.raises(SystemExit) as stopped:
        main(["train", *(options + file if first else file + options), "--print_config"])
    assert stopped.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["optimiser"]["steps"], printed["model"]["heads"]) == (5, 2)
    assert (printed["loss"]["delta"]["start"], printed["loss"]["delta"]["end"]) == (1.0, 0.25)


def test_an_unknown_option_is_answered_with_the_one_that_was_meant(capsys):
    assert "--optimiser.steps" in fails(capsys, "train", "--output=x", "--optimizer.steps=3")
    assert "'d_model'" in fails(capsys, "train", "--output=x", "--model={d_modle: 3}")


def test_a_tracker_that_is_not_installed_is_one_line(data, tmp_path, capsys):
    arguments = ("--data", data, "--output", tmp_path / "run", "--optimiser.batch_size", "8")
    said = fails(capsys, "train", *arguments, "--watch.trackers", "[no_such_tracker]")
    assert "watch.trackers" in said
    assert "no_such_tracker" in said
    assert not (tmp_path / "run").exists()
