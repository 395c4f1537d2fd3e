"""`--overwrite`, killed with SIGKILL at any change on disk: the old or the new is complete and can be loaded."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_text import make_sentences, prepare_in

from open_nvib.cli import main
from open_nvib.store.files import find_damage
from open_nvib.store.runs import REPLACEMENT, read_config, replace_run
from open_nvib.text.data import PrepareConfig, load_prepared, prepare
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork, from Python 3.12 on
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")


def finishes(work: Callable[[], object], *, change: int) -> bool:
    """Do the work in a process that is killed before its n-th change on disk. Returns whether it got to its end."""
    pid = os.fork()
    if pid == 0:
        left = [change]

        def count(event: str, arguments: tuple) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1

        sys.addaudithook(count)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == 0


def moments(work: Callable[[], object], *, step: int = 1) -> Iterator[int]:
    """Kill the work at one change after the other until it gets to its end; the test resets what it works on."""
    change = 0
    while not finishes(work, change=change):
        yield change
        change += step
    yield change


def copy_run(trained: Run, run: Path) -> Path:
    shutil.rmtree(run, ignore_errors=True)
    return Path(shutil.copytree(trained.path, run, ignore=shutil.ignore_patterns("checkpoints")))


def test_a_run_can_be_loaded_wherever_its_replacing_is_killed(trained, tmp_path, capsys):
    run, seeds, change = tmp_path / "run", set(), 0
    other = copy_run(trained, tmp_path / "other")
    train(
        replace(trained.config, seed=7, optimiser=replace(trained.config.optimiser, steps=1, warmup_steps=0)),
        other,
        overwrite=True,
    )

    def begin() -> None:
        copy_run(trained, run)
        shutil.copytree(other, run / REPLACEMENT)

    begin()
    for change in moments(lambda: replace_run(run)):
        loaded = load_run(run)
        seeds.add(loaded.config.seed)
        assert not list(find_damage(run))
        assert loaded.reconstruct("the war"), change
        main(["check", str(run)])
        begin()
    assert seeds == {7}  # the new run is finished, so whoever reads the old one completes its replacement
    assert change > 20  # changes, each of them a moment


@pytest.mark.slow
def test_a_run_can_be_loaded_wherever_the_training_of_another_is_killed(trained, tmp_path):
    run, seeds = copy_run(trained, tmp_path / "run"), set()
    few = replace(trained.config.optimiser, steps=2, warmup_steps=0)
    other = replace(trained.config, seed=7, optimiser=few, watch=replace(trained.config.watch, evaluate_every=1))
    for _ in moments(lambda: train(other, run, overwrite=True), step=5):
        assert not list(find_damage(run)) or (run / REPLACEMENT / "metrics.json").exists()
        seeds.add(load_run(run).config.seed)
        copy_run(trained, run)
    assert seeds == {trained.config.seed, 7}


def test_prepared_data_can_be_loaded_wherever_its_replacing_is_killed(tmp_path):
    data, seeds, change = prepare_in(tmp_path, make_sentences(60)), set(), 0
    config = PrepareConfig(
        **load_prepared(data).recipe.settings
        | {"source": str(tmp_path / "corpus.txt"), "output": str(data), "workers": 1}
    )
    config = replace(config, drop_residue=None)
    kept = shutil.copytree(data, tmp_path / "kept")
    for change in moments(lambda: prepare(replace(config, seed=5), overwrite=True)):
        prepared = load_prepared(data)
        seeds.add(prepared.recipe.config["seed"])
        assert not list(find_damage(data))
        assert len(prepared.split("short", "train"))
        if change % 8 == 0:  # the next command takes away what was left
            prepare(replace(config, seed=6), overwrite=True)
            assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "data", "kept"}
        shutil.rmtree(data)
        shutil.copytree(kept, data)
    assert seeds == {0, 5}
    assert change > 20


def test_a_replacement_that_fails_before_its_first_checkpoint_leaves_nothing(trained, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    other = replace(trained.config, seed=7, optimiser=replace(trained.config.optimiser, learning_rate=1e30, clip=0.0))
    before = {path.name for path in run.iterdir()}
    with pytest.raises(ValueError, match="run"):
        train(other, run, overwrite=True)
    assert {path.name for path in run.iterdir()} - {".training.lock"} == before - {".training.lock"}
    assert read_config(run) == trained.config
