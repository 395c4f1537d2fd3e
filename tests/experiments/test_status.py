"""What `nvib experiment status` says of cells in every state."""

import json
import os
import socket
import subprocess
import sys

import pytest
from small_experiment import cell_of, result_of

from open_nvib.cli import main
from open_nvib.experiments.experiment import load_experiment
from open_nvib.experiments.run import CellStatus, duration, seconds_left, status_of
from open_nvib.store.cells import CellState
from open_nvib.store.files import InputError, as_builtins, read_record, write_json


def write_state(cell, name: str, **entries: object) -> None:
    cell.directory.mkdir(parents=True, exist_ok=True)
    record = {"state": name, "settings": as_builtins(cell.settings), "host": socket.gethostname(), **entries}
    cell.state_file.write_text(json.dumps(record))


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def started(experiment):
    """Two rows × two seeds: done, running, failed and waiting."""
    path = experiment()
    done, running, failed = cell_of(path, "t", 0), cell_of(path, "t", 1), cell_of(path, "nvae", 0)
    write_state(done, "done", seconds={"train": 60.0, "evaluate": 3672.0})
    write_json(done.result_file, result_of(done))
    write_state(running, "running", pid=os.getpid(), phase="train", seconds={"train": 75.0})
    running.run.mkdir()
    (running.run / "log.jsonl").write_text('{"step": 2, "loss": 1}\n{"step": 3, "eval_loss": 1}\n{"st')
    write_state(failed, "failed", reason="the data is gone", seconds={})
    return path


def test_table(started, capsys):
    main(["experiment", "status", str(started)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[1:3]] == ["t", "nvae"]
    assert lines[0].split() == ["seed", "0", "seed", "1"]
    assert lines[1].split(maxsplit=3) == ["t", "done", "1h02m", "running: train 3/4 1m15s"]
    assert lines[2].split() == ["nvae", "failed", "0s", "waiting"]
    assert lines[3] == "nvae seed 0 failed: the data is gone"
    assert lines[4].endswith(
        "4 cells in " + str(load_experiment(started).output) + ": 1 done, 1 running, 1 failed, 1 waiting"
    )


def test_json(started, capsys):
    main(["experiment", "status", str(started), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["totals"] == {"done": 1, "running": 1, "interrupted": 0, "failed": 1, "waiting": 1}
    states = {(cell["row"], cell["seed"]): cell for cell in found["cells"]}
    assert states["t", 1]["step"] == 3
    assert states["t", 1]["steps"] == 4
    assert states["nvae", 0]["reason"] == "the data is gone"
    assert states["nvae", 1]["state"] == "waiting"


def test_how_long_is_left(started, capsys):
    """A step takes 25 s, so 9 that are left take 225 s; the cell that is done has no log."""
    main(["experiment", "status", str(started)])
    assert capsys.readouterr().out.splitlines()[-1] == "about 3h07m left, with 1 at a time"  # 225 s and 3 × 3,672 s
    main(["experiment", "status", str(started), "--rows", "nvae"])
    assert "at a time" not in capsys.readouterr().out  # nothing was trained


def test_what_is_left_is_measured_by_row_and_shared_by_those_that_run():
    done = CellStatus("fast", 0, "done", step=100, steps=100, seconds=130.0, training_seconds=100.0)
    half = CellStatus("slow", 0, "running", "train", step=50, steps=100, seconds=100.0, training_seconds=100.0)
    measured = CellStatus("fast", 1, "running", "evaluate", step=100, steps=100, seconds=110.0, training_seconds=100.0)
    waiting = CellStatus("slow", 1, "waiting")
    assert seconds_left([done]) == 0
    assert seconds_left([done, half]) == 100 + 30
    assert seconds_left([done, half, measured]) == (100 + 30 + 20) / 2
    assert seconds_left([done, half, measured, waiting]) == (100 + 30 + 20 + 200 + 30) / 2
    assert seconds_left([waiting]) is None


def test_rows_and_seeds_are_chosen(started, capsys):
    main(["experiment", "status", str(started), "--rows", "t", "--seeds", "1"])
    assert "1 cell in" in capsys.readouterr().out


def test_interrupted_is_what_nobody_runs_any_more(experiment):
    cell = cell_of(experiment(), "t", 0)
    write_state(cell, "running", pid=os.getpid())
    assert status_of(cell).state == "running"
    os.utime(cell.state_file, (0, 0))  # no sign of life for long
    assert status_of(cell).state == "interrupted"
    write_state(cell, "running", pid=dead_process())
    assert status_of(cell).state == "interrupted"
    write_state(cell, "running", pid=dead_process(), host="elsewhere")  # where one cannot look
    assert status_of(cell).state == "running"
    write_state(cell, "done")  # and yet there is no result
    assert status_of(cell).state == "interrupted"


def test_steps_are_told_by_the_data_where_epochs_are_given(experiment):
    path = experiment(defaults={"optimiser": {"epochs": 3, "batch_size": 16}})
    cell = cell_of(path, "t", 0)
    write_state(cell, "running", pid=os.getpid())
    assert status_of(cell).steps is None
    cell.run.mkdir()
    (cell.run / "lengths.json").write_text('{"lengths": [0, 20, 15]}')  # two batches of 16, and three over
    assert status_of(cell).steps == 6


DAMAGED = {"pid": "abc", "seconds": {"train": "long"}, "state": "asleep", "settings": 3, "reason": [], "host": None}
DAMAGED |= {"phase": {}, "started": 5, "finished": 1.5}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_says_nothing(name, experiment):
    """Asked of the reader, too: here the types of a record would be checked as it is made, elsewhere they are not."""
    cell = cell_of(experiment(), "t", 0)
    write_state(cell, "running", pid=os.getpid())
    assert status_of(cell).state == "running"
    write_state(cell, "running", **{"pid": os.getpid(), name: DAMAGED[name]})
    with pytest.raises(InputError, match=name):
        read_record(cell.state_file, CellState, fix="")
    assert status_of(cell).state == "waiting"


def test_an_entry_of_a_later_version_is_passed_over(experiment):
    cell = cell_of(experiment(), "t", 0)
    write_state(cell, "running", pid=os.getpid(), more=1)
    assert status_of(cell).state == "running"


@pytest.mark.parametrize("damage", ["[]", '{"step": "three"}', '{"steps": 3}', "{" * 9999 + "}", "3}"])
def test_a_damaged_log_tells_no_step(damage, experiment):
    cell = cell_of(experiment(defaults={}), "t", 0)
    write_state(cell, "running", pid=os.getpid())
    cell.run.mkdir()
    (cell.run / "log.jsonl").write_text(f"{damage}\n")
    (cell.run / "lengths.json").write_text(f'{{"lengths": ["{len(damage)}"]}}')
    assert (status_of(cell).step, status_of(cell).steps) == (None, None)


def test_duration():
    assert [duration(seconds) for seconds in (0.4, 59.6, 60, 3599, 3600, 90000)] == [
        "0s",
        "1m00s",
        "1m00s",
        "59m59s",
        "1h00m",
        "25h00m",
    ]
