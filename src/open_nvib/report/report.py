"""`write_report` and `write_run_report`: results to a page, a Markdown file, figures, and the JSON behind them."""

from dataclasses import dataclass
from pathlib import Path

from open_nvib.report.cells import check_export, export
from open_nvib.report.content import document
from open_nvib.report.files import check_is_ours, write_document
from open_nvib.report.results import Results
from open_nvib.report.run_content import run_document
from open_nvib.store.files import InputError

CELLS = "cells"


@dataclass(frozen=True)
class Written:
    """What a report consists of: its page, and remarks for the one who asked for it."""

    page: Path
    remarks: tuple[str, ...] = ()


def write_report(results: Results, output: str | Path) -> Written:
    """Write `report.html`, `report.md`, `figures/` and `cells/` to `output`, anew each time.

    The page is self-contained. `cells/` has the result of every cell that is reported, so that the directory can be
    committed and reported again (`read_results(plan, output / "cells")`).
    """
    output = Path(output).expanduser()
    if not results.records:
        raise InputError(
            f"{results.plan.name}: none of the {results.wanted} cells has an evaluation {results.evaluation!r}, so "
            f"there is nothing to report. Run `nvib experiment run` first."
        )
    check_is_ours(output, ())  # before the figures are drawn
    check_export(results.cells, output / CELLS)
    page = write_document(document(results), output)
    return Written(page, tuple(export(results.cells, output / CELLS)))


def write_run_report(run: str | Path, output: str | Path | None = None) -> Written:
    """Write the report of one run directory, to the directory itself if not told otherwise."""
    run = Path(run).expanduser()
    target = run if output is None else Path(output).expanduser()
    check_is_ours(target, ())
    return Written(write_document(run_document(run), target))
