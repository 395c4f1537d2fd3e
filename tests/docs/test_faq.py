"""The FAQ quotes what the toolkit says."""

import shlex
from pathlib import Path

import pytest
import torch

import open_nvib as nv
from open_nvib.cli import main
from open_nvib.text.training.trainer import find_troubles
from tools.blocks import blocks

FAQ = Path(__file__).parents[2] / "docs/faq.md"
QUOTED = [block.text.strip() for block in blocks(FAQ) if block.language == "output"]


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({"kl_gaussian": 0.0, "kl_dirichlet": 0.0, "bleu": 0.49, "kept": 0.5}, "collapse"),
        ({"kl_gaussian": 1.0, "bleu": 90.0, "kept": 1.0}, "all kept"),
        ({"kl_gaussian": 1.0, "bleu": 0.5, "kept": 0.0}, "all dropped"),
        ({"kl_gaussian": 0.5, "bleu": 74.0, "kept": 0.5, "loss": 1.029, "points_loss": 0.011}, "mean"),
    ],
)
def test_warnings_of_training(metrics, name):
    found = find_troubles(metrics, 0.4, drops=True)
    assert list(found) == [name]
    assert f"warning: {found[name]}" in QUOTED


def test_errors_of_the_library():
    with pytest.raises(ValueError, match="sample_log_gamma") as not_a_number:
        nv.sample_log_gamma(torch.tensor([0.5, float("nan")]))
    with pytest.raises(ValueError, match="ImpulseMixture") as nothing_left:
        nv.ImpulseMixture(torch.zeros(2, 3, 4), torch.full((2, 3), -torch.inf))
    assert str(not_a_number.value) in QUOTED
    assert str(nothing_left.value) in QUOTED


@pytest.mark.parametrize(
    ("command", "quoted"),
    [
        ("train --data data/mine --output runs/big --optimiser.batch_size 4096", "nvib: data/mine:"),
        ("train --data data/mine --output runs/nan --optimiser.learning_rate 1e6", "nvib: runs/nan:"),
        ("train --data data/mine --output runs/nan --optimiser.learning_rate 1e38", "nvib: runs/nan:"),
        ("train --data data/mine --output runs/mine --loss.delta 0.3 --optimiser.steps 4", "nvib: runs/mine:"),
    ],
)
def test_errors_of_the_command_line(command, quoted, workspace, capsys):
    """Numbers and what is in brackets aside, the line is the one on the page."""
    small = (
        "--optimiser.batch_size 8 --optimiser.steps 3 --model.d_model 16 --model.ffn_size 16 --watch.bleu_sentences 2"
    )
    main(shlex.split("prepare --source my.txt --output data/mine --workers 1"))
    if "runs/mine" in command:
        main(shlex.split(f"train --data data/mine --output runs/mine {small}"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command.replace("train", f"train {small}")))
    assert stopped.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert words(said) in [words(text) for text in QUOTED if text.startswith(quoted)]


def words(line: str) -> list[str]:
    """Without what depends on the machine and the data: numbers, and reasons in brackets."""
    outside, depth = [], 0
    for letter in line:
        depth += letter == "("
        outside.append("" if depth else letter)
        depth -= letter == ")"
    return [word for word in "".join(outside).split() if not any(letter.isdigit() for letter in word)]
