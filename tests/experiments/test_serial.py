"""An experiment one cell after another: to its results, and never twice."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from small_experiment import cell_of, logged_steps

from open_nvib.cli import main
from open_nvib.experiments.cell import read_result, read_state, run_cell
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.cells import CellState
from open_nvib.store.files import write_json


def silent(text: str) -> None:
    """Says nothing."""


def run(path, *options: str) -> int:
    """The exit code."""
    try:
        main(["experiment", "run", str(path), *options])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def files_of(path) -> dict[str, int]:
    """Every file with the time at which it was last written, locks left out."""
    output = load_experiment(path).output
    return {str(file): file.stat().st_mtime_ns for file in output.rglob("*") if file.is_file() and file.name != ".lock"}


def test_every_cell_comes_to_its_result_and_is_not_run_again(experiment, capsys):
    path = experiment()
    assert run(path) == 0
    assert capsys.readouterr().out == "4 cells: 4 done\n"
    losses = set()
    for cell in load_experiment(path).cells():
        result = json.loads(cell.result_file.read_text())
        assert (result["row"], result["seed"], result["paper"]) == (cell.row, cell.seed, cell.row)
        assert result["label"] == {"t": "t", "nvae": "NVAE"}[cell.row]
        assert result["train"]["step"] == 4
        losses.add(result["train"]["validation"]["loss"])
        assert result["seconds"].keys() == {"train", "evaluate"}
        assert result["evaluations"]["validation-causal"]["seed"] == cell.seed
        assert result["evaluations"]["validation-causal"]["settings"]["sentences"] == 6
        state = read_state(cell)
        assert state is not None
        assert (state.state, state.settings, state.pid) == ("done", cell.settings, None)
        assert not list(cell.directory.glob("*.partial"))
    assert len(losses) == 4
    before = files_of(path)
    assert run(path) == 0
    assert files_of(path) == before
    assert capsys.readouterr().out == "4 cells: 4 done\n"


def test_a_row_can_be_called_something_else_later(experiment):
    row = {"config": "t.yaml", "label": "T"}
    path = experiment(rows={"t": row}, seeds=[0])
    assert run(path) == 0
    cell = cell_of(path, "t", 0)
    before = json.loads(cell.result_file.read_text())
    experiment(rows={"t": {**row, "label": "Transformer"}}, seeds=[0])
    assert run(path) == 0
    assert json.loads(cell.result_file.read_text()) == {**before, "label": "Transformer"}


def test_a_cell_that_fails_does_not_stop_the_rest(experiment, data, tmp_path, capsys):
    """One has no data, one a learning rate with which the loss is not finite, and one is well."""
    rows = {
        "lost": {"config": "t.yaml", "overrides": {"data": str(tmp_path / "nowhere")}},
        "wild": {"config": "nvae.yaml", "overrides": {"optimiser": {"learning_rate": 1e30, "clip": 0}}},
        "fine": {"config": "t.yaml"},
    }
    path = experiment(rows=rows, seeds=[0])
    assert run(path) == 1
    out = capsys.readouterr().out
    assert "3 cells: 1 done, 2 failed" in out
    assert "lost seed 0 failed: " in out
    cells = {cell.row: cell for cell in load_experiment(path).cells()}
    assert "Traceback" in cells["wild"].failure_file.read_text()
    state = read_state(cells["wild"])
    assert state is not None
    assert "not finite" in (state.reason or "")
    assert "\n" not in (state.reason or "")
    main(["experiment", "status", str(path)])
    shown = capsys.readouterr().out
    assert "wild seed 0 failed: " in shown
    assert "1 done, 2 failed" in shown
    assert run(path, "--retry-failed", "false") == 1
    assert "3 cells: 1 done, 2 failed" in capsys.readouterr().out
    (tmp_path / "nowhere").symlink_to(data)  # the data was found
    assert run(path, "--rows", "lost", "fine") == 0
    assert not cells["lost"].failure_file.exists()


def test_data_that_is_missing_is_prepared_and_another_recipe_is_an_error(experiment, data, tmp_path, capsys):
    recipe = {
        "source": str(data.parent / "corpus.txt"),
        "layout": "sentences",
        "partitions": {"short": [5, 24]},
        "tokenizer_kind": "wordpiece",
        "vocab_size": 250,
        "workers": 1,
        "output": str(tmp_path / "mine"),
    }
    defaults = {"model": {"d_model": 8, "ffn_size": 8}, "optimiser": {"steps": 1, "batch_size": 8}}
    path = experiment(prepare=recipe, defaults=defaults, seeds=[0], rows={"t": {"config": "t.yaml"}})
    assert run(path) == 0
    record = (tmp_path / "mine" / "recipe.json").read_text()
    experiment(prepare={**recipe, "vocab_size": 240}, defaults=defaults, seeds=[0], rows={"t": {"config": "t.yaml"}})
    capsys.readouterr()
    assert run(path) == 2
    assert "vocab_size" in capsys.readouterr().err
    assert (tmp_path / "mine" / "recipe.json").read_text() == record


def test_source_that_is_missing_is_one_line(experiment, tmp_path, capsys):
    path = experiment(prepare={"source": str(tmp_path / "nowhere.txt"), "output": str(tmp_path / "mine")})
    assert run(path) == 2
    assert "nowhere.txt" in capsys.readouterr().err


def test_other_settings_are_an_error_unless_overwritten(experiment, capsys):
    one = {"rows": {"t": {"config": "t.yaml"}}, "seeds": [0]}
    path = experiment(**one)
    assert run(path) == 0
    before = files_of(path)
    experiment(**one, evaluate={"sentences": 5, "measure": ["reconstruction"]})
    assert run(path) == 2
    assert "(evaluate.sentences)" in capsys.readouterr().err
    assert files_of(path) == before
    cell = cell_of(path, "t", 0)
    assert run(path, "--overwrite") == 0
    assert json.loads(cell.result_file.read_text())["evaluations"]["validation-causal"]["settings"]["sentences"] == 5
    log = cell.run / "log.jsonl"
    assert log.stat().st_mtime_ns == before[str(log)]  # trained with the same settings, so only measured again

    defaults = {**load_defaults(path), "optimiser": {"steps": 2, "batch_size": 16}}
    experiment(**one, defaults=defaults)
    assert run(path, "--overwrite") == 0
    assert json.loads(cell.result_file.read_text())["train"]["step"] == 2


def load_defaults(path) -> dict:
    return yaml.safe_load(path.read_text())["defaults"]


def test_a_setting_that_is_newer_than_the_record_is_no_change(experiment):
    """Finished cells outlive a version that adds a setting, as long as that setting has its default."""
    path = experiment()
    cell = cell_of(path, "t", 0)
    run_cell(cell, say=silent)
    state = json.loads(cell.state_file.read_text())
    del state["settings"]["train"]["model"]["tie_word_embeddings"], state["settings"]["evaluate"]["seed"]
    cell.state_file.write_text(json.dumps(state))
    assert run_cell(cell, say=silent).state == "kept"
    other = replace(cell, train=replace(cell.train, model=replace(cell.train.model, tie_word_embeddings=True)))
    outcome = run_cell(other, say=silent)
    assert outcome.state == "failed"
    assert "(train.model.tie_word_embeddings)" in outcome.reason


HOLD = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_cell_that_another_process_holds_is_left_to_it_and_is_free_when_that_dies(experiment):
    cell = cell_of(experiment(), "t", 0)
    cell.directory.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(cell.directory / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert run_cell(cell, say=silent).state == "busy"
        assert not cell.run.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert run_cell(cell, say=silent).state == "done"


def test_signs_of_life_from_elsewhere_are_respected_where_locks_do_not_reach(experiment):
    cell = cell_of(experiment(), "t", 0)
    write_json(cell.state_file, CellState("running", cell.settings, phase="train", host="elsewhere", pid=1))
    assert run_cell(cell, say=silent).state == "busy"
    os.utime(cell.state_file, (0, 0))
    assert run_cell(cell, say=silent).state == "done"


def interrupt_the_evaluation(cell, monkeypatch) -> None:
    """Ctrl-C when the cell is trained and not yet measured."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("open_nvib.evaluation.evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, say=silent)


def forget_a_setting(cell) -> None:
    """Make the files of a cell those of a version that did not have `model.kappa` yet."""
    state = json.loads(cell.state_file.read_text())
    del state["settings"]["train"]["model"]["kappa"]
    cell.state_file.write_text(json.dumps({**state, "started": "2020-01-01T00:00:00+00:00"}))
    config = yaml.safe_load((cell.run / "config.yaml").read_text())
    del config["model"]["kappa"]
    (cell.run / "config.yaml").write_text(yaml.safe_dump(config))
    (cell.run / "manifest.json").unlink(missing_ok=True)


def test_an_interrupted_cell_goes_on_from_its_checkpoint(experiment, monkeypatch, capsys):
    """Ctrl-C in the evaluation: the training is not repeated, and the time it took is not forgotten."""
    cell = cell_of(experiment(), "nvae", 0)
    interrupt_the_evaluation(cell, monkeypatch)
    state = read_state(cell)
    assert state is not None
    assert (state.state, state.phase, state.pid) == ("running", "evaluate", None)
    trained = (cell.run / "log.jsonl").stat().st_mtime_ns
    assert run_cell(cell, say=silent).state == "done"
    assert (result := read_result(cell)) is not None
    assert result.seconds["train"] >= state.seconds["train"] > 0
    assert (cell.run / "log.jsonl").stat().st_mtime_ns == trained
    assert logged_steps(cell) == [2, 4]


@pytest.mark.parametrize("name", ["cell.json", "result.json"])
def test_a_damaged_record_is_no_result(name, experiment):
    cell = cell_of(experiment(), "t", 0)
    other = '{"state": "done"}' if name == "cell.json" else '{"row": "t", "seed": 1, "evaluations": {}}'
    for damage in ("{", "{}", other):
        assert run_cell(cell, say=silent).state == "done"
        (cell.directory / name).write_text(damage)
    assert run_cell(cell, say=silent).state == "done"
    assert json.loads(cell.result_file.read_text())["row"] == "t"


def test_output_that_cannot_be_written_is_one_line(experiment, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(experiment(output=str(tmp_path / "file" / "out"))) == 2
    assert str(tmp_path / "file" / "out") in capsys.readouterr().err


def test_an_interrupted_cell_older_than_a_setting_is_not_trained_again_under_overwrite(experiment, monkeypatch):
    cell = cell_of(experiment(), "nvae", 0)
    interrupt_the_evaluation(cell, monkeypatch)
    forget_a_setting(cell)
    trained = (cell.run / "log.jsonl").stat().st_mtime_ns
    assert run_cell(cell, say=silent, overwrite=True).state == "done"
    assert (cell.run / "log.jsonl").stat().st_mtime_ns == trained


def test_an_interrupted_cell_older_than_a_setting_keeps_its_start_and_its_seconds(experiment, monkeypatch):
    cell = cell_of(experiment(), "nvae", 0)
    interrupt_the_evaluation(cell, monkeypatch)
    forget_a_setting(cell)
    before = json.loads(cell.state_file.read_text())
    before["seconds"]["train"] = 1000.0
    cell.state_file.write_text(json.dumps(before))
    assert run_cell(cell, say=silent).state == "done"
    state = read_state(cell)
    assert state is not None
    assert state.started == before["started"]
    assert state.seconds["train"] >= 1000
