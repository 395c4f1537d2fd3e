"""`demo`: prepare, train, evaluate, and show. Run again, it continues from what is there."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from open_nvib.evaluation import EvaluateConfig, evaluate
from open_nvib.report import check_output, write_run_report
from open_nvib.report.write import FIGURES
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import InputError, obstacle_to_writing
from open_nvib.store.runs import claim_directory
from open_nvib.store.settings import PARTS, DemoConfig, TrainConfig, packaged_config, paper_partitions
from open_nvib.store.yaml_file import read_mapping, settings_of
from open_nvib.text.data import PrepareConfig, Prepared, prepare
from open_nvib.text.data.prepared import is_prepared
from open_nvib.text.model.number import pairs_of_one_length
from open_nvib.text.training.train import train
from open_nvib.text.using.inspection import TokenReport, readable_token
from open_nvib.text.using.run import Run, load_run

CONFIG = "configs/small/nvae.yaml"
DATA, RUN = "data", "run"
OWN_LENGTHS: dict[str, Sequence[int]] = {"sentences": [3, 40]}
"""Tokens of the sentences that are used of a text of one's own."""
SENTENCES_SHOWN = 4
SENTENCES_TRIED = 200
"""Sentences among which those to show are looked for."""
GLIMPSES = 6
"""How often a sentence is reconstructed while the model trains."""
OTHER_OPTIONS = (
    "(The demo itself has --data, --layout, --steps and --output; other options are of nvib prepare and nvib train.)"
)
UNSEEN = ", lengths it never saw): a plain Transformer, too, does much worse on these"


@dataclass(frozen=True)
class Terminal:
    """Where the demo prints. Without `style`, struck text stands between dashes."""

    stream: Any
    style: bool

    @staticmethod
    def of(stream: Any = None) -> "Terminal":
        """A terminal on the stream, standard output if not given; with style if it can show it."""
        stream = sys.stdout if stream is None else stream
        return Terminal(stream, stream.isatty() and os.environ.get("TERM") != "dumb")

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def title(self, text: str) -> None:
        self.say(f"\n\x1b[1m{text}\x1b[0m" if self.style else f"\n{text}")

    def struck(self, text: str) -> str:
        return f"\x1b[2;9m{text}\x1b[0m" if self.style else f"-{text}-"


def demo(config: DemoConfig | None = None, out: Terminal | None = None) -> Path:
    """Run the demo. Returns the run directory."""
    config, out = config or DemoConfig(), out or Terminal.of()
    directory, path = config.directory, config.directory / RUN
    try:
        preparation = _preparation(config)
        _check_directory(directory)
        out.title(f"1. The text: {config.data}")
        prepared = prepare(preparation)
        out.say(prepared.summary())
        settings = _training(config, prepared)
        steps, batch_size = settings.optimiser.steps, settings.optimiser.batch_size
        out.title(f"2. Training a small NVAE: {steps:,} steps of {batch_size}")
        texts = list(prepared.split(settings.partition, "validation")["text"])
        train(settings, path, callbacks=[Glimpse(texts[0], settings, prepared.tokenizer, out)])
    except InputError as error:
        raise InputError(f"{error} {OTHER_OPTIONS}") from error
    out.title("3. Measuring it on text it has not seen")
    found = evaluate(path, _evaluation(config, prepared, settings), say=out.say)
    written = write_run_report(path, directory)
    run = load_run(path)
    shown = sorted(texts[:SENTENCES_TRIED], key=lambda text: abs(len(text) - 60))[:SENTENCES_SHOWN]
    _show(out, run, shown, found)
    _show_pair(out, run, texts[:SENTENCES_TRIED])
    out.title("Where to go on")
    out.say(f"  {written.page}: all of it as a page")
    quoted = shlex.quote(str(path))
    out.say(f"  nvib app {quoted}: look into the latent in the browser")
    out.say(f"  nvib inspect {quoted} {shlex.quote(shown[0])}")
    return path


class Glimpse(TrainerCallback):
    """Prints the reconstruction of one sentence at every evaluation."""

    def __init__(self, text: str, settings: TrainConfig, tokenizer: Any, out: Terminal) -> None:
        self.text, self.settings, self.tokenizer, self.out = text, settings, tokenizer, out
        self.seen = -1

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if model is None or not state.is_world_process_zero or state.global_step == self.seen:
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


def _preparation(config: DemoConfig) -> PrepareConfig:
    own = config.data != "enwik8"
    if own and not Path(config.data).expanduser().exists():
        raise InputError(f"demo: {config.data}: no such file. Give a text of your own, or leave --data out.")
    return PrepareConfig(
        source=config.data,
        layout=config.layout,
        output=str(config.directory / DATA),
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
        optimiser=replace(optimiser, steps=steps, warmup_steps=min(optimiser.warmup_steps, steps)),
        watch=replace(settings.watch, evaluate_every=max(1, steps // GLIMPSES)),
    )


def _evaluation(config: DemoConfig, prepared: Prepared, settings: TrainConfig) -> EvaluateConfig:
    return EvaluateConfig(
        samples=config.samples,
        scorer_steps=config.scorer_steps,
        sentences=1000,
        generalise=[name for name in prepared.partitions if name != settings.partition],
        interpolations=20,
        measure=[part for part in PARTS if part != "number"],
    )


def _show(out: Terminal, run: Run, texts: Sequence[str], found: Evaluation) -> None:
    """Print reconstructions, samples, an interpolation, and the numbers."""
    reports = run.inspect(texts)
    shared = any(token.shared for report in reports for token in report.tokens)
    out.title(f"Reconstructions: {'each bar begins a vector' if shared else 'what has no vector is struck through'}")
    for report in reports:
        out.say(f"  {mark_tokens(out, report.tokens)}   ({_kept(report.tokens)})")
        out.say(f"  → {report.reconstruction}")
    out.title("Samples: texts that nobody wrote, decoded from latents drawn from the prior")
    for text in run.sample(6):
        out.say(f"  {text}")
    out.title("An interpolation: mixtures of two latents")
    for text in run.interpolate(texts[0], texts[-1], steps=5):
        out.say(f"  {text}")
    out.title("The numbers, and what a plain Transformer is by them")
    for line in explain_numbers(found):
        out.say(f"  {line}")


def _show_pair(out: Terminal, run: Run, texts: Sequence[str]) -> None:
    """Print an easy and a hard sentence of one length with the vectors they need; nothing if none comes back."""
    found, _ = run.tokenize_usable(texts)
    ids = list(found.values())
    pairs = pairs_of_one_length(ids, run.find_needed(ids), 1)
    if not pairs:
        return
    easy, hard = pairs[0]
    out.title(f"Two sentences of {len(ids[easy])} tokens, with as many vectors as each needs to come back")
    for report in run.inspect([texts[list(found)[index]] for index in (easy, hard)], vectors="needed"):
        out.say(f"  {mark_tokens(out, report.tokens)}   ({_kept(report.tokens)})")


def explain_numbers(found: Evaluation) -> list[str]:
    """Each number beside that of a plain Transformer, which keeps everything and has no prior."""
    lines = []
    for index, (partition, part) in enumerate((found.reconstruction or {}).items()):
        lines.append(
            f"BLEU {_number(part.bleu, '.1f')}, {_number(part.exact, '.0%')} word for word ({partition}"
            + (UNSEEN if index else "): a plain Transformer comes close to 100, as it passes on everything")
        )
        lines.append(
            f"{_number(part.kept, '.0%')} of the vectors kept ({partition}): a plain Transformer keeps 100%, always"
        )
    if part := found.generation:
        forward, reverse, real_forward, real_reverse = (
            _number(value, ".0f")
            for value in (
                part.forward_perplexity,
                part.reverse_perplexity,
                part.real_forward_perplexity,
                part.real_reverse_perplexity,
            )
        )
        lines.append(
            f"F-PPL {forward} (real text {real_forward}): how surprising its samples are to a language model of real "
            f"text; a plain Transformer has no samples"
        )
        lines.append(
            f"R-PPL {reverse} (real text {real_reverse}): how surprising real text is to a language model of its "
            f"samples"
        )
    if part := found.latent:
        nats = _number(part.kl_gaussian, ".0f")
        lines.append(f"{nats} nats in the vectors of a sentence: a plain Transformer's have no bound")
    return lines


def _number(value: float | None, form: str) -> str:
    """A number; a dash where it is not finite, as the perplexity of a model that hardly learned can be."""
    return "-" if value is None else f"{value:{form}}"


def _kept(tokens: Sequence[TokenReport]) -> str:
    return f"{sum(token.kept for token in tokens)} of {len(tokens)} vectors"


def mark_tokens(out: Terminal, tokens: Sequence[TokenReport]) -> str:
    """The tokens as words again; a word is struck where all of it was dropped, else the pieces that were.

    Where tokens share vectors, a bar stands before the first of each.
    """
    bars = any(token.shared for token in tokens)
    words: list[list[TokenReport]] = []
    for token in tokens:
        if readable_token(token.token)[1] or not words:
            words.append([])
        words[-1].append(token)

    def text(token: TokenReport) -> str:
        return f"{'|' if bars and token.kept else ''}{readable_token(token.token)[0]}"

    def marked(word: list[TokenReport]) -> str:
        if not any(piece.present for piece in word):
            return out.struck("".join(map(text, word)))
        return "".join(text(piece) if piece.present else out.struck(text(piece)) for piece in word)

    return " ".join(map(marked, words))
