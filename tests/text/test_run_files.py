"""The files of a run directory, read as they were written."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from open_nvib.store.files import InputError
from open_nvib.store.runs import (
    REPLACEMENT,
    Claim,
    Lengths,
    LogEntry,
    RunMetrics,
    append_log,
    change_metrics,
    claim_directory,
    complete_replacement,
    cut_log,
    discard_other_replacement,
    read_config,
    read_lengths,
    read_log,
    read_metrics,
    read_numbers,
    replace_run,
    run_being_written,
    training_lock,
    write_config,
    write_lengths,
)
from open_nvib.store.settings import LossSettings, ModelSettings, Schedule, TrainConfig
from open_nvib.store.task_settings import Recipe

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
    assert claim_directory(run, CONFIG, overwrite=False) == Claim(run)
    write_config(run, CONFIG)
    write_lengths(run, Lengths([0, 1]))
    assert claim_directory(run, CONFIG, overwrite=False) == Claim(run)  # begun, not finished
    assert claim_directory(run, CONFIG, overwrite=True) == Claim(run)
    with pytest.raises(InputError, match="seed"):
        claim_directory(run, replace(CONFIG, seed=1), overwrite=False)
    change_metrics(run, lambda known: replace(known, validation={"loss": 1.0}))
    assert claim_directory(run, CONFIG, overwrite=False) == Claim(run, {"loss": 1.0})
    assert json.loads((run / "metrics.json").read_text())["validation"] == {"loss": 1.0}
    other = claim_directory(run, replace(CONFIG, seed=1), overwrite=True)
    assert other == claim_directory(run, CONFIG, overwrite=True) == Claim(run / REPLACEMENT)
    assert read_config(run) == CONFIG


def test_a_replacement_that_was_stopped_is_found_again(tmp_path):
    run, other = tmp_path / "run", replace(CONFIG, seed=1)
    for path, config in ((run, CONFIG), (run / REPLACEMENT, other)):
        write_config(path, config)
        write_lengths(path, Lengths([0, 1]))
    for overwrite in (False, True):
        assert claim_directory(run, other, overwrite=overwrite) == Claim(run / REPLACEMENT)
    assert run_being_written(run) == run / REPLACEMENT
    discard_other_replacement(run / REPLACEMENT, other)
    assert claim_directory(run, CONFIG, overwrite=False) == Claim(run)
    discard_other_replacement(run / REPLACEMENT, replace(CONFIG, seed=2))
    assert run_being_written(run) == run


@pytest.mark.parametrize("moved", range(9))
def test_a_replacement_is_whole_wherever_its_moving_is_stopped(tmp_path, monkeypatch, moved):
    """Stopped before each of its renames, and called again."""
    run, other = tmp_path / "run", replace(CONFIG, seed=1)
    for path, config in ((run, CONFIG), (run / REPLACEMENT, other)):
        write_config(path, config)
        write_lengths(path, Lengths([0, config.seed + 1]))
        change_metrics(path, lambda known, config=config: replace(known, step=config.seed, validation={"loss": 0.5}))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "old").write_text("")
    (run / "notes.txt").write_text("mine")
    rename, left = Path.rename, [moved]

    def stop(self, target):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        with suppress(KeyboardInterrupt):
            replace_run(run)
    assert claim_directory(run, other, overwrite=False).finished in (None, {"loss": 0.5})
    replace_run(run)
    assert claim_directory(run, other, overwrite=False) == Claim(run, {"loss": 0.5})
    assert (read_config(run), read_lengths(run).lengths, read_metrics(run).step) == (other, [0, 2], 1)
    assert not list((run / "checkpoints").iterdir())
    assert {path.name for path in run.iterdir()} - {".metrics.json.lock"} == {
        "config.yaml",
        "lengths.json",
        "metrics.json",
        "checkpoints",
        "notes.txt",
    }


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    run = tmp_path / "run"
    with training_lock(run), pytest.raises(InputError, match="run: another process"), training_lock(run):
        pass
    with training_lock(tmp_path / "run"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"), training_lock(tmp_path / "file"):
        pass


@pytest.mark.parametrize("name", ["file", "device", "long" * 100, "link", "file/inside"], ids=lambda name: name[:12])
def test_what_can_be_no_directory_is_one_line(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(InputError, match=name[:4]) as stopped,
        training_lock(claim_directory(tmp_path / name, CONFIG, overwrite=False).path),
    ):
        pass
    assert len(str(stopped.value).splitlines()) == 1


def test_log_has_the_time_and_survives_any_byte(tmp_path):
    append_log(tmp_path, LogEntry(1, {"loss": 1.0, "time": 1700000000.5, "elapsed": 2.5}))
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {
        "step": 1,
        "loss": 1.0,
        "time": 1700000000.5,
        "elapsed": 2.5,
    }
    (entry,) = read_log(tmp_path)
    assert entry == LogEntry(1, {"loss": 1.0, "time": 1700000000.5, "elapsed": 2.5})
    whole = (tmp_path / "log.jsonl").read_bytes()
    for place in range(len(whole) - 1):
        for byte in (0, 0xFF, 0x80, ord("9")):
            (tmp_path / "log.jsonl").write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :] + whole)
            assert read_log(tmp_path)[-1] == entry
            cut_log(tmp_path, 10**9)


@pytest.mark.parametrize("mine", ["config.yaml", "tokenizer/vocab.txt", "lengths.json"])
def test_a_directory_with_files_of_the_user_is_not_a_run_that_was_begun(tmp_path, mine):
    (tmp_path / "exp" / mine).parent.mkdir(parents=True)
    (tmp_path / "exp" / mine).write_text("# my notes\n")
    with pytest.raises(InputError, match="not a run"):
        claim_directory(tmp_path / "exp", CONFIG, overwrite=False)
    (tmp_path / "exp" / ".training.lock").write_text("")  # as training leaves it if it is killed at the beginning
    assert claim_directory(tmp_path / "exp", CONFIG, overwrite=False).finished is None


@pytest.mark.parametrize("link", [".replacement", ".training.lock", "model", "model/extra"])
def test_a_link_in_a_run_is_refused_and_what_it_leads_to_is_untouched(tmp_path, link):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for run in (mine, theirs):
        write_config(run, CONFIG)
        write_lengths(run, Lengths([0, 1]))
        change_metrics(run, lambda known: replace(known, validation={"loss": 1.0}))
    (theirs / link).parent.mkdir(exist_ok=True)
    (theirs / link).symlink_to(mine)
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    for read in (lambda: complete_replacement(theirs), lambda: claim_directory(theirs, CONFIG, overwrite=True)):
        with pytest.raises(InputError, match="is a link"):
            read()
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_untouched(tmp_path):
    run, mine = tmp_path / "run", tmp_path / "mine.txt"
    mine.write_text("my notes")
    change_metrics(run / REPLACEMENT, lambda known: known)  # reading completes the replacement, with a lock
    for lock in (".training.lock", ".metrics.json.lock"):
        (run / lock).symlink_to(mine)
    with pytest.raises(InputError, match=r"training\.lock: is a link"):
        complete_replacement(run)
    with pytest.raises(InputError, match=r"metrics\.json\.lock: is a link"):
        change_metrics(run, lambda known: known)
    assert mine.read_text() == "my notes"


def test_a_run_in_the_cache_of_the_hub_has_links_to_files_and_is_read(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    write_config(blobs, CONFIG)
    snapshot.mkdir(parents=True)
    (snapshot / "config.yaml").symlink_to(blobs / "config.yaml")
    complete_replacement(snapshot)
    assert read_config(snapshot) == CONFIG
    with pytest.raises(InputError, match="is a link"):
        claim_directory(snapshot, CONFIG, overwrite=True)


@pytest.mark.parametrize("count", [2**70, 2**63, -(2**70)])
def test_counts_that_no_number_of_sentences_can_be_are_one_line(tmp_path, count):
    (tmp_path / "lengths.json").write_text(json.dumps({"lengths": [0, count, 1]}))
    (tmp_path / "numbers.json").write_text(json.dumps({"counts": [[1, 1, count]]}))
    for read, name in ((read_lengths, "lengths"), (read_numbers, "numbers")):
        with pytest.raises(InputError, match=rf"{name}\.json: cannot be used"):
            read(tmp_path)


def test_a_huge_file_is_one_line(tmp_path):
    with (tmp_path / "lengths.json").open("wb") as stream:
        stream.truncate(100 * 2**20)
    with pytest.raises(InputError, match=r"lengths\.json: cannot be used"):
        read_lengths(tmp_path)
