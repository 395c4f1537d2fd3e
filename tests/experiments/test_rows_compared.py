"""Tools that look at the cells of an experiment that has run: the figures of a dial, rows against each other."""

from dataclasses import asdict

import numpy as np
import pytest

from open_nvib.cli import main
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.cells import read_cell
from open_nvib.store.files import InputError
from tools.bootstrap import differences_of_bleu, interval
from tools.compare_rows import compare, reconstruct
from tools.dial import draw


def test_a_dial_is_drawn_from_its_cells(experiment, tmp_path):
    half = {"loss": {"delta": 1.0, "keep_share": 0.5, "alpha_contrast": 0.0}}
    rows = {"half": {"config": "nvae.yaml", "label": "NVAE s=0.5", "overrides": half}}
    path = experiment(rows=rows, seeds=[0], evaluate={"sentences": 0, "measure": ["reconstruction"]})
    main(["experiment", "run", str(path)])
    written = draw(load_experiment(path), "half", tmp_path / "figures")
    assert sorted(file.name for file in written) == ["dial.svg", "lengths.svg"]
    with pytest.raises(InputError, match=r"row 'third'.*half"):
        draw(load_experiment(path), "third", tmp_path / "figures")


def test_rows_are_compared_on_the_sentences_that_were_measured(experiment):
    """A row that has learned to copy against one that has not: each difference is that of the two results."""
    rows = {
        "none": {"config": "nvae.yaml"},
        "some": {"config": "nvae.yaml", "overrides": {"optimiser": {"steps": 40, "learning_rate": 1e-2}}},
    }
    path = experiment(rows=rows, seeds=[0, 1], evaluate={"sentences": 30, "measure": ["reconstruction"]})
    main(["experiment", "run", str(path)])
    loaded = load_experiment(path)
    some, none = (reconstruct(loaded.cells([row])) for row in ("some", "none"))
    assert compare(some, reconstruct(loaded.cells(["none"], [1])))["short"]["seeds"].keys() == {"1"}
    compared = compare(some, none)["short"]
    bleu = {
        (cell.row, cell.seed): asdict(read_cell(cell.result_file))["evaluations"][cell.evaluate.name]["reconstruction"][
            "short"
        ]["bleu"]
        for cell in loaded.cells()
    }
    expected = [bleu["some", seed] - bleu["none", seed] for seed in (0, 1)]
    assert list(compared["seeds"].values()) == pytest.approx(expected)
    assert compared["difference"] == pytest.approx(sum(expected) / 2)
    assert compared["low"] <= compared["difference"] <= compared["high"]


def test_an_interval_is_as_wide_as_the_sentences_differ():
    references = ["the cat sat on the mat today", "a dog ran over the old bridge", "he was born in the year 1923"] * 40
    worse = [text.replace("the", "a") if index % 3 == 0 else text for index, text in enumerate(references)]
    found = differences_of_bleu([(references, worse), (worse, worse)], references)
    sure, none = interval(found[:, 0]), interval(found[:, 1])
    assert 0 < sure["low"] < sure["difference"] < sure["high"]
    assert none == {"difference": 0, "low": 0, "high": 0}
    few = differences_of_bleu([(references[:12], worse[:12])], references[:12])
    assert np.ptp(few[1:]) > np.ptp(found[1:, 0])
