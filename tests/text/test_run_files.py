"""The files of a run directory, read as they were written."""

import json
from dataclasses import replace

import pytest
import yaml

from open_nvib.store.files import InputError
from open_nvib.store.runs import (
    Lengths,
    LogEntry,
    RunMetrics,
    append_log,
    change_metrics,
    claim_directory,
    cut_log,
    read_config,
    read_lengths,
    read_log,
    read_metrics,
    write_config,
    write_lengths,
)
from open_nvib.store.settings import LossSettings, ModelSettings, Recipe, Schedule, TrainConfig

CONFIG = TrainConfig(
    data="somewhere",
    model=ModelSettings(dropout=0, latent_size=12),
    loss=LossSettings(lambda_g=Schedule(0.0, 1.0, kind="cyclical"), keep_share=1),
)


def test_configuration_comes_back(tmp_path):
    write_config(tmp_path, CONFIG)
    assert read_config(tmp_path) == CONFIG


def test_configuration_of_an_older_run_has_the_defaults_of_newer_options(tmp_path):
    write_config(tmp_path, CONFIG)
    known = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del known["model"]["kappa"], known["watch"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(known))
    assert read_config(tmp_path) == CONFIG


def test_value_that_no_option_takes_is_named(tmp_path):
    write_config(tmp_path, CONFIG)
    known = yaml.safe_load((tmp_path / "config.yaml").read_text())
    known["model"]["heads"] = "many"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(known))
    with pytest.raises(InputError, match=r"config\.yaml.*heads"):
        read_config(tmp_path)


def test_lengths_come_back(tmp_path):
    lengths = Lengths([0, 0, 3, 5], "short", Recipe(source={"source": "a.txt"}, config={"seed": 0}))
    write_lengths(tmp_path, lengths)
    assert read_lengths(tmp_path) == lengths


def test_log_is_read_up_to_a_line_that_is_cut(tmp_path):
    assert read_log(tmp_path) == []
    entries = [LogEntry(step, {"loss": 1 / 3, "kept": float(step)}) for step in (1, 2, 3)]
    for entry in entries:
        append_log(tmp_path, entry)
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"step": 4, "lo')
    assert read_log(tmp_path) == entries
    cut_log(tmp_path, 2)
    assert read_log(tmp_path) == entries[:2]
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 2


def test_metrics_are_changed_one_after_the_other(tmp_path):
    assert read_metrics(tmp_path) == RunMetrics()
    for step in (1, 2):
        changed = change_metrics(tmp_path, lambda known, step=step: replace(known, step=known.step + step))
    assert read_metrics(tmp_path) == changed == RunMetrics(step=3)


def test_a_number_that_is_not_finite_is_none(tmp_path):
    change_metrics(tmp_path, lambda known: replace(known, validation={"loss": float("nan"), "bleu": 3.0}))
    assert read_metrics(tmp_path).validation == {"loss": None, "bleu": 3.0}


def test_a_directory_is_claimed_by_one_configuration(tmp_path):
    run = tmp_path / "run"
    assert claim_directory(run, CONFIG, overwrite=False) is None
    write_config(run, CONFIG)
    write_lengths(run, Lengths([0, 1]))
    assert claim_directory(run, CONFIG, overwrite=False) is None  # begun, not finished
    with pytest.raises(InputError, match="seed"):
        claim_directory(run, replace(CONFIG, seed=1), overwrite=False)
    change_metrics(run, lambda known: replace(known, validation={"loss": 1.0}))
    assert claim_directory(run, CONFIG, overwrite=False) == {"loss": 1.0}
    assert json.loads((run / "metrics.json").read_text())["validation"] == {"loss": 1.0}
    assert claim_directory(run, replace(CONFIG, seed=1), overwrite=True) is None
    assert not (run / "config.yaml").exists()
