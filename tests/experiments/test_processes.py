"""An experiment on several processes, some of which die."""

import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from small_experiment import LONG, LONG_STEPS, cell_of, logged_steps, process_in_the_middle, wait_for

from open_nvib.cli import main
from open_nvib.experiments.engines import Processes
from open_nvib.experiments.experiment import load_experiment
from open_nvib.experiments.run import status_of

LONG_ROW = {"rows": {"long": {"config": "nvae.yaml", "overrides": LONG}}, "seeds": [0]}


@pytest.mark.slow
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


@pytest.mark.parametrize("end", [pytest.param("killed", marks=pytest.mark.slow), "Ctrl-C"])
def test_a_worker_ends_with_the_command_that_started_it(end, experiment):
    """And before it has trained; the cell can be resumed."""
    path = experiment(**LONG_ROW)
    cell = cell_of(path, "long", 0)
    command = [sys.executable, "-m", "open_nvib", "experiment", "run", str(path), "--engine", "processes"]
    # A shell's background jobs ignore Ctrl-C, and so would the command if the tests run in one.
    options = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as parent:
        worker = psutil.Process(wait_for(lambda: process_in_the_middle(cell)))
        assert worker.ppid() == parent.pid
        if end == "killed":
            parent.kill()
        else:
            os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: the worker gets it, too
        worker.wait(timeout=120)
        assert parent.stderr is not None
        assert "Traceback" not in parent.stderr.read()
    assert parent.returncode == (-signal.SIGKILL if end == "killed" else 130)
    assert status_of(cell).state == "interrupted"
    assert logged_steps(cell)[-1] < LONG_STEPS
    assert "Traceback" not in cell.log_file.read_text()


SCRIPT = """
import os
from open_nvib.experiments.engines import Processes
from open_nvib.experiments.experiment import load_experiment
from open_nvib.experiments.run import run_experiment

with open("started", "a") as file:
    print(os.getpid(), file=file)
experiment = load_experiment("tiny.yaml")
outcomes = run_experiment(experiment, experiment.cells(["t"], [0]), Processes(1), say=lambda text: None)
print([outcome.state for outcome in outcomes])
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_run_once(experiment):
    folder = experiment().parent
    (folder / "script.py").write_text(SCRIPT)
    found = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert found.stdout == "['done']\n"
    assert len((folder / "started").read_text().splitlines()) == 1


def test_engines_are_imported_without_torch():
    """A worker's number of threads is in its environment before torch, which reads it once, is imported."""
    program = "import sys, open_nvib.experiments.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_threads_are_those_that_the_user_says(monkeypatch):
    """One worker runs as the serial engine does; OMP_NUM_THREADS counts for any number of workers."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Processes(1).threads is None
    assert Processes(10_000).threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Processes(10_000).threads is None
