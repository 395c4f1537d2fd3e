"""`nvib demo`: prepare, train, evaluate, and show, in minutes. Run again, it continues from what is there."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.report import check_output, write_run_report
from open_nvib.report.summary import summarise_evaluation
from open_nvib.report.write import FIGURES
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import InputError, find_config, obstacle_to_writing, read_mapping
from open_nvib.store.runs import claim_directory
from open_nvib.store.settings import TrainConfig, settings_of
from open_nvib.store.task_settings import PARTS, DemoConfig, paper_partitions
from open_nvib.text.data import PrepareConfig, Prepared, prepare
from open_nvib.text.data.prepared import is_prepared
from open_nvib.text.training.train import train
from open_nvib.text.using.inspection import TokenReport, readable_token
from open_nvib.text.using.run import Run, load_run

CONFIG, ANY_NUMBER = "configs/small/nvae.yaml", "configs/small/nvae-any.yaml"
STEPS = 3000  # fewer than in the configuration: minutes on two cores
DATA, RUN = "data", "run"
OWN_LENGTHS: dict[str, Sequence[int]] = {"sentences": [3, 40]}  # tokens of the sentences of a text of one's own
SENTENCES_SHOWN = 4
SENTENCES_TRIED = 200  # sentences among which those to show are looked for
GLIMPSES = 6  # how often a sentence is reconstructed while the model trains
PLAIN_TRANSFORMER = (
    "A plain Transformer comes close to a BLEU of 100 on lengths that it was trained on, and much less on others. "
    "It keeps 100% of the vectors, with no bound on what they hold, and it has no prior to sample from."
)
OTHER_OPTIONS = "(Of these options, the demo has --data, --layout, --steps and --output.)"


class Terminal:
    """Where the demo prints. Without `style`, which a terminal has, struck text stands between dashes."""

    def __init__(self, stream: Any, *, style: bool | None = None) -> None:
        self.stream = stream
        self.style = stream.isatty() and os.environ.get("TERM") != "dumb" if style is None else style

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def title(self, text: str) -> None:
        self.say(f"\n\x1b[1m{text}\x1b[0m" if self.style else f"\n{text}")

    def struck(self, text: str) -> str:
        return f"\x1b[2;9m{text}\x1b[0m" if self.style else f"-{text}-"


def demo(config: DemoConfig | None = None, out: Terminal | None = None) -> Path:
    """Run the demo. Returns the run directory."""
    config, out = config or DemoConfig(), out or Terminal(sys.stdout)
    directory, path = config.directory, config.directory / RUN
    try:
        own = config.data != "enwik8"
        if own and not Path(config.data).expanduser().exists():
            raise InputError(f"demo: {config.data}: no such file. Give a text of your own, or leave --data out.")
        partitions, data = OWN_LENGTHS if own else paper_partitions(), str(directory / DATA)
        preparation = PrepareConfig(source=config.data, layout=config.layout, output=data, partitions=partitions)
        _check_directory(directory)
        out.title(f"1. The text: {config.data}")
        prepared = prepare(preparation)
        out.say(prepared.summary())
        settings = _training(config, prepared)
        steps, batch_size = settings.optimiser.steps, settings.optimiser.batch_size
        out.title(f"2. Training a small NVAE: {steps:,} steps of {batch_size}")
        texts = list(prepared.split(settings.partition, "validation")["text"])[:SENTENCES_TRIED]
        train(settings, path, callbacks=[Glimpse(texts[0], settings, prepared.tokenizer, out)])
    except InputError as error:
        raise InputError(f"{error} {OTHER_OPTIONS}") from error
    out.title("3. Measuring it on text it has not seen")
    evaluation = EvaluateConfig(
        samples=config.samples,
        scorer_steps=config.scorer_steps,
        sentences=1000,
        generalise=[name for name in prepared.partitions if name != settings.partition],
        interpolations=20,
        measure=[part for part in PARTS if part != "number"],
    )
    found = evaluate(path, evaluation, say=out.say)
    written = write_run_report(path, directory)
    shown = sorted(texts, key=lambda text: abs(len(text) - 60))[:SENTENCES_SHOWN]
    _show(out, load_run(path), shown, found)
    out.title("Where to go on")
    run, sentence, other = shlex.quote(str(path)), shlex.quote(shown[0]), shlex.quote(str(directory / "any"))
    out.say(f"  {written.page}: all of this as a page")
    out.say(f"  nvib app {run}  # look into the latent in a browser")
    out.say(f"  nvib inspect {run} {sentence}  # token by token")
    out.say("A model that takes any number of vectors, and finds the fewest for each text:")
    out.say(f"  nvib train --config {ANY_NUMBER} --data {shlex.quote(data)} --output {other}")
    return path


class Glimpse(TrainerCallback):
    """Prints the reconstruction of one sentence at every evaluation."""

    def __init__(self, text: str, settings: TrainConfig, tokenizer: Any, out: Terminal) -> None:
        self.text, self.settings, self.tokenizer, self.out = text, settings, tokenizer, out
        self.seen = -1

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or state.global_step == self.seen:
            return
        self.seen = state.global_step
        training = model.training
        run = Run(Path(), self.settings, model.eval(), self.tokenizer, torch.zeros(1, dtype=torch.long))
        (report,) = run.inspect([self.text])
        model.train(training)
        self.out.say(f"      {report.text}\n    → {report.reconstruction}   ({_kept(report.tokens)})")


def _check_directory(directory: Path) -> None:
    """Raise an InputError if the directory is neither empty nor that of a demo, before anything is written to it."""
    check_output(directory, (directory / FIGURES).glob("*.svg"))
    if obstacle := obstacle_to_writing(directory):
        raise InputError(f"{directory}: cannot be written ({obstacle}). Give another --output.")
    left_by_killed_demo = f".{DATA}."
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith(left_by_killed_demo))
    if names and not is_prepared(directory / DATA):
        raise InputError(
            f"{directory}: is not empty ({', '.join(names[:5])}) and has no {DATA} of a demo, so it is left alone. "
            f"Give another --output."
        )
    claim_directory(directory / RUN, TrainConfig(), overwrite=True)  # training finds whether the settings are others


def _training(config: DemoConfig, prepared: Prepared) -> TrainConfig:
    """The small configuration, and a batch that a small text can fill."""
    settings = settings_of(TrainConfig, read_mapping(find_config(CONFIG)), where=CONFIG)
    partition = next(iter(prepared.partitions))
    sentences = int(prepared.length_histogram(partition).sum())
    optimiser = replace(settings.optimiser, batch_size=min(settings.optimiser.batch_size, sentences))
    steps = config.steps or STEPS
    return replace(
        settings,
        data=str(prepared.path),
        partition=partition,
        seed=config.seed,
        optimiser=replace(optimiser, steps=steps, warmup_steps=min(optimiser.warmup_steps, steps)),
        watch=replace(settings.watch, evaluate_every=max(1, steps // GLIMPSES)),
    )


def _show(out: Terminal, run: Run, texts: Sequence[str], found: Evaluation) -> None:
    """Print reconstructions, samples, an interpolation and the numbers."""
    reports = run.inspect(texts)
    shared = any(token.shared for report in reports for token in report.tokens)
    out.title(
        f"Reconstructions ({'a bar begins a vector' if shared else 'tokens without a vector are struck through'})"
    )
    for report in reports:
        out.say(f"  {mark_tokens(out, report.tokens)}   ({_kept(report.tokens)})\n  → {report.reconstruction}")
    out.title("Samples: new texts, decoded from latents drawn from the prior")
    out.say("\n".join(f"  {text}" for text in run.sample(6)))
    out.title("An interpolation: texts decoded between the latents of two sentences")
    out.say("\n".join(f"  {text}" for text in run.interpolate(texts[0], texts[-1], steps=5)))
    out.title("The numbers")
    out.say("\n".join(f"  {line}" for line in summarise_evaluation(found).splitlines()))
    out.say(PLAIN_TRANSFORMER)


def _kept(tokens: Sequence[TokenReport]) -> str:
    return f"{sum(token.kept for token in tokens)} vectors for {len(tokens)} tokens"


def mark_tokens(out: Terminal, tokens: Sequence[TokenReport]) -> str:
    """The tokens as words again; a word is struck where all of it was dropped, else the pieces that were.

    Where tokens share vectors, a bar stands before the first of each.
    """
    bars = any(token.shared for token in tokens)
    words: list[list[tuple[str, bool]]] = []
    for token in tokens:
        text, begins_word = readable_token(token.token)
        if begins_word or not words:
            words.append([])
        words[-1].append((f"|{text}" if bars and token.kept else text, token.present))

    def marked(word: list[tuple[str, bool]]) -> str:
        if not any(present for _, present in word):
            return out.struck("".join(text for text, _ in word))
        return "".join(text if present else out.struck(text) for text, present in word)

    return " ".join(map(marked, words))
