"""Runs the blocks of a page, at a scale that takes moments."""

from pathlib import Path

import yaml

from open_nvib.cli import main
from tools.blocks import Block, commands, run_python

MODEL = ["--model.d_model=16", "--model.ffn_size=16", "--model.dropout=0"]
STEPS = [
    "--optimiser.steps=4",
    "--optimiser.schedule=warmup_stable_decay",
    "--optimiser.warmup_steps=2",
    "--optimiser.batch_size=8",
    "--watch.evaluate_every=2",
    "--watch.bleu_sentences=4",
]
SMALL = {
    "prepare": ["--source=my.txt", "--workers=1"],
    "train": [*MODEL, *STEPS, "--watch.evaluate_sentences=8"],
    "evaluate": ["--sentences=6", "--samples=6", "--scorer_steps=2", "--latent_sentences=4", "--interpolations=2"],
}
"""What is added to a command on a page, so that it takes moments."""


def run_command(words: list[str]) -> None:
    if words[0] != "nvib":
        raise ValueError(f"{' '.join(words)}: only nvib is run here. Mark the block with why it is not run.")
    arguments = words[1:]
    try:
        main(arguments + SMALL.get(arguments[0], []))
    except SystemExit as stopped:
        if stopped.code:  # it is 0 after --help and --print_config
            raise RuntimeError(f"{' '.join(words)}: exit code {stopped.code}") from stopped


def run_block(page: Path, block: Block, names: dict[str, object]) -> None:
    if block.language == "python":
        run_python(page, block, names)
    elif block.language == "sh":
        for words in commands(block):
            run_command(words)
    else:
        yaml.safe_load(block.text)
