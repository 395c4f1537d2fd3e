"""Write reports: a page, a Markdown file, figures, and the results behind them."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from open_nvib.experiments.experiment import load_experiment
from open_nvib.report import html
from open_nvib.report.figures import style
from open_nvib.report.pages import GENERATED, Report, experiment_report, run_report
from open_nvib.report.results import Results, read_results
from open_nvib.store.cells import check_export, export_cells
from open_nvib.store.files import InputError, write_text
from open_nvib.store.runs import complete_replacement, is_run

PAGE, MARKDOWN, FIGURES, CELLS = "report.html", "report.md", "figures", "cells"


@dataclass(frozen=True)
class WrittenReport:
    """The path of the page of a report, and remarks for the user."""

    page: Path
    remarks: tuple[str, ...] = ()


def report_on(path: str | Path, *, output: str | Path | None = None, cells: str | Path | None = None) -> WrittenReport:
    """Write the report of an experiment's YAML file, or of a run directory.

    Args:
        path: the file or the directory.
        output: where to write; if not given, OUTPUT/report of the experiment, or the run directory.
        cells: a directory of results to read instead of the experiment's own.
    """
    for name, value in (("the path", path), ("--output", output), ("--cells", cells)):
        if value == "":
            raise InputError(f"{name} is empty, expected the name of a directory. Give one, or leave the option out.")
    path = Path(path).expanduser()
    if not os.path.exists(path):  # which is False, not an error, for a name that is too long
        raise InputError(f"{path}: there is no such file, expected an experiment's YAML or a run directory.")
    if not path.is_dir():
        experiment = load_experiment(path)
        results = read_results(experiment, cells or experiment.output, evaluation=experiment.evaluate.name)
        return write_report(results, output or experiment.output / "report")
    complete_replacement(path)
    if not is_run(path):
        raise InputError(
            f"{path}: this is not a run of open_nvib. Give an experiment's YAML file, or a directory that `nvib train` "
            f"wrote."
        )
    if cells is not None:
        raise InputError(f"{path}: --cells is for an experiment, and this is a run. Leave it out.")
    return write_run_report(path, output)


def write_report(results: Results, output: str | Path) -> WrittenReport:
    """Write `report.html`, `report.md`, `figures/` and `cells/` to `output`, anew each time.

    The page is self-contained. `cells/` has the result of every cell that is reported, so that the directory can be
    committed and reported again (`read_results(plan, output / "cells")`).
    """
    output = Path(output).expanduser()
    if not results.evaluations:
        raise InputError(
            f"{results.plan.name}: none of the {results.planned} cells has an evaluation {results.evaluation!r}, so "
            f"there is nothing to report. Run `nvib experiment run` first."
        )
    check_output(output)  # before the figures are drawn
    check_export(results.cells, output / CELLS)
    page = _write(experiment_report(results), output)
    return WrittenReport(page, tuple(export_cells(results.cells, output / CELLS)))


def write_run_report(run: str | Path, output: str | Path | None = None) -> WrittenReport:
    """Write the report of one run directory, to the directory itself if no output is given."""
    run = Path(run).expanduser()
    target = run if output is None else Path(output).expanduser()
    check_output(target)
    return WrittenReport(_write(run_report(run), target))


def run_page(run: str | Path) -> str:
    """Make the page of a run without writing it, for readers whom the directories of this machine do not concern."""
    return html.to_page(run_report(Path(run), public=True))


def check_output(output: Path, figures: Iterable[Path] = ()) -> None:
    """Raise an InputError if a file that would be written exists and was not written by a report."""
    for path in (output, output / FIGURES):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: is a file, expected a directory for the report. Give another --output.")
    for path in (output / PAGE, output / MARKDOWN, *figures):
        if path.exists() and not _is_ours(path):
            raise InputError(
                f"{path}: exists and was not written by `nvib report`, so it is left alone. Give another --output, or "
                f"remove it first."
            )


def _write(report: Report, output: Path) -> Path:
    """Write the page, the Markdown and the figures, and nothing if one of them is not ours. Returns the page."""
    texts = {output / FIGURES / f"{name}.svg": svg for name, svg in report.figures.items()}
    check_output(output, texts)
    texts |= {output / MARKDOWN: report.markdown, output / PAGE: html.to_page(report)}
    (output / FIGURES).mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text)
    for old in (output / FIGURES).glob("*.svg"):
        if old not in texts and _is_ours(old):
            old.unlink()  # of an earlier report; nothing links to it any more
    return output / PAGE


def _is_ours(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(mark in text for mark in (html.MARK, GENERATED, style.MARK))
