"""`nvib experiment run` and `nvib experiment status`."""

import json
import sys
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli.tools import OneLineParser

if TYPE_CHECKING:
    from open_nvib.experiments.engines import Engine


def describe_experiment(parser: ArgumentParser) -> None:
    commands = parser.add_subcommands(dest="action")
    run = OneLineParser(prog="nvib experiment run", description=RUN)
    _add_cells(run)
    run.add_argument("--engine", choices=list(ENGINES), default="serial", help=HELP_ENGINE)
    run.add_argument("--workers", type=int | None, default=None, help="of processes: how many; one for each core")
    run.add_argument("--address", type=str, default="auto", help=HELP_ADDRESS)
    run.add_argument("--cpus-per-cell", type=float, default=1, help="of ray: cores that a cell takes")
    run.add_argument("--gpus-per-cell", type=float, default=0, help="of ray: GPUs that a cell takes, or a part of one")
    run.add_argument("--overwrite", action="store_true", help="replace cells that were run with other settings")
    run.add_argument("--retry-failed", type=bool, default=True, help="whether cells that failed are tried again")
    commands.add_subcommand("run", run, help=RUN)
    status = OneLineParser(prog="nvib experiment status", description=STATUS)
    _add_cells(status)
    status.add_argument("--json", action="store_true", help="print JSON")
    commands.add_subcommand("status", status, help=STATUS)


RUN = "Run every cell that is not done; what was interrupted goes on, what failed is tried again."
ENGINES = ("serial", "processes", "ray")
HELP_ENGINE = "serial: one cell after another; processes: several at once; ray: on a Ray cluster"
HELP_ADDRESS = "of ray: host:port of the head node, ray://host:port, auto, or local to start one here"
STATUS = "Show which cells are done, running, interrupted, failed and waiting."


def _add_cells(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=str, help="the experiment, such as experiments/table.yaml")
    parser.add_argument("--rows", type=str, nargs="+", default=[], help="only these rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="only these seeds")


def run_experiment(given: Namespace) -> None:
    {"run": _run, "status": _status}[given.action](given[given.action])


def _run(given: Namespace) -> None:
    from open_nvib.experiments.experiment import load_experiment
    from open_nvib.experiments.run import run_experiment, summary

    experiment = load_experiment(given.file)
    outcomes = run_experiment(
        experiment,
        experiment.cells(given.rows, given.seeds),
        _engine(given),
        overwrite=given.overwrite,
        retry_failed=given.retry_failed,
        say=_say,
    )
    print(summary(outcomes))
    if any(outcome.state == "failed" for outcome in outcomes):
        raise SystemExit(1)


def _engine(given: Namespace) -> "Engine":
    from open_nvib.experiments.engines import Processes, Ray, Serial

    if given.engine == "processes":
        return Processes(given.workers)
    if given.engine == "ray":
        return Ray(given.address, cpus=given.cpus_per_cell, gpus=given.gpus_per_cell)
    return Serial()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _status(given: Namespace) -> None:
    from open_nvib.experiments.experiment import load_experiment
    from open_nvib.experiments.run import show_status, status_as_json, status_of

    experiment = load_experiment(given.file)
    statuses = [status_of(cell) for cell in experiment.cells(given.rows, given.seeds)]
    print(
        json.dumps(status_as_json(experiment, statuses), indent=1) if given.json else show_status(experiment, statuses)
    )
