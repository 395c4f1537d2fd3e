"""Settings that make no sense are refused by name, on the command line and in YAML."""

from dataclasses import replace

import pytest

from open_nvib.cli import main
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.files import InputError
from open_nvib.store.settings import BOUNDS, LossSettings, OptimiserSettings, Schedule, WatchSettings
from open_nvib.store.task_settings import EvaluateConfig

NONSENSE = {
    "model.alpha0_p": ["1e300", "1e-300", "-1", ".nan", ".inf"],
    "model.d_model": ["1000000000", "-1", "0"],
    "loss.delta": ["1e300", "-1", "{start: 1, end: -1}", "{start: .nan, end: 1}", "null"],
    "loss.lambda_g": ["-1", "{start: -1, end: 1}", "words", ".nan"],
    "optimiser.warmup_steps": ["-1"],
    "optimiser.clip": ["-1", ".inf"],
    "optimiser.decay_share": ["2"],
    "watch.bleu_sentences": ["-1"],
    "watch.evaluate_sentences": ["-5"],
    "seed": ["-1", "4294967296"],
}


def stopped(capsys, *line) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, line)))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("nvib: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NONSENSE.items() for value in values])
def test_nonsense_is_refused_by_name(name, value, tmp_path, capsys):
    said = stopped(capsys, "train", f"--{name}={value}", f"--data={tmp_path}/x", f"--output={tmp_path}/run")
    assert name.rpartition(".")[2] in said
    assert "Union" not in said


def test_defaults_are_within_bounds_and_nan_never_is():
    for settings in (EvaluateConfig, LossSettings, OptimiserSettings, WatchSettings):
        settings()
    for name in ("clip", "weight_decay", "learning_rate", "epochs"):
        assert name in BOUNDS
        with pytest.raises(InputError, match=name):
            replace(OptimiserSettings(), **{name: float("nan")})
    with pytest.raises(InputError, match="lambda_d"):
        LossSettings(lambda_d=Schedule(1.0, -1.0))


STEPS = [".nan", ".inf", "-.inf", "1.5", "-5", "1e30", "9" * 400, "null", "x"]


@pytest.mark.parametrize("value", STEPS, ids=lambda value: value[:8])
@pytest.mark.parametrize("name", ["from_step", "to_step", "period"])
def test_steps_of_schedules_are_whole_numbers_within_bounds(name, value, tmp_path, capsys):
    for kind in ("linear", "cyclical"):
        schedule = f"{{start: 0, end: 1, kind: {kind}, {name}: {value}}}"
        (tmp_path / "c.yaml").write_text(f"loss: {{delta: {schedule}}}\n")
        for given in (f"--loss.delta={schedule}", f"--config={tmp_path / 'c.yaml'}"):
            said = stopped(capsys, "train", given, f"--data={tmp_path}/x", f"--output={tmp_path}/run")
            assert name in said
            assert "c.yaml" in said or not given.startswith("--config")


MISTAKES = {
    "seed: 1\nmodel: {kappa: 1}\nseed: 2\n": ("seed", "line 3"),
    "model: null\n": ("model: got null, expected settings.",),
    "loss: []\n": ("loss: got []",),
    "sed: 3\n": ("'sed'",),
    "model: {d_modle: 3}\n": ("model: unknown key 'd_modle'",),
    "model: {heads: 0}\n": ("model: heads is 0",),
    "model: {heads: 3}\n": ("heads = 3",),
    "model: {bottleneck: vae}\n": ("got 'vae', expected one of 't', 'vt'",),
    "seed: null\n": ("seed: got null, expected a whole number.",),
    "seed: many\n": ("seed: got 'many'",),
    "watch: {trackers: null}\n": ("watch.trackers: got null, expected a list.",),
    "- 1\n": ("got [1]",),
    "a: [\n": ("not YAML",),
    "config: c.yaml\n": ("unknown key 'config'",),
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text.strip()[:20])
def test_a_mistake_in_a_config_names_the_file_and_the_setting(text, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(text)
    said = stopped(capsys, "train", "--config", tmp_path / "c.yaml", "--data", "x", "--output", tmp_path / "run")
    assert all(piece in said for piece in (*MISTAKES[text], str(tmp_path / "c.yaml")))
    assert "Expected `" not in said


def test_a_mistake_on_the_command_line_names_no_file(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("seed: 1\n")
    said = stopped(capsys, "train", "--config", tmp_path / "c.yaml", "--seed=x", "--output=run")
    assert "c.yaml" not in said
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    said = stopped(capsys, "train", "--config", tmp_path / "empty.yaml", "--data=nowhere", "--output=run")
    assert "nowhere" in said


@pytest.mark.parametrize("name", ["../../evil", "/evil", "..", "a/b"])
def test_an_experiment_stays_in_its_folder(name, tmp_path):
    (tmp_path / "e.yaml").write_text(f"name: {name}\nrows: {{}}\n")
    with pytest.raises(InputError, match="name"):
        load_experiment(tmp_path / "e.yaml")


def test_warm_up_longer_than_training_is_refused(trained, tmp_path, capsys):
    options = ["--optimiser.steps=3", "--optimiser.warmup_steps=4", "--optimiser.schedule=warmup_stable_decay"]
    said = stopped(capsys, "train", f"--data={trained.config.data}", f"--output={tmp_path}/run", *options)
    assert "warmup_steps" in said


def test_a_model_that_no_memory_holds_is_refused(trained, tmp_path, capsys):
    options = ["--model.d_model=10000000", "--optimiser.batch_size=4"]
    said = stopped(capsys, "train", f"--data={trained.config.data}", f"--output={tmp_path}/run", *options)
    assert "d_model" in said


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["sample", "RUN", "--delta=1e300"], "delta"),
        (["reconstruct", "RUN", "\ud800 war"], "UTF-8"),
        (["train", "--output", "run\udcff"], "UTF-8"),
        (["train", "--output", "run\0"], "UTF-8"),
        (["reconstruct", "RUN", "[" * 100_000], "tokens"),
    ],
)
def test_what_a_run_cannot_take_is_one_line(trained, line, what, capsys):
    assert what in stopped(capsys, *(str(trained.path) if part == "RUN" else part for part in line))


def test_a_picture_is_not_written_beside_a_directory(trained, known, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemExit):
        main(["inspect", str(trained.path), known[0], "--plot", str(tmp_path / "folder")])
    assert "folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_one_process_of_torchrun_speaks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        main(["train", "--seed", "x"])
    assert capsys.readouterr().err == ""


def test_training_takes_the_only_partition_and_says_so(trained, tmp_path, capsys):
    options = ["--partition=other", "--optimiser.steps=1", "--optimiser.batch_size=4", "--model.d_model=8"]
    main(["train", f"--data={trained.config.data}", f"--output={tmp_path}/run", *options, "--watch.bleu_sentences=2"])
    assert "'short'" in capsys.readouterr().err
    assert "partition: short" in (tmp_path / "run" / "config.yaml").read_text()
