"""The figures of a dial: from the cells of an experiment that has run."""

import json

import pytest

from open_nvib.cli import main
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from tools.dial import draw


def test_a_dial_is_drawn_from_its_cells(experiment, data, tmp_path):
    half = {"loss": {"delta": 1.0, "keep_share": 0.5, "alpha_contrast": 0.0}}
    rows = {"half": {"config": "nvae.yaml", "label": "NVAE s=0.5", "overrides": half}}
    path = experiment(rows=rows, seeds=[0], evaluate={"sentences": 0, "measure": ["reconstruction"]})
    main(["experiment", "run", str(path)])
    written = draw(load_experiment(path), "half", tmp_path / "figures")
    assert sorted(file.name for file in written) == ["dial.svg", "lengths.svg", "tokens.json", "tokens.svg"]
    (groups,) = json.loads((tmp_path / "figures" / "tokens.json").read_text())
    texts = load_prepared(data).split("short", "validation")["input_ids"]
    places = [group for group in groups if group["by"] == "place"]
    assert sum(group["tokens"] for group in places) == sum(map(len, texts))
    vectors = sum(group["tokens"] * group["vectors"] for group in places)
    assert vectors == pytest.approx(sum(len(text) / 2 for text in texts))  # half of one for each token
    with pytest.raises(InputError, match=r"row 'third'.*half"):
        draw(load_experiment(path), "third", tmp_path / "figures")
