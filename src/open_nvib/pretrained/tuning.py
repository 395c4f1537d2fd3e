"""Convert and tune models on disk: `nvib convert` and `nvib tune`."""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from open_nvib.pretrained.convert import SECTIONS, NVIBConfig, convert, set_tau
from open_nvib.store.files import InputError, in_one_line

Metric = Literal["chrf", "bleu", "accuracy"]
Sampler = Literal["random", "optuna"]
METRICS: tuple[str, ...] = get_args(Metric)
TRIALS = "tune.jsonl"
TAU_ALPHA_RANGE, TAU_SIGMA_RANGE = (0.0, 10.0), (0.0, 0.5)
OFF_SHARE = 0.25
"""Share of trials in which a section's prior is off (τ_α infinite), and in which it has no noise (τ_σ = 0)."""

MAX_NEW_TOKENS = 128
"""Longest translation of a trial, in tokens."""

Taus = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Trial:
    """A setting of the dials, for each section, and its score. Infinity is written as "inf"."""

    number: int
    metric: str
    taus: dict[str, dict[str, Any]]
    score: float

    @property
    def settings(self) -> Taus:
        return {section: {name: float(value) for name, value in taus.items()} for section, taus in self.taus.items()}


def open_model(path: str) -> tuple[Any, Any]:
    """Open a model of transformers, with the class that its config names, and its tokenizer."""
    try:
        config = AutoConfig.from_pretrained(path)
        name = (config.architectures or [""])[0]
        kind = getattr(transformers, name, None)
        if kind is None:
            raise InputError(f"{path}: its config names the class {name!r}, expected one of transformers.")
        return kind.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be opened as a model with its tokenizer ({in_one_line(error)}).") from error


def convert_model(
    path: str, texts: Sequence[str], output: str, *, where: Sequence[str] = (), tau_alpha: float, tau_sigma: float
) -> str:
    """Convert a model on disk or on the hub, and write it with its tokenizer; returns what was converted."""
    model, tokenizer = open_model(path)
    target = Path(output).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{output}: exists already. Give another --output, or remove it first.")
    lines = [text for text in texts if text.strip()]
    try:
        taus: dict[str, Any] = {"tau_alpha": tau_alpha, "tau_sigma": tau_sigma}
        converted = convert(model, lines, tokenizer=tokenizer, where=tuple(where) or SECTIONS, **taus)
    except ValueError as error:
        raise InputError(in_one_line(error)) from error
    converted.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return f"{type(converted).__name__}: {', '.join(converted.config.quantization_config.sections)}"


def tune(
    path: str,
    pairs: Sequence[tuple[str, str]],
    *,
    metric: Metric = "chrf",
    trials: int = 20,
    sampler: Sampler = "random",
    seed: int = 0,
    where: Sequence[str] = (),
    batch_size: int = 16,
) -> Iterator[Trial]:
    """Search τ_α and τ_σ of each section with forward passes alone; yields each trial, best is the highest score.

    Trial 0 is the original model. Trials are lines of `tune.jsonl` in the model's directory: a search that was
    interrupted goes on after the last of them, and with more `trials` it goes further.

    Args:
        path: directory of a converted model.
        pairs: input and what is expected of it: a translation, or a label's name or number for `accuracy`.
        metric: `chrf` or `bleu` of greedy generation, or `accuracy` of a classifier.
        trials: number of settings in all.
        sampler: `random`, or `optuna` for its TPE sampler.
        seed: that of the search.
        where: sections to search; all converted ones if not given.
        batch_size: number of texts in a batch.
    """
    model, tokenizer = open_model(path)
    config = getattr(model.config, "quantization_config", None)
    if not isinstance(config, NVIBConfig):
        raise InputError(f"{path}: is not a converted model. Convert it with nvib convert first.")
    sections = [section for section in config.sections if not where or section in where]
    if not sections:
        raise InputError(f"{path}: --where is {', '.join(where)}, expected some of {', '.join(config.sections)}.")
    score = _scorer(model, tokenizer, metric, pairs, batch_size)
    file = Path(path).expanduser() / TRIALS
    done = [trial for trial in read_trials(file) if trial.metric == metric]
    if any(set(trial.taus) != set(sections) for trial in done):
        raise InputError(f"{file}: has trials of other sections. Remove it, or give the same --where.")
    search = OptunaSearch(seed, done) if sampler == "optuna" else RandomSearch(seed)
    yield from done[:trials]
    for number in range(len(done), trials):
        taus = identity_taus(sections) if number == 0 else search.suggest(number, sections)
        for section, values in taus.items():
            set_tau(model, alpha=values["tau_alpha"], sigma=values["tau_sigma"], where=(section,))
        written = {
            section: {name: "inf" if value == math.inf else value for name, value in values.items()}
            for section, values in taus.items()
        }
        trial = Trial(number, metric, written, score())
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(trial)) + "\n")
        search.tell(trial)
        yield trial


def apply_taus(path: str, taus: Taus) -> None:
    """Write the dials into the config of a converted model."""
    config = AutoConfig.from_pretrained(path)
    conversion = NVIBConfig(**config.quantization_config)
    for section, values in taus.items():
        conversion.sections[section].update(values)
    config.quantization_config = conversion
    config.save_pretrained(path)


def identity_taus(sections: Sequence[str]) -> Taus:
    """The dials with which a converted model is the original."""
    return {section: {"tau_alpha": math.inf, "tau_sigma": 0.0} for section in sections}


class RandomSearch:
    """Draws each trial from its number, so that a search can go on anywhere."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def suggest(self, number: int, sections: Sequence[str]) -> Taus:
        """Draw the dials of a trial."""
        generator = random.Random(f"{self.seed} {number}")

        def draw(low: float, high: float, off: float) -> float:
            return off if generator.random() < OFF_SHARE else round(generator.uniform(low, high), 4)

        return {
            section: {"tau_alpha": draw(*TAU_ALPHA_RANGE, math.inf), "tau_sigma": draw(*TAU_SIGMA_RANGE, 0.0)}
            for section in sections
        }

    def tell(self, trial: Trial) -> None:
        """Random search does not learn."""


class OptunaSearch:
    """Optuna's TPE sampler, told of the trials that exist already."""

    def __init__(self, seed: int, done: Sequence[Trial]) -> None:
        try:
            import optuna  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError(
                "--sampler optuna: optuna is not installed. Install it with pip install optuna."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna: Any = optuna
        self.study: Any = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        self.asked: Any = None
        for trial in done:
            self.tell(trial)

    def suggest(self, number: int, sections: Sequence[str]) -> Taus:
        """Ask the sampler for dials. τ_α is infinite at the end of its range."""
        self.asked = self.study.ask()
        high = TAU_ALPHA_RANGE[1]
        alphas = {section: self.asked.suggest_float(f"{section} alpha", *TAU_ALPHA_RANGE) for section in sections}
        sigmas = {section: self.asked.suggest_float(f"{section} sigma", *TAU_SIGMA_RANGE) for section in sections}
        return {
            section: {
                "tau_alpha": math.inf if alphas[section] == high else alphas[section],
                "tau_sigma": sigmas[section],
            }
            for section in sections
        }

    def tell(self, trial: Trial) -> None:
        """Tell the sampler the score of a trial."""
        if self.asked is not None:
            self.study.tell(self.asked, trial.score)
            self.asked = None
            return
        ranges = {"alpha": TAU_ALPHA_RANGE, "sigma": TAU_SIGMA_RANGE}
        values = {
            f"{section} {name}": min(taus[f"tau_{name}"], high)
            for section, taus in trial.settings.items()
            for name, (_, high) in ranges.items()
        }
        kinds = {key: self.optuna.distributions.FloatDistribution(*ranges[key.split()[1]]) for key in values}
        known = self.optuna.trial.create_trial(params=values, distributions=kinds, value=trial.score)
        self.study.add_trial(known)


def read_trials(file: Path) -> list[Trial]:
    """Read the trials of a search; none if there is no file. A last line that was cut off is left out."""
    if not file.exists():
        return []
    found = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            found.append(Trial(**json.loads(line)))
        except (ValueError, TypeError) as error:
            if number < len(lines):
                raise InputError(f"{file}: line {number} is damaged ({in_one_line(error)}). Remove it.") from error
            file.write_text("".join(each + "\n" for each in lines[:-1]), encoding="utf-8")
    return found


def read_pairs(file: str) -> list[tuple[str, str]]:
    """Read lines of input, tab, what is expected."""
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text ({in_one_line(error)}). Give a UTF-8 text file.") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        parts = line.split("\t")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise InputError(
                f"{file}: line {number} is {line[:40]!r}, expected a text, a tab and what is expected of it."
            )
        pairs.append((parts[0], parts[1]))
    if not pairs:
        raise InputError(f"{file}: has no line, expected pairs of a text, a tab and what is expected of it.")
    return pairs


def _scorer(
    model: Any, tokenizer: Any, metric: str, pairs: Sequence[tuple[str, str]], batch_size: int
) -> Callable[[], float]:
    inputs = [source for source, _ in pairs]
    expected = [target for _, target in pairs]
    if metric == "accuracy":
        labels = getattr(model.config, "label2id", None) or {}
        if not hasattr(model, "classifier"):
            raise InputError(f"--metric accuracy: the model is a {type(model).__name__}, expected a classifier.")
        unknown = [label for label in expected if label not in labels and not label.isdigit()]
        if unknown:
            raise InputError(f"--pairs: {unknown[0]!r} is no label, expected a number or one of {', '.join(labels)}.")
        numbers = [labels[label] if label in labels else int(label) for label in expected]
        return lambda: _accuracy(model, tokenizer, inputs, numbers, batch_size)
    if not model.can_generate() or not model.config.is_encoder_decoder:
        raise InputError(f"--metric {metric}: the model is a {type(model).__name__}, expected one that translates.")
    import sacrebleu

    compute = sacrebleu.corpus_bleu if metric == "bleu" else sacrebleu.corpus_chrf
    return lambda: compute(_generate(model, tokenizer, inputs, batch_size), [expected]).score


def _batches(tokenizer: Any, texts: Sequence[str], size: int) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), size):
        yield dict(tokenizer(list(texts[first : first + size]), padding=True, truncation=True, return_tensors="pt"))


@torch.no_grad()
def _generate(model: Any, tokenizer: Any, texts: Sequence[str], size: int) -> list[str]:
    found = []
    most = min(MAX_NEW_TOKENS, getattr(model.config, "max_position_embeddings", math.inf) - 1)
    for batch in _batches(tokenizer, texts, size):
        ids = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=most, max_length=None)
        found += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return found


@torch.no_grad()
def _accuracy(model: Any, tokenizer: Any, texts: Sequence[str], labels: Sequence[int], size: int) -> float:
    found = [model(**batch).logits.argmax(-1) for batch in _batches(tokenizer, texts, size)]
    return (torch.cat(found) == torch.tensor(labels)).float().mean().item()
