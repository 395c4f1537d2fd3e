"""An experiment on several processes, some of which die."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
from small_experiment import LONG, LONG_STEPS, cell_of, logged_steps, process_in_the_middle, wait_for

from open_nvib.cli import main
from open_nvib.experiments.engines.processes import WORK
from open_nvib.experiments.experiment import load_experiment
from open_nvib.experiments.status import status_of


def test_a_killed_worker_fails_its_cell_and_the_rest_goes_on(experiment, capsys):
    """Three cells for two processes: the last one starts when the first is dead or the second is done."""
    rows = {"long": {"config": "nvae.yaml", "overrides": LONG, "seeds": [0]}, "t": {"config": "t.yaml"}}
    path = experiment(rows=rows)
    cell = cell_of(path, "long", 0)

    def kill() -> None:
        pid = wait_for(lambda: process_in_the_middle(cell))
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", "run", str(path), "--engine", "processes", "--workers", "2"])
    killer.join()
    assert stopped.value.code == 1
    out = capsys.readouterr().out
    assert "long seed 0 failed: its process was killed by SIGKILL" in out
    assert "3 cells: 2 done, 1 failed" in out
    assert status_of(cell).state == "failed"
    assert 20 <= logged_steps(cell)[-1] < LONG_STEPS
    for other in load_experiment(path).cells(["t"]):
        assert json.loads(other.result_file.read_text())["train"]["step"] == 4
        assert "4/4 training" in other.log_file.read_text()

    main(["experiment", "run", str(path)])
    said = capsys.readouterr()
    assert said.out == "3 cells: 3 done\n"
    assert "going on from " in said.err
    assert logged_steps(cell) == list(range(2, LONG_STEPS + 1, 2))


def test_a_worker_ends_with_the_process_that_started_it(experiment):
    """Even if that is killed, which is to the worker the end of its standard input; the cell can be resumed."""
    path = experiment(rows={"long": {"config": "nvae.yaml", "overrides": LONG}}, seeds=[0])
    cell = cell_of(path, "long", 0)
    with subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        pickle.dump((cell, {"folder": os.getcwd(), "overwrite": False, "wait": 0.0, "threads": 1}), worker.stdin)
        worker.stdin.flush()
        assert wait_for(lambda: process_in_the_middle(cell)) == worker.pid
        worker.stdin.close()
        assert worker.wait(timeout=30) == 1
    assert status_of(cell).state == "interrupted"
    assert logged_steps(cell)[-1] < LONG_STEPS
