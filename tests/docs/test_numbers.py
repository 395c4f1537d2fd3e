"""Numbers in README and docs are those of the cells in docs/results.

A table names its cells in a comment before it, `<!-- cells: FOLDER EVALUATION ROW … -->`: a row of the experiment for
each row of the table, `real` for real text, `-` for a row without numbers of cells. Sentences are listed here.
"""

import re
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from open_nvib.store.cells import CellResult, read_cells
from open_nvib.store.evaluations import Evaluation
from tools.measure_pretrained.tables import tables

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = re.compile(r"<!-- cells: (?P<folder>\S+) (?P<evaluation>\S+) (?P<rows>[^>]+) -->\n\n?(?P<table>(?:\|.*\n)+)")
NUMBER = r"\d[\d,]*(?:\.\d+)?"

Measure = Callable[[Evaluation], float | None]


def reconstruction(partition: str, name: str) -> Measure:
    return lambda found: getattr((found.reconstruction or {}).get(partition), name, None)


def generation(name: str) -> Measure:
    return lambda found: getattr(found.generation, name, None)


def at_share(share: float, name: str, scale: float = 1.0) -> Measure:
    def measure(found: Evaluation) -> float | None:
        shares = found.number["short"].shares if found.number else ()
        return next((scale * getattr(each, name) for each in shares if each.share == share), None)

    return measure


def chosen(how: str, name: str, scale: float = 1.0, partition: str = "short") -> Measure:
    return lambda found: scale * getattr(getattr(found.number[partition], how), name) if found.number else None


SHARES = (1, 0.75, 0.5, 0.35, 0.25, 0.2)
COLUMNS: dict[str, Measure] = {
    **{f"at {share}": at_share(share, "bleu") for share in SHARES},
    **{f"% at {share}": at_share(share, "exact", 100) for share in SHARES},
    **{f"any place, % at {share}": at_share(share, "any_place", 100) for share in SHARES},
    **{
        f"{title}, {how}": chosen(how, name, scale)
        for how in ("needed", "decided")
        for title, name, scale in (
            ("ν", "kept", 1),
            ("vectors", "vectors", 1),
            ("BLEU", "bleu", 1),
            ("%", "exact", 100),
            ("sd", "sd", 1),
            ("correlation", "correlation", 1),
            ("tries", "tries", 1),
        )
    },
    "agreement": lambda found: found.number["short"].agreement if found.number else None,
    "ν, needed, long": chosen("needed", "kept", 1, "long"),
    "BLEU, needed, long": chosen("needed", "bleu", 1, "long"),
    "ν": reconstruction("short", "kept"),
    "vectors kept": reconstruction("short", "kept"),
    "BLEU": reconstruction("short", "bleu"),
    "BLEU, points": reconstruction("short", "points_bleu"),
    "F-PPL": generation("forward_perplexity"),
    "R-PPL": generation("reverse_perplexity"),
    "BLEU, long sentences": reconstruction("long", "bleu"),
    "BLEU on longer sentences": reconstruction("long", "bleu"),
}
REAL = {"F-PPL": generation("real_forward_perplexity"), "R-PPL": generation("real_reverse_perplexity")}


@cache
def cells(folder: str) -> list[CellResult]:
    return read_cells(ROOT / "docs" / "results" / folder / "cells")


def values(folder: str, evaluation: str, row: str, measure: Measure) -> list[float]:
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
    assert pages.count("README.md") == 1
    assert {"docs/results/README.md", "docs/results/recipe.md", "docs/results/number.md"} <= set(pages)


def in_number(page: str, pattern: str, row: str, title: str) -> tuple[str, ...]:
    return page, pattern, "number", "test-causal", row, title


SENTENCES = [
    in_number("README.md", rf"share of ({NUMBER}) on average", "any", "ν, needed"),
    in_number("README.md", rf"on average, and ({NUMBER}) % come back", "any", "%, needed"),
    in_number("README.md", rf"share of 0.25, ({NUMBER}) % come back", "any", "% at 0.25"),
    in_number("README.md", rf"no search, ({NUMBER}) % come back", "any", "%, decided"),
    in_number("README.md", rf"come back at a share of\n({NUMBER})\. At", "any", "ν, decided"),
    in_number("README.md", rf"it is ({NUMBER}) % at {NUMBER} and", "vts-any", "%, needed"),
    in_number("README.md", rf"it is {NUMBER} % at ({NUMBER})", "vts-any", "ν, needed"),
    in_number("README.md", rf"and ({NUMBER}) % at {NUMBER}: the gain", "vts-any", "%, decided"),
    in_number("docs/results/number.md", rf"tokens, and ({NUMBER}) % of the texts", "any", "%, needed"),
    in_number("docs/results/number.md", rf"the vectors ({NUMBER}) % of the texts come back", "any", "%, decided"),
    in_number("docs/results/number.md", rf"fixed share returns ({NUMBER}) %", "any", "% at 0.35"),
    in_number("docs/results/number.md", rf"by a correlation of ({NUMBER})", "any", "agreement"),
    in_number("docs/results/number.md", rf"share 0.5: ({NUMBER}) ±", "any", "BLEU, needed, long"),
    ("docs/faq.md", rf"at 0.5, BLEU is ({NUMBER})", "recipe", "test-causal", "keep-0.5", "BLEU"),
    ("docs/faq.md", rf"ramped to 5, F-PPL is\n({NUMBER})", "recipe", "test-causal", "keep-0.5-pressed", "F-PPL"),
    (
        "docs/faq.md",
        rf"where real text has {NUMBER}, at BLEU ({NUMBER})",
        "recipe",
        "test-causal",
        "keep-0.5-pressed",
        "BLEU",
    ),
    (
        "docs/faq.md",
        rf"Δ = 0.1 BLEU is ({NUMBER})",
        "tradeoff",
        "validation-causal",
        "constant-g0.1-d1-delta0.1",
        "BLEU",
    ),
    (
        "docs/faq.md",
        rf"constant weights and ({NUMBER})",
        "tradeoff",
        "validation-causal",
        "ramped-g0.1-d1-delta0.1",
        "BLEU",
    ),
]


@pytest.mark.parametrize(("page", "pattern", "folder", "evaluation", "row", "title"), SENTENCES)
def test_sentences_are_of_their_cells(page, pattern, folder, evaluation, row, title):
    printed = re.search(pattern, (ROOT / page).read_text())
    assert printed is not None, f"{page}: the sentence is not there"
    found = values(folder, evaluation, row, COLUMNS[title])
    assert not differs(printed[1], statistics.fmean(found)), f"{page}: {printed[0]!r}, cells have {found}"


@pytest.mark.parametrize("name", ["identity", "cost", "sentiment", "retrieval", "choice", "noise"])
def test_tables_of_pretrained_models_are_of_their_files(name):
    """`python -m tools.measure_pretrained tables` prints them."""
    page = ROOT / "docs" / "results" / "pretrained.md"
    assert tables(page.with_suffix(""))[name] in page.read_text()
