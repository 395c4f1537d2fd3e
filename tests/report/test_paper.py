"""The paper's printed table, against sums over its columns in the paper's LaTeX."""

from pathlib import Path

import pytest

from open_nvib.report.results import FAMILIES, PAPER

CONFIGS = Path(__file__).parents[2] / "configs"


def test_rows_are_those_of_the_configs():
    assert len(PAPER) == 15
    for scale in ("paper", "small"):
        assert set(PAPER) <= {file.stem for file in (CONFIGS / scale).glob("*.yaml")}
    assert {row.model for row in PAPER.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("column", "means", "deviations"),
    [("bleu", 1225.17, 23.69), ("perplexity", 30.04, 3.89), ("forward", 17.38, 1.94), ("reverse", 108.56, 101.69)],
)
def test_columns_add_up(column, means, deviations):
    printed = [value for row in PAPER.values() if (value := getattr(row, column))]
    assert len(printed) == (15 if column in ("bleu", "perplexity") else 14)
    assert sum(value.mean for value in printed) == pytest.approx(means)
    assert sum(value.sd for value in printed) == pytest.approx(deviations)
    assert sum(row.kept.mean for row in PAPER.values()) == pytest.approx(7.48)


def test_some_rows_as_printed():
    row = PAPER["nvae-0.01"]
    assert (row.kept.mean, row.bleu.mean, row.bleu.sd) == (0.47, 92.26, 4.90)
    assert row.reverse
    assert (row.reverse.mean, row.reverse.sd) == (5.06, 1.90)
    assert PAPER["t"].forward is None
