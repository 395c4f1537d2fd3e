"""Results of a small experiment, and its report."""

from pathlib import Path

import pytest
from factory import make_cell, make_plan, write_cell

from open_nvib.report import Results, read_results, write_report


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Five rows: one without generation, one with three seeds, one of whose two seeds is missing, one with none."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, bleu in enumerate((61.0, 67.0, 79.0)):
        write_cell(folder, make_cell("nvae-0.01", seed, bleu=bleu, kept=0.43 + 0.02 * seed, forward=97.0 + 10 * seed))
    write_cell(folder, make_cell("vt", 0, bleu=97.0, kept=1.0, forward=1013.0, reverse=307.0))
    write_cell(folder, make_cell("t", 0, bleu=99.1, kept=1.0))
    write_cell(folder, make_cell("vts-0.5", 0, bleu=89.0, kept=0.5, forward=113.0))
    plan = make_plan(t=[0], vt=[0, 1], vts_0p5=[0], nvae_0p01=[0, 1, 2], nvae_1=[0])
    return read_results(plan, folder)


@pytest.fixture(scope="session")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of its report."""
    return write_report(results, tmp_path_factory.mktemp("report") / "new").page.parent
