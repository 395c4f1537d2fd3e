"""What `nvib report` does with what it is given."""

from pathlib import Path

from open_nvib.errors import InputError
from open_nvib.report.paper import PAPER
from open_nvib.report.report import Written, write_report, write_run_report
from open_nvib.report.results import Plan, RowPlan, read_results


def report(path: str | Path, *, output: str | Path | None = None, cells: str | Path | None = None) -> Written:
    """The report of an experiment's YAML file, or of a run directory.

    Args:
        path: the file or the directory.
        output: where to write; if not given, OUTPUT/report of the experiment, or the run directory.
        cells: a directory of results to read instead of the experiment's own.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        _check_is_run(path)
        if cells is not None:
            raise InputError(f"{path}: --cells is for an experiment, and this is a run. Leave it out.")
        return write_run_report(path, output)
    if not path.exists():
        raise InputError(f"{path}: there is no such file, wanted an experiment's YAML or a run directory.")
    plan, results = plan_of(path)
    return write_report(read_results(plan, results if cells is None else cells), output or results / "report")


def plan_of(file: Path) -> tuple[Plan, Path]:
    """The plan of an experiment, and where its results are."""
    from open_nvib.experiments.experiment import load_experiment  # pyright: ignore[reportMissingImports]

    experiment = load_experiment(file)
    rows = tuple(
        RowPlan(name, tuple(row.seeds), row.label, row.paper or (name if name in PAPER else None))
        for name, row in experiment.rows.items()
    )
    title = experiment.title or experiment.name
    return Plan(experiment.name, title, experiment.scale, rows), Path(experiment.output)


def _check_is_run(path: Path) -> None:
    from open_nvib.text.run import is_run

    if not is_run(path):
        raise InputError(
            f"{path}: this is not a run of open_nvib. Give an experiment's YAML file, or a directory that `nvib train` "
            f"wrote."
        )
