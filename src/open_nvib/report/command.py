"""What `nvib report` does with what it is given."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from open_nvib.report.report import Written, write_report, write_run_report
from open_nvib.report.results import Plan, RowPlan, read_results
from open_nvib.store.files import InputError

if TYPE_CHECKING:
    from open_nvib.experiments.experiment import Experiment


def report(path: str | Path, *, output: str | Path | None = None, cells: str | Path | None = None) -> Written:
    """The report of an experiment's YAML file, or of a run directory.

    Args:
        path: the file or the directory.
        output: where to write; if not given, OUTPUT/report of the experiment, or the run directory.
        cells: a directory of results to read instead of the experiment's own.
    """
    for name, value in (("the path", path), ("--output", output), ("--cells", cells)):
        if value == "":
            raise InputError(f"{name} is empty, wanted the name of a directory. Give one, or leave the option out.")
    path = Path(path).expanduser()
    if os.path.isdir(path):  # which is False, not an error, for a name that is too long
        _check_is_run(path)
        if cells is not None:
            raise InputError(f"{path}: --cells is for an experiment, and this is a run. Leave it out.")
        return write_run_report(path, output)
    if not os.path.exists(path):
        raise InputError(f"{path}: there is no such file, wanted an experiment's YAML or a run directory.")
    from open_nvib.experiments.experiment import load_experiment

    experiment = load_experiment(path)
    kind = f"{experiment.evaluate.split}-{experiment.evaluate.scorer}"
    results = read_results(plan_of(experiment), experiment.output if cells is None else cells, evaluation=kind)
    return write_report(results, experiment.output / "report" if output is None else output)


def plan_of(experiment: "Experiment") -> Plan:
    """The part of an experiment that a report needs."""
    rows = tuple(RowPlan(row.name, row.seeds, row.label, row.paper) for row in experiment.rows)
    return Plan(experiment.name, experiment.title, experiment.scale, rows)


def _check_is_run(path: Path) -> None:
    from open_nvib.text.using.run import is_run

    if not is_run(path):
        raise InputError(
            f"{path}: this is not a run of open_nvib. Give an experiment's YAML file, or a directory that `nvib train` "
            f"wrote."
        )
