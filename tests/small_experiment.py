"""A small experiment of two rows and two seeds, and how to catch one of its cells in the middle."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from open_nvib.experiments.experiment import Cell, load_experiment
from open_nvib.store.cells import CellResult
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.task_settings import Recipe

LONG_STEPS = 160
LONG = {"optimiser": {"steps": LONG_STEPS}, "watch": {"evaluate_every": 20}}
"""Overrides for a row that takes some seconds, with a checkpoint every few moments."""


def write_experiment(folder: Path, data: Path, **changes: Any) -> Path:
    """An experiment's file in `folder`. `changes` replace what it says."""
    configs = {"t": {"model": {"bottleneck": "t"}}, "nvae": {"loss": {"lambda_g": 0.01, "delta": 0.3}}}
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    experiment = {
        "output": str(folder / "out"),
        "seeds": [0, 1],
        "evaluate": {"sentences": 6, "measure": ["reconstruction"]},
        "defaults": {
            "data": str(data),
            "model": {"d_model": 16, "ffn_size": 16, "max_positions": 64},
            "optimiser": {"steps": 4, "batch_size": 16, "learning_rate": 1e-3},
            "watch": {"evaluate_every": 2, "log_every": 2, "evaluate_sentences": 6, "bleu_sentences": 2},
        },
        "rows": {"t": {"config": "t.yaml"}, "nvae": {"config": "nvae.yaml", "label": "NVAE"}},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**experiment, **changes}, sort_keys=False))
    return path


def cell_of(experiment: Path, row: str, seed: int) -> Cell:
    (cell,) = load_experiment(experiment).cells([row], [seed])
    return cell


def result_of(cell: Cell) -> CellResult:
    """A result of the cell in which nothing was measured."""
    evaluation = Evaluation(settings=cell.evaluate, config=cell.train, recipe=Recipe(source={}, config={}))
    return CellResult(cell.row, cell.seed, {cell.evaluate.name: evaluation})


def wait_for(condition: Callable[[], Any], *, seconds: float = 240) -> Any:
    """What the condition gives, once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def process_in_the_middle(cell: Cell) -> int | None:
    """The process that runs a cell, once there is a checkpoint to go on from."""
    sealed = any((cell.run / "checkpoints").glob("checkpoint-*/complete.json"))
    return json.loads(cell.state_file.read_text())["pid"] if sealed else None


def logged_steps(cell: Cell) -> list[int]:
    """Steps of the training log, evaluations left out."""
    lines = map(json.loads, (cell.run / "log.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "loss" in line]
