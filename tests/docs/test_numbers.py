"""Numbers in README and docs are those of the cells in docs/results.

A table names its cells in a comment before it, `<!-- cells: FOLDER EVALUATION ROW … -->`: a row of the experiment for
each row of the table, `real` for real text, `-` for a row without numbers of cells.
"""

import re
import statistics
from functools import cache
from pathlib import Path

import pytest

from open_nvib.report.measures import BLEU, FORWARD, KEPT, REVERSE, Read, read_at
from open_nvib.store.cells import CellResult, read_cells
from open_nvib.store.evaluations import Evaluation
from tools.measure_pretrained.tables import tables

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = re.compile(r"<!-- cells: (?P<folder>\S+) (?P<evaluation>\S+) (?P<rows>[^>]+) -->\n\n?(?P<table>(?:\|.*\n)+)")
NUMBER = r"\d[\d,]*(?:\.\d+)?"

SHARES = (1, 0.75, 0.5, 0.35, 0.25, 0.2)
CHOSEN = {"ν": "kept", "vectors": "vectors", "BLEU": "bleu", "sd": "sd", "correlation": "correlation", "tries": "tries"}


def read_at_share(share: float, name: str) -> Read:
    """Read a number of the model at a fixed share of vectors."""

    def read(evaluation: Evaluation) -> float | None:
        shares = evaluation.number_trained_on.shares if evaluation.number_trained_on else ()
        return next((getattr(each, name) for each in shares if each.share == share), None)

    return read


def percent(read: Read) -> Read:
    return lambda found: None if (value := read(found)) is None else 100 * value


COLUMNS: dict[str, Read] = {
    **{f"at {share}": read_at_share(share, "bleu") for share in SHARES},
    **{f"% at {share}": percent(read_at_share(share, "exact")) for share in SHARES},
    **{f"any offset, % at {share}": percent(read_at_share(share, "any_offset")) for share in SHARES},
    **{
        f"{title}, {how}": read_at(f"number_trained_on.{how}.{name}")
        for how in ("fewest", "auto")
        for title, name in CHOSEN.items()
    },
    **{f"%, {how}": percent(read_at(f"number_trained_on.{how}.exact")) for how in ("fewest", "auto")},
    "agreement": read_at("number_trained_on.agreement"),
    "ν, fewest, long": read_at("number.long.fewest.kept"),
    "BLEU, fewest, long": read_at("number.long.fewest.bleu"),
    "ν": KEPT.read,
    "vectors kept": KEPT.read,
    "BLEU": BLEU.read,
    "BLEU, points": read_at("trained_on.points_bleu"),
    "F-PPL": FORWARD.read,
    "R-PPL": REVERSE.read,
    "BLEU, long sentences": read_at("reconstruction.long.bleu"),
    "BLEU on longer sentences": read_at("reconstruction.long.bleu"),
}
for how, old in {"fewest": "needed", "auto": "decided"}.items():
    COLUMNS |= {title.replace(how, old): read for title, read in COLUMNS.items() if how in title}
COLUMNS |= {title.replace("any offset", "any place"): read for title, read in COLUMNS.items() if "any offset" in title}
REAL = {measure.title: measure.real for measure in (FORWARD, REVERSE)}


@cache
def cells(folder: str) -> list[CellResult]:
    return read_cells(ROOT / "docs" / "results" / folder / "cells")


def values(folder: str, evaluation: str, row: str, measure: Read) -> list[float]:
    """The measure of every seed of a row; of every cell for real text, which does not depend on the row."""
    chosen = [cell for cell in cells(folder) if row in (cell.row, "real") and evaluation in cell.evaluations]
    found = [measure(cell.evaluations[evaluation]) for cell in chosen]
    return [value for value in found if value is not None]


def differs(printed: str, value: float) -> bool:
    """Whether a printed number is not the value at the decimals that it is printed with."""
    decimals = len(printed.partition(".")[2])
    return f"{value:,.{decimals}f}" != printed and f"{value:.{decimals}f}" != printed


def marked_tables() -> list[tuple[Path, re.Match[str]]]:
    return [(page, mark) for page in PAGES for mark in MARK.finditer(page.read_text())]


@pytest.mark.parametrize(("page", "mark"), marked_tables(), ids=lambda value: getattr(value, "name", None) or "table")
def test_tables_are_of_their_cells(page: Path, mark: re.Match[str]):
    header, _, *lines = (
        [entry.strip().replace("*", "") for entry in line.strip("|").split("|")] for line in mark["table"].splitlines()
    )
    lines = [line for line in lines if any(line)]
    rows = mark["rows"].split()
    assert len(lines) == len(rows), f"{page.name}: {len(rows)} rows of cells for {len(lines)} of the table"
    checked = 0
    for line, row in zip(lines, rows, strict=True):
        for title, entry in zip(header, line, strict=True):
            measure = REAL.get(title) if row == "real" else COLUMNS.get(title)
            printed = re.fullmatch(rf"({NUMBER})(?: ± ({NUMBER}))?", entry)
            if row == "-" or measure is None or printed is None:
                continue
            found = values(mark["folder"], mark["evaluation"], row, measure)
            where = f"{page.name}: {row}, {title}: printed {entry}, cells have {found}"
            assert found, where
            assert not differs(printed[1], statistics.fmean(found)), where
            if printed[2]:
                assert not differs(printed[2], statistics.stdev(found)), where
            checked += 1
    assert checked


def test_the_tables_of_the_first_pages_name_their_cells():
    pages = [page.relative_to(ROOT).as_posix() for page, _ in marked_tables()]
    assert {"docs/results/README.md", "docs/results/recipe.md", "docs/results/number.md"} <= set(pages)


@pytest.mark.parametrize("name", ["identity", "cost", "sentiment", "retrieval", "choice", "noise"])
def test_tables_of_pretrained_models_are_of_their_files(name):
    """`python -m tools.measure_pretrained tables` prints them."""
    page = ROOT / "docs" / "results" / "pretrained.md"
    assert tables(page.with_suffix(""))[name] in page.read_text()
