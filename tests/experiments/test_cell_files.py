"""The files of a cell: what is somebody else's stays, and one bad place does not stop the rest."""

import json
import os
import socket
from dataclasses import replace

import pytest
from small_experiment import cell_of

from open_nvib.experiments.cell import read_state, run_cell
from open_nvib.experiments.engines import Processes, Serial, run_with_log
from open_nvib.experiments.experiment import check_recipe
from open_nvib.store.cells import CellState
from open_nvib.store.files import InputError, write_json
from open_nvib.store.task_settings import PrepareConfig


def silent(text: str) -> None:
    """Says nothing."""


@pytest.fixture
def cell(experiment):
    return cell_of(experiment(), "t", 0)


def put(*names: str):
    """Puts a directory where a file of the cell belongs."""
    return lambda cell: cell.directory.joinpath(*names).mkdir(parents=True)


def put_file(cell) -> None:
    """Puts a file where the cell's directory belongs."""
    cell.directory.parent.mkdir(parents=True)
    cell.directory.write_text("mine")


BAD = {
    "directory": (put_file, "seed-0'"),
    "state": (put("cell.json", "mine"), "cell.json: "),
    "result": (put("result.json", "mine"), "result.json: "),
    "log": (put("log.txt", "mine"), "log.txt: "),
    "failure": (put("failure.log", "mine"), "failure.log: "),
    "lock": (put(".lock", "mine"), ".lock"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_stands_in_the_way_of_a_cell_is_its_outcome_and_stays(name, cell):
    make, what = BAD[name]
    make(cell)
    before = sorted(cell.directory.parent.rglob("*"))
    outcomes = [run_cell(cell, say=silent), run_with_log(cell, overwrite=False, folder=os.getcwd(), threads=1)]
    outcomes += Serial().run([cell], overwrite=False, say=silent)
    if name != "lock":  # which only the child itself would see
        outcomes += Processes(1).run([cell], overwrite=False, say=silent)
    assert {outcome.state for outcome in outcomes} == {"failed"}
    assert all(what in outcome.reason for outcome in outcomes)
    assert not any("\n" in outcome.reason for outcome in outcomes)
    after = sorted(path for path in cell.directory.parent.rglob("*") if path.name not in (".lock", "log.txt"))
    assert after == [path for path in before if path.name not in (".lock", "log.txt")]


def test_a_result_of_somebody_else_is_left_alone(cell):
    cell.directory.mkdir(parents=True)
    cell.result_file.write_text('{"mine": 1}')
    outcome = run_cell(cell, say=silent)
    assert outcome.state == "failed"
    assert "result.json: " in outcome.reason
    assert [file.name for file in cell.directory.iterdir()] == ["result.json"]
    assert cell.result_file.read_text() == '{"mine": 1}'


def test_a_result_stays_until_there_is_a_new_one_and_files_in_the_run_stay(cell, tmp_path):
    assert run_cell(cell, say=silent).state == "done"
    before = cell.result_file.read_bytes()
    notes = cell.run / "notes.txt"
    notes.write_text("mine")
    lost = replace(cell, train=replace(cell.train, data=str(tmp_path / "nowhere")))
    assert run_cell(lost, say=silent, overwrite=True).state == "failed"
    assert cell.result_file.read_bytes() == before
    other = replace(cell, train=replace(cell.train, optimiser=replace(cell.train.optimiser, steps=2)))
    assert run_cell(other, say=silent, overwrite=True).state == "done"
    assert json.loads(cell.result_file.read_text())["train"]["step"] == 2
    assert notes.read_text() == "mine"


def test_a_process_of_the_same_number_that_does_not_hold_the_cell_is_another_one(cell):
    state = CellState("running", cell.settings, host=socket.gethostname(), pid=os.getppid())
    write_json(cell.state_file, state)
    assert run_cell(cell, say=silent).state == "done"
    assert (known := read_state(cell)) is not None
    assert known.state == "done"


def test_prepared_data_is_known_by_its_recipe_where_its_source_is_gone(data, tmp_path):
    config = PrepareConfig(
        source=str(tmp_path / "corpus.txt"),
        output=str(data),
        layout="sentences",
        partitions={"short": [5, 24]},
        vocab_size=250,
        tokenizer_kind="wordpiece",
    )
    check_recipe(config)
    for changes, what in (({"source": str(tmp_path / "else.txt")}, "source"), ({"seed": 1}, "seed")):
        with pytest.raises(InputError, match=rf"\({what} was"):
            check_recipe(replace(config, **changes))
