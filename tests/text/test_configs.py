"""Every configuration in configs/ is what its first line says, and trains."""

import json
import shlex
from pathlib import Path

import pytest

from open_nvib.cli import main

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "configs").rglob("*.yaml"))]
PAPER = [name for name in CONFIGS if name.startswith("configs/paper/")]


def test_there_are_configs():
    assert "configs/small/nvae.yaml" in CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_config_opens_with_the_command_that_runs_it(name, monkeypatch, capsys):
    """And that command parses, file included."""
    monkeypatch.chdir(ROOT)
    first = Path(name).read_text().splitlines()[0]
    assert first.startswith("# nvib ")
    program, command, *options = shlex.split(first.removeprefix("# "))
    assert program == "nvib"
    assert name in options
    with pytest.raises(SystemExit) as stopped:
        main([command, *options, "--print_config"])
    assert stopped.value.code == 0
    assert "optimiser:" in capsys.readouterr().out or command != "train"


@pytest.mark.parametrize("name", PAPER)
def test_paper_config_takes_a_first_step(name, data, tmp_path):
    small = [
        "--optimiser.steps=1",
        "--optimiser.warmup_steps=0",
        "--optimiser.batch_size=16",
        "--watch.evaluate_sentences=4",
        "--watch.bleu_sentences=2",
    ]
    output = tmp_path / "run"
    main(["train", f"--config={ROOT / name}", f"--data={data}", "--partition=short", f"--output={output}", *small])
    assert json.loads((output / "metrics.json").read_text())["step"] == 1
