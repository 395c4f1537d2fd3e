"""`demo`: prepare, train, evaluate, and show. Run again, it goes on from what is there."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from open_nvib.demo.summary import show_numbers, show_path, show_reconstructions, show_samples
from open_nvib.demo.terminal import Terminal
from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.experiments.yaml_file import read_mapping, settings_of
from open_nvib.report import check_output, write_run_report
from open_nvib.store.files import InputError, as_builtins
from open_nvib.store.settings import Layout, TrainConfig, packaged_config, paper_partitions
from open_nvib.text.data import PrepareConfig, Prepared, prepare
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run

CONFIG = "configs/small/nvae.yaml"
OWN_LENGTHS: dict[str, Sequence[int]] = {"sentences": [3, 40]}
"""Tokens of the sentences that are used of a text of one's own."""
SHOWN = 4
OTHERS = (
    "(The demo itself has --data, --layout, --steps and --output; other options are of nvib prepare and nvib train.)"
)
LOOKS = 6
"""How often a sentence is reconstructed while it trains."""


@dataclass(frozen=True)
class DemoConfig:
    """What the demo is told.

    Args:
        data: a text file or folder of your own, or enwik8, real Wikipedia, which pip can fetch.
        layout: of a text of your own: `running` text, or `sentences`, one on each line.
        output: where everything is written; `demo`, or `demo-NAME` for a text of your own, if not given.
        steps: training steps; as the small configuration has them if not given.
        samples: texts to generate for the perplexities.
        scorer_steps: training steps of the language models that score them.
        seed: of the training.
    """

    data: str = "enwik8"
    layout: Layout = "running"
    output: str | None = None
    steps: int | None = None
    samples: int = 5_000
    scorer_steps: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("samples", 2), ("scorer_steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"demo: {name} is {value}, wanted at least {least}.")

    @property
    def directory(self) -> Path:
        if self.output is not None:
            return Path(self.output).expanduser()
        return Path("demo" if self.data == "enwik8" else f"demo-{Path(self.data).stem or 'text'}")


def demo(config: DemoConfig | None = None, out: Terminal | None = None) -> Path:
    """Run it. Returns the run directory."""
    config, out = config or DemoConfig(), out or Terminal.of()
    directory, path = config.directory, config.directory / "run"
    check_output(directory)  # a report of the user's own is found before the work, not after it
    out.title(f"1. The text: {config.data}")
    try:
        prepared = prepare(_preparation(config))
    except InputError as error:
        raise InputError(f"{error} {OTHERS}") from error
    out.say(prepared.summary())
    settings = _training(config, prepared)
    partition = settings.partition
    out.title(f"2. Training a small NVAE: {settings.optimiser.steps:,} steps of {settings.optimiser.batch_size}")
    texts = list(prepared.split(partition, "validation")["text"])
    try:
        train(settings, path, callbacks=[Glimpse(texts[0], prepared.tokenizer, out)])
    except InputError as error:
        raise InputError(f"{error} {OTHERS}") from error
    out.title("3. Measuring it on text it has not seen")
    record = as_builtins(evaluate(path, _evaluation(config, prepared, settings), say=out.say))
    written = write_run_report(path, directory)
    run = load_run(path)
    shown = sorted(texts[:200], key=lambda text: abs(len(text) - 60))[:SHOWN]
    show_reconstructions(out, run, shown)
    show_samples(out, run)
    show_path(out, run, shown[0], shown[-1])
    show_numbers(out, record)
    out.title("Where to go on")
    out.say(f"  {written.page}: all of it as a page")
    quoted = shlex.quote(str(path))
    out.say(f"  nvib app {quoted}: look into the latent in the browser")
    out.say(f"  nvib inspect {quoted} {shlex.quote(shown[0])}")
    return path


class Glimpse(TrainerCallback):
    """Shows how one sentence comes back, at every evaluation."""

    def __init__(self, text: str, tokenizer: Any, out: Terminal) -> None:
        self.text, self.tokenizer, self.out = text, tokenizer, out
        self.seen = -1

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if model is None or not state.is_world_process_zero or state.global_step == self.seen:
            return
        self.seen = state.global_step
        training = model.training
        run = Run(Path(), model.eval(), self.tokenizer, torch.zeros(1, dtype=torch.long))
        (report,) = run.inspect([self.text])
        model.train(training)
        kept = sum(token.kept for token in report.tokens)
        self.out.say(f"      {report.text}\n    → {report.reconstruction}   ({kept} of {len(report.tokens)} vectors)")


def _preparation(config: DemoConfig) -> PrepareConfig:
    own = config.data != "enwik8"
    if own and not Path(config.data).expanduser().exists():
        raise InputError(f"demo: {config.data}: no such file. Give a text of your own, or leave --data out.")
    return PrepareConfig(
        source=config.data,
        layout=config.layout,
        output=str(config.directory / "data"),
        partitions=OWN_LENGTHS if own else paper_partitions(),
    )


def _training(config: DemoConfig, prepared: Prepared) -> TrainConfig:
    """The small configuration, and a batch that a small text can fill."""
    file = packaged_config(CONFIG)
    assert file is not None, "it comes with the package"
    settings = settings_of(TrainConfig, read_mapping(file), where=str(file))
    partition = next(iter(prepared.partitions))
    sentences = int(prepared.length_histogram(partition).sum())
    optimiser = replace(settings.optimiser, batch_size=min(settings.optimiser.batch_size, sentences))
    steps = config.steps or optimiser.steps_for(sentences)
    return replace(
        settings,
        data=str(prepared.path),
        partition=partition,
        seed=config.seed,
        optimiser=replace(optimiser, steps=steps),
        watch=replace(settings.watch, evaluate_every=max(1, steps // LOOKS)),
    )


def _evaluation(config: DemoConfig, prepared: Prepared, settings: TrainConfig) -> EvaluateConfig:
    others = [name for name in prepared.partitions if name != settings.partition]
    return EvaluateConfig(
        samples=config.samples,
        scorer_steps=config.scorer_steps,
        sentences=1000,
        generalise=others,
        interpolations=20,
    )
