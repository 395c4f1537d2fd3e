"""An experiment on a real Ray cluster of two workers, one of which is killed; and addresses with no cluster."""

import json
import secrets
import shutil
import signal
import socket
import sys
import threading
from dataclasses import replace

import psutil
import pytest
from small_experiment import LONG, LONG_STEPS, cell_of, logged_steps, process_in_the_middle, result_of, wait_for

from open_nvib.cli import main
from open_nvib.experiments import engines
from open_nvib.experiments.cell import Outcome, read_result, read_state
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.cells import CellState
from open_nvib.store.files import write_json

SMALLEST_STORE = 80 * 2**20
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""Ray takes half a minute to be sure that a node is lost; here it is told to be quicker."""
AWAKE = {"worker_niceness": 0}
"""Ray's workers give way to everything else, and on a busy machine would take minutes to import torch."""


@pytest.fixture(scope="module", autouse=True)
def token():
    """A token of its own, before Ray is imported: the cluster is closed to others, and nobody's own token is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture
def cluster():
    """A head node that runs nothing, and two workers with one core each."""
    from ray import cluster_utils  # slow to import

    node = {"object_store_memory": SMALLEST_STORE, "include_dashboard": False}
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**node, "num_cpus": 0, "_system_config": {**QUICK, **AWAKE}}
    )
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=SMALLEST_STORE)
        yield made
    finally:
        made.shutdown()


def processes_of_workers(cluster) -> list[list[psutil.Process]]:
    """For each worker node its raylet and what that has started: all that ends when the machine does."""
    raylets = [psutil.Process(node.all_processes["raylet"][0].process.pid) for node in cluster.worker_nodes]
    return [[raylet, *raylet.children(recursive=True)] for raylet in raylets]


def test_table_completes_though_a_node_is_lost_in_the_middle_of_a_cell(cluster, experiment, capfd):
    """The lost cell goes on, on the other node, from its checkpoint. Then all is done and nothing is run again."""
    rows = {"long": {"config": "nvae.yaml", "overrides": LONG}, "t": {"config": "t.yaml"}}
    path = experiment(rows=rows)
    cell = cell_of(path, "long", 0)
    lost: list[int] = []

    def kill_node() -> None:
        pid = wait_for(lambda: process_in_the_middle(cell))
        (node,) = (node for node in processes_of_workers(cluster) if psutil.Process(pid) in node)
        for process in node:
            process.send_signal(signal.SIGKILL)
        lost.append(pid)

    killer = threading.Thread(target=kill_node)
    killer.start()
    run = ["experiment", "run", str(path), "--engine", "ray", "--address", cluster.address]
    main(run)
    killer.join()
    assert len(lost) == 1
    assert capfd.readouterr().out.endswith("4 cells: 4 done\n")  # after what Ray itself says of the lost node
    log = cell.log_file.read_text()
    assert log.count("going on from ") == 1
    resumed = int(log.partition("going on from ")[2].partition("checkpoint-")[2].split()[0])
    assert 0 < resumed < LONG_STEPS
    assert logged_steps(cell) == list(range(2, LONG_STEPS + 1, 2))
    for each in load_experiment(path).cells():
        assert json.loads(each.result_file.read_text())["train"]["step"] == (LONG_STEPS if each.row == "long" else 4)
    written = {file: file.stat().st_mtime_ns for file in load_experiment(path).output.rglob("*.json*")}
    main(run)
    assert {file: file.stat().st_mtime_ns for file in load_experiment(path).output.rglob("*.json*")} == written


@pytest.fixture
def listener():
    """Something that listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def fails(path, capfd, address: str) -> str:
    capfd.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", "run", str(path), "--engine", "ray", "--address", address])
    assert stopped.value.code == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("nvib: ")
    assert said.err.count("\n") == 1
    return said.err


def test_address_with_no_cluster_is_one_line(experiment, listener, capfd, monkeypatch, tmp_path):
    path = experiment()
    monkeypatch.setattr(engines, "RAY_ANSWER_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    assert "there is no Ray cluster (Connection refused)" in fails(path, capfd, f"127.0.0.1:{nobody}")
    assert "there is no Ray cluster (Connection refused)" in fails(path, capfd, f"ray://127.0.0.1:{nobody}")
    assert "there is no Ray cluster: what listens there" in fails(path, capfd, f"127.0.0.1:{listener}")
    for nonsense in ("", "nonsense", "host:", "host:port", ":6379", "host:99999"):
        assert "expected host:port" in fails(path, capfd, nonsense)
    assert not list((tmp_path / "out").glob("*"))


def test_ray_that_is_not_installed_is_one_line(experiment, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "ray is not installed" in fails(experiment(), capfd, "auto")


def test_results_of_a_worker_with_another_file_system_arrive(experiment):
    cell = cell_of(experiment(), "t", 0)
    record = CellState("done", cell.settings, seconds={"train": 1.0})
    write_json(cell.result_file, replace(result_of(cell), path=None))
    write_json(cell.state_file, record)
    done = Outcome(cell, "done").with_files()
    shutil.rmtree(cell.directory)
    done.write_files()
    assert (result := read_result(cell)) is not None
    assert replace(result, path=None) == result_of(cell)
    assert read_state(cell) == record
    write_json(cell.state_file, replace(record, state="failed"))
    cell.failure_file.write_text("Traceback")
    failed = Outcome(cell, "failed", "why").with_files()
    cell.failure_file.unlink()
    done.write_files()
    failed.write_files()
    assert read_state(cell) == replace(record, state="failed")
    assert cell.failure_file.read_text() == "Traceback"
