"""Training end to end: stopped, damaged, short of space, spread over processes, or gone wrong."""

import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small_text import make_sentences
from transformers import TrainerCallback

from open_nvib.cli import main
from open_nvib.store.files import damage, from_builtins, seal
from open_nvib.store.runs import checkpoints
from open_nvib.store.settings import (
    LossSettings,
    ModelSettings,
    OptimiserSettings,
    Schedule,
    TrainConfig,
    WatchSettings,
)
from open_nvib.text.training.train import train
from open_nvib.text.using.run import load_run

STEPS, EVERY = 60, 10
TINY = {
    "model.d_model": 16,
    "model.ffn_size": 17,
    "optimiser.steps": STEPS,
    "optimiser.batch_size": 16,
    "optimiser.learning_rate": 1e-3,
    "watch.log_every": 1,
    "watch.evaluate_every": EVERY,
    "watch.bleu_sentences": 4,
}


def command(data: Path, output: Path, **changes) -> list[str]:
    """The arguments of a small run; names of changes have __ for the dot."""
    options = TINY | {"data": data, "output": output} | {name.replace("__", "."): x for name, x in changes.items()}
    return ["train", *(f"--{name}={value}" for name, value in options.items())]


def process(*launcher: str) -> list[str]:
    return [sys.executable, "-m", *launcher, "open_nvib"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(arguments: list[str], *launcher: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*process(*launcher), *arguments], capture_output=True, text=True, env=environment())


def fails(arguments: list[str], capsys) -> str:
    """The one line of an exit with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nvib: ")]
    assert len(lines) == 1
    return lines[0]


def log(output: Path) -> list[dict[str, float]]:
    """The log, without when it was and how long it took."""
    entries = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    times = ("time", "elapsed", "train_runtime")
    return [{name: value for name, value in entry.items() if name not in times} for entry in entries]


def weights(output: Path) -> bytes:
    return (output / "model" / "model.safetensors").read_bytes()


def contents(directory: Path) -> dict[str, str]:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    output = tmp_path_factory.mktemp("whole") / "run"
    done = run(command(data, output))
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def killed(data, tmp_path_factory) -> Path:
    """The same run, killed between two checkpoints."""
    output = tmp_path_factory.mktemp("killed") / "run"
    running = subprocess.Popen([*process(), *command(data, output)], stderr=subprocess.DEVNULL, env=environment())
    path = output / "log.jsonl"
    while running.poll() is None and not (path.exists() and f'"step": {3 * EVERY + 3},' in path.read_text()):
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert not (output / "metrics.json").exists()
    return output


# Stopped and started again


def test_killed_run_goes_on_to_the_same_weights(data, whole, killed, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    again = run(command(data, output))
    assert again.returncode == 0, again.stderr
    assert f"going on from {checkpoints(killed / 'checkpoints')[0].name}" in again.stderr.replace(
        str(output / "checkpoints") + "/", ""
    )
    assert weights(output) == weights(whole)
    assert [entry["step"] for entry in log(output) if "loss" in entry] == list(range(1, STEPS + 1))
    assert log(output) == log(whole)


@pytest.mark.parametrize("file", ["optimizer.pt", "model.safetensors"])
def test_damaged_checkpoint_is_passed_over(file, data, whole, killed, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    good = [path for path in checkpoints(output / "checkpoints") if damage(path) is None]
    assert len(good) == 2
    with (good[0] / file).open("r+b") as stream:
        stream.truncate(100)
    main(command(data, output))
    said = capsys.readouterr().err
    assert f"{good[0]}: passed over, {file} is damaged" in said
    assert f"going on from {good[1]}" in said
    assert weights(output) == weights(whole)
    assert log(output) == log(whole)


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self):
        return os.mkdir, (str(self.directory),)


@pytest.mark.parametrize("file", ["optimizer.pt", "rng_state.pth"])
def test_checkpoint_with_code_is_refused_in_one_line(file, data, killed, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    newest = next(path for path in checkpoints(output / "checkpoints") if damage(path) is None)
    torch.save(Evil(tmp_path / "executed"), newest / file)
    seal(newest)
    assert str(newest) in fails(command(data, output), capsys)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("best", ["last", "loss"])
def test_run_that_lost_only_its_end_takes_no_further_step(best, data, whole, tmp_path):
    """Killed after the last checkpoint: in the middle of an epoch, where resuming would go on."""
    output = tmp_path / "run"
    if best == "last":
        shutil.copytree(whole, output)
    else:
        main(command(data, output, watch__best_metric=best))
    before, entries = weights(output), log(output)
    (output / "metrics.json").unlink()
    shutil.rmtree(output / "model")
    main(command(data, output, watch__best_metric=best))
    assert weights(output) == before
    assert json.loads((output / "metrics.json").read_text())["step"] == STEPS
    assert log(output) == entries


def test_run_killed_before_its_first_checkpoint_starts_over(data, whole, killed, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(killed, output, ignore=lambda folder, names: [n for n in names if n == "complete.json"])
    main(command(data, output))
    assert weights(output) == weights(whole)
    assert log(output) == log(whole)


@pytest.mark.parametrize("written", [["tokenizer"], ["tokenizer", "lengths.json"]], ids=str)
def test_run_killed_while_it_was_begun_starts_over(written, data, whole, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    shutil.copytree(whole / "tokenizer", output / "tokenizer")
    for name in set(written) - {"tokenizer"}:
        shutil.copy(whole / name, output / name)
    (output / ".training.lock").touch()  # which training makes first
    main(command(data, output))
    assert weights(output) == weights(whole)


# Claims to a directory


def test_finished_run_returns_at_once_with_the_same_metrics(data, whole, capsys):
    before = contents(whole)
    main(command(data, whole))
    printed = dict(pair.split("=") for pair in capsys.readouterr().out.split())
    known = json.loads((whole / "metrics.json").read_text())["validation"]
    assert printed == {name: f"{value:.4g}" for name, value in known.items()}
    assert contents(whole) == before


def test_other_settings_overwrite_nothing_unless_told(data, whole, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    (output / "notes.txt").write_text("mine")
    before = contents(output)
    other = command(data, output, seed=1, optimiser__steps=2)
    line = fails(other, capsys)
    assert "other settings" in line
    assert "seed" in line
    assert "optimiser.steps" in line
    assert contents(output) == before
    main([*other, "--overwrite"])
    assert json.loads((output / "metrics.json").read_text())["step"] == 2
    assert (output / "notes.txt").read_text() == "mine"
    assert not checkpoints(output / "checkpoints") or checkpoints(output / "checkpoints")[0].name == "checkpoint-2"


def test_a_run_stays_until_the_one_that_replaces_it_is_finished(data, tmp_path, capsys):
    """Settings that cannot work, a loss that is not finite, and a process that is killed lose nothing."""
    output = tmp_path / "run"
    main(command(data, output, optimiser__steps=2))
    before = contents(output)
    own = [*command(data, output, optimiser__steps=2), "--overwrite"]
    for wrong in (
        "--model.heads=3",
        "--watch.trackers=[nobody]",
        f"--data={tmp_path}",
        "--optimiser.learning_rate=1e30",
    ):
        fails([*own, "--optimiser.steps=30", wrong], capsys)
        assert contents(output).items() >= before.items()

    class Killed(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 15:
                raise KeyboardInterrupt

    other = from_command(data, output, seed=1, optimiser__steps=20)
    with pytest.raises(KeyboardInterrupt):
        train(other, output, overwrite=True, callbacks=[Killed()])
    assert contents(output).items() >= before.items()
    assert load_run(output).config.seed == 0
    capsys.readouterr()
    train(other, output, overwrite=True)
    assert "checkpoint-10" in capsys.readouterr().err
    assert load_run(output).config == other
    assert [entry["step"] for entry in log(output) if "loss" in entry] == list(range(1, 21))
    assert not list(output.glob(".replacement*"))
    main(["check", str(output)])


def from_command(data: Path, output: Path, **changes) -> TrainConfig:
    """The settings of that command."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        main([*command(data, output, **changes), "--print_config"])
    return from_builtins(yaml.safe_load(printed.getvalue()), TrainConfig)


def test_two_trainings_of_one_run_are_refused(data, tmp_path, capsys):
    lines = []

    class Second(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            lines.append(fails(command(data, tmp_path / "run", optimiser__steps=2), capsys))

    train(from_command(data, tmp_path / "run", optimiser__steps=2), tmp_path / "run", callbacks=[Second()])
    (line,) = lines
    assert "another process" in line


def test_moved_run_keeps_its_best_model(data, tmp_path):
    changes = {"watch__best_metric": "loss", "optimiser__steps": 20}
    main(command(data, tmp_path / "first", **changes))
    before = weights(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "second")
    (tmp_path / "second" / "metrics.json").unlink()
    shutil.rmtree(tmp_path / "second" / "model")
    main(command(data, tmp_path / "second", **changes))
    assert weights(tmp_path / "second") == before


@pytest.mark.parametrize("device", ["cuda:77", "meta", "nonsense"])
def test_device_that_cannot_be_used_is_one_line(device, data, tmp_path, capsys):
    assert "device" in fails([*command(data, tmp_path / "run"), f"--device={device}"], capsys)
    assert not (tmp_path / "run").exists()


def test_file_that_is_too_large_is_one_line(data, tmp_path):
    """As `ulimit -f` has it; a checkpoint has megabytes."""
    arguments = [
        *process(),
        *command(data, tmp_path / "run", model__ffn_size=4096, optimiser__steps=10),
        "--device=cpu",
    ]
    limited = f"ulimit -f 200; {shlex.join(arguments)}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, env=environment())
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "checkpoint-10" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("place", ["checkpoints", "model", "tokenizer", "log.jsonl", "metrics.json"])
@pytest.mark.parametrize("kind", ["file", "pipe", "link to itself"])
def test_what_is_not_the_folder_or_file_of_a_run_is_one_line(data, tmp_path, capsys, place, kind):
    """In a run that was stopped at its end: the command goes on, and writes or reads the place."""
    output = tmp_path / "run"
    few = command(data, output, optimiser__steps=1, watch__evaluate_every=1)
    main(few)
    (output / "metrics.json").unlink()
    path = output / place
    if path.exists():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    {"file": path.touch, "pipe": lambda: os.mkfifo(path), "link to itself": lambda: path.symlink_to(place)}[kind]()
    if (place, kind) == ("log.jsonl", "file"):
        main(few)  # a log may be empty
    else:
        assert place in fails(few, capsys)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user: run the tests as root, such as in a container"
)
def test_a_place_that_may_not_be_written_is_one_line(data, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(make_sentences(60)))
    for folder in (folder for path in (tmp_path, data) for folder in (path, *path.parents)):
        if "pytest-of-" in str(folder):
            folder.chmod(0o755)
    lines = {
        "run": command(data, tmp_path / "run"),
        "demo": ["demo", f"--data={tmp_path}/text.txt", "--layout=sentences", f"--output={tmp_path}/demo"],
        "data": ["prepare", f"--source={tmp_path}/text.txt", f"--output={tmp_path}/data"],
    }
    os.seteuid(65534)
    try:
        for name, line in lines.items():
            said = fails(line, capsys)
            assert f"{tmp_path}/{name}" in said
            assert "Permission denied" in said
    finally:
        os.seteuid(0)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_directory_of_another_kind_is_left_alone(data, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years")
    assert "not a run" in fails([*command(data, tmp_path), "--overwrite"], capsys)
    assert contents(tmp_path).keys() == {"thesis.tex"}


# Processes, accumulation and precision


def assert_same_training(one: Path, other: Path) -> None:
    losses = [[entry["loss"] for entry in log(output) if "loss" in entry] for output in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    mine, theirs = (load_file(output / "model" / "model.safetensors") for output in (one, other))
    for name, tensor in mine.items():
        if "to_qkv.bias" not in name:  # the keys' part has no gradient but rounding errors, which Adam enlarges
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4, msg=name)


def plain(data: Path, output: Path, **changes) -> list[str]:
    """Without noise, so that batches may be cut in any way."""
    given = {"model__bottleneck": "t", "model__dropout": 0, "optimiser__steps": 12}
    return command(data, output, **given, **changes)


@pytest.fixture(scope="module")
def one_process(data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("one_process") / "run"
    main(plain(data, output))
    return output


def test_two_processes_match_one_on_the_same_batches(data, one_process, tmp_path):
    output = tmp_path / "run"
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m")
    done = run(plain(data, output, optimiser__batch_size=8), *launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bleu=") == 1
    assert_same_training(one_process, output)
    assert all(damage(path) is None for path in checkpoints(output / "checkpoints"))


def test_accumulated_batches_match_one_large_batch(data, one_process, tmp_path):
    main(plain(data, tmp_path / "run", optimiser__batch_size=4, optimiser__accumulate=4))
    assert_same_training(one_process, tmp_path / "run")


def test_bf16_is_close_to_float32(data, whole, tmp_path):
    main(command(data, tmp_path / "run", optimiser__precision="bf16"))
    mine, theirs = (
        [entry["eval_loss"] for entry in log(path) if "eval_loss" in entry][-1] for path in (tmp_path / "run", whole)
    )
    assert mine != theirs
    assert mine == pytest.approx(theirs, rel=0.02)
    assert theirs < 0.95 * log(whole)[0]["loss"]


# Logs and schedules


def test_schedules_reach_the_log(data, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "loss:\n  lambda_g: {start: 0.0, end: 0.5, from_step: 2, to_step: 6}\n  lambda_d: 0.25\n"
        "  delta: {start: 1.0, end: 0.5, kind: cyclical, period: 4}\n"
        "  keep_share: {start: 1.0, end: 0.5, from_step: 2, to_step: 6}\n"
    )
    main([*command(data, tmp_path / "run", optimiser__steps=9), f"--config={config}"])
    entries = [entry for entry in log(tmp_path / "run") if "loss" in entry]
    ramp = Schedule(start=0.0, end=0.5, from_step=2, to_step=6)
    cycle = Schedule(start=1.0, end=0.5, kind="cyclical", period=4)
    assert [entry["lambda_g"] for entry in entries] == [ramp.at(step) for step in range(1, 10)]
    assert [entry["lambda_d"] for entry in entries] == [0.25] * 9
    assert [entry["delta"] for entry in entries] == pytest.approx([cycle.at(step) for step in range(1, 10)])
    assert [entry["keep_share"] for entry in entries] == pytest.approx([1 - ramp.at(step) for step in range(1, 10)])
    assert entries[0]["kept"] > 0.7 > 0.6 > entries[-1]["kept"]


def test_a_schedule_is_applied_once_a_step(data, tmp_path):
    """However many batches a step has; its evaluation and its log see the values of the step."""
    delta = Schedule(start=1.0, end=0.25, to_step=8)
    config = TrainConfig(
        data=str(data),
        model=ModelSettings(d_model=16, ffn_size=17),
        loss=LossSettings(delta=delta),
        optimiser=OptimiserSettings(steps=5, batch_size=8, accumulate=2),
        watch=WatchSettings(evaluate_every=3, log_every=2, bleu_sentences=2, best_metric="loss"),
    )
    seen: dict[str, list[tuple[int, float]]] = {"set": [], "evaluated": []}

    class Watch(TrainerCallback):
        def on_train_begin(self, args, state, control, model: Any = None, **kwargs):
            bottleneck = model.encoder.bottleneck
            change = bottleneck.set_schedule

            def watched(values):
                seen["set"].append((state.global_step, values.delta))
                change(values)

            bottleneck.set_schedule = watched

        def on_evaluate(self, args, state, control, model: Any = None, **kwargs):
            seen["evaluated"].append((state.global_step, model.encoder.bottleneck.delta))

    train(config, tmp_path / "run", callbacks=[Watch()])
    assert seen["set"] == [(step, delta.at(step)) for step in (0, 1, 2, 3, 4, 5, 5)]  # again after the best is loaded
    assert seen["evaluated"] == [(step, pytest.approx(delta.at(step))) for step in (3, 5, 5)]
    assert load_run(tmp_path / "run").model.encoder.bottleneck.delta == pytest.approx(delta.at(5))


def test_a_share_of_nothing_is_an_error(data, tmp_path, capsys):
    assert "keep_share" in fails(command(data, tmp_path / "run", loss__keep_share=0), capsys)
    ramp = "{start: 1, end: 1.5}"
    assert "delta" in fails(command(data, tmp_path / "run", loss__keep_share=0.5, loss__delta=0), capsys)
    assert "keep_share" in fails(command(data, tmp_path / "run", loss__keep_share=ramp), capsys)
    assert "alpha_contrast" in fails(command(data, tmp_path / "run", loss__alpha_contrast=-1), capsys)


def test_a_run_from_before_an_option_is_still_the_same_run(data, tmp_path):
    """What a run does not say is what now is the default, and what it says must be the same."""
    arguments = command(data, tmp_path / "run", optimiser__steps=2)
    main(arguments)
    config = tmp_path / "run" / "config.yaml"
    before = weights(tmp_path / "run")
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "keep_share" not in line))
    main(arguments)
    assert weights(tmp_path / "run") == before


def test_logged_loss_is_the_sum_of_its_parts(whole):
    for entry in log(whole):
        if "loss" in entry:
            parts = entry["cross_entropy"] + 0.01 * entry["kl_gaussian"] + entry["kl_dirichlet"]
            assert entry["loss"] == pytest.approx(parts, abs=1e-5)


# What goes wrong


@pytest.mark.parametrize("bottleneck", ["t", "vt", "nvae"])
def test_loss_that_is_not_finite_names_what_went_wrong(bottleneck, data, tmp_path, capsys):
    arguments = command(data, tmp_path / "run", optimiser__learning_rate=1e30, model__bottleneck=bottleneck)
    line = fails(arguments, capsys)
    assert "the loss is not finite" in line
    assert "first in " in line or "entries of " in line
    assert "learning_rate" in line


@pytest.fixture
def small_disk(tmp_path):
    """A folder with as many kilobytes as asked for."""
    mounted: list[Path] = []

    def mount(folder: Path, kilobytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        options = f"{'remount,' if folder in mounted else ''}size={kilobytes}k"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip(f"mount is not permitted here ({done.stderr.decode().strip()}): run as root")
        mounted.append(folder)

    yield mount
    for folder in set(mounted):
        subprocess.run(["umount", str(folder)], check=True)


def kilobytes(folder: Path) -> int:
    """In whole pages."""
    return sum(4 + -(-file.stat().st_size // 4096) * 4 for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("share", [2.1, 2.4, 2.8])
def test_full_disk_loses_no_earlier_checkpoint(share, data, tmp_path, small_disk, capsys):
    """The third checkpoint does not fit: by its weights, its optimiser or its last small files."""
    large = {"model__ffn_size": 4096, "optimiser__steps": 8, "watch__evaluate_every": 2, "watch__keep_checkpoints": 9}
    probe = tmp_path / "probe"
    main(command(data, probe, **large | {"optimiser__steps": 2}))
    size, rest = kilobytes(probe / "checkpoints"), kilobytes(probe / "tokenizer") + 40
    output = tmp_path / "run"
    small_disk(output, int(share * size) + rest)
    arguments = command(data, output, **large)
    first = fails(arguments, capsys)
    assert "checkpoint-6: no space left on the disk" in first
    good = checkpoints(output / "checkpoints")
    assert [path.name for path in good] == ["checkpoint-4", "checkpoint-2"]
    assert all(damage(path) is None for path in good)
    small_disk(output, 9 * size)
    main(arguments)
    assert "going on from" in capsys.readouterr().err
    assert json.loads((output / "metrics.json").read_text())["step"] == 8


def test_disk_that_is_full_from_the_start_is_one_line(data, tmp_path, small_disk, capsys):
    small_disk(tmp_path / "run", 8)
    assert "no space left" in fails(command(data, tmp_path / "run"), capsys)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model__heads": 3}, "heads = 3"),
        ({"model__stride": 1.5}, "stride"),
        ({"model__max_positions": 9}, "max_positions"),
        ({"optimiser__batch_size": 0}, "batch_size"),
        ({"optimiser__batch_size": 5000}, "batch_size"),
        ({"optimiser__steps": 0}, "steps"),
        ({"watch__evaluate_every": 0}, "evaluate_every"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_one_line_and_leave_nothing(changes, what, data, tmp_path, capsys):
    assert what in fails(command(data, tmp_path / "run", **changes), capsys)
    assert not (tmp_path / "run").exists()
