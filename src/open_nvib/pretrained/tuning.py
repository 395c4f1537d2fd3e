"""Convert and tune models on disk: `nvib convert` and `nvib tune`."""

import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from open_nvib.experiments.cell import reason_of
from open_nvib.experiments.engines import Engine, Job
from open_nvib.experiments.experiment import Say
from open_nvib.pretrained.convert import SECTIONS, NVIBConfig, convert, encode_texts, generate_greedily, nvibs, set_tau
from open_nvib.store.files import InputError, digest, digest_of_file, in_one_line

Metric = Literal["chrf", "bleu", "accuracy"]
Sampler = Literal["random", "optuna"]
TRIALS, LOG = "tune.jsonl", "tune.log"
RANGES = {"tau_alpha": 10.0, "tau_sigma": 0.5}
"""Largest values to try; the smallest are 0."""
OFF = {"tau_alpha": math.inf, "tau_sigma": 0.0}
"""The dials with which a converted model is the original."""
OFF_SHARE = 0.25
"""Share of the search in which a dial is off."""

MAX_NEW_TOKENS = 128
"""Longest translation of a trial, in tokens."""

Taus = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Trial:
    """A setting of the dials, for each section, and its score. Infinity is written as "inf"."""

    number: int
    metric: str
    pairs: str
    taus: dict[str, dict[str, Any]]
    score: float
    weights: str = ""

    @property
    def settings(self) -> Taus:
        return {section: {name: float(value) for name, value in taus.items()} for section, taus in self.taus.items()}


@dataclass(frozen=True)
class FailedTrial:
    """A trial without a score, because its process was lost."""

    number: int
    reason: str


@dataclass(frozen=True)
class TrialJob(Job):
    """A trial as an engine runs it; its outcome is a `Trial` or a `FailedTrial`."""

    model: str
    metric: str
    pairs: tuple[tuple[str, str], ...]
    batch_size: int
    number: int
    taus: Taus
    weights: str

    def __str__(self) -> str:
        return f"trial {self.number}"

    @property
    def log_file(self) -> Path:
        return Path(self.model).expanduser() / LOG

    def run(self, *, say: Say, wait_seconds: float) -> Trial:
        model, score = _open_scorer(self.model, self.metric, self.pairs, self.batch_size)
        for section, values in self.taus.items():
            set_tau(model, alpha=values["tau_alpha"], sigma=values["tau_sigma"], where=(section,))
        written = {
            section: {name: "inf" if value == math.inf else value for name, value in values.items()}
            for section, values in self.taus.items()
        }
        return Trial(self.number, self.metric, digest(self.pairs), written, score(), self.weights)

    def failed(self, error: BaseException) -> FailedTrial:
        return FailedTrial(self.number, reason_of(error))

    def lost(self, reason: str, pid: int | None) -> FailedTrial:
        return FailedTrial(self.number, reason)


def open_model(path: str) -> tuple[Any, Any]:
    """Open a model of transformers, with the class that its config names, and its tokenizer."""
    try:
        config = AutoConfig.from_pretrained(path)
        name = (config.architectures or [""])[0]
        kind = getattr(transformers, name, None)
        if kind is None:
            raise InputError(f"{path}: its config names the class {name!r}, expected one of transformers.")
        model, tokenizer = kind.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise InputError(f"{path}: has no tokenizer, expected one beside the model. Save it there.")
        return model, tokenizer
    except InputError:
        raise
    except Exception as error:  # of transformers, safetensors and tokenizers: each has its own
        raise InputError(f"{path}: cannot be opened as a model with its tokenizer ({in_one_line(error)}).") from error


def convert_model(
    path: str, texts: Sequence[str], output: str, *, where: Sequence[str] = (), tau_alpha: float, tau_sigma: float
) -> str:
    """Convert a model on disk or on the hub, and write it with its tokenizer; returns what was converted."""
    target = Path(output).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{output}: exists already. Give another --output, or remove it first.")
    model, tokenizer = open_model(path)
    lines = [text for text in texts if text.strip()]
    try:
        taus: dict[str, Any] = {"tau_alpha": tau_alpha, "tau_sigma": tau_sigma}
        converted = convert(model, lines, tokenizer=tokenizer, where=tuple(where) or SECTIONS, **taus)
    except ValueError as error:
        raise InputError(in_one_line(error)) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nvib-", dir=target.parent) as folder:  # whole, or not there at all
        whole = Path(folder) / "model"
        converted.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        if target.exists():
            target.rmdir()
        whole.rename(target)
    return f"{type(converted).__name__}: {', '.join(converted.config.quantization_config.sections)}"


def tune(
    path: str,
    pairs: Sequence[tuple[str, str]],
    engine: Engine,
    *,
    metric: Metric = "chrf",
    trials: int = 20,
    sampler: Sampler = "random",
    seed: int = 0,
    where: Sequence[str] = (),
    batch_size: int = 16,
    say: Say,
) -> Iterator[Trial | FailedTrial]:
    """Search τ_α and τ_σ of each section with forward passes alone; yields each trial, best is the highest score.

    In trial 0 all these dials are off. Sections that are not searched stay as they are. Trials are lines of
    `tune.jsonl` in the model's directory: a search that was interrupted goes on with those that are missing, and with
    more `trials` it goes further.

    Args:
        path: directory of a converted model, which all workers of the engine must see.
        pairs: input and what is expected of it: a translation, or a label's name or number for `accuracy`.
        engine: where trials run; workers in processes of their own open the model for each trial.
        metric: `chrf` or `bleu` of greedy generation, or `accuracy` of a classifier.
        trials: number of settings in all.
        sampler: `random`, or `optuna` for its TPE sampler, which chooses as many as the engine runs at a time.
        seed: that of the search.
        where: sections to search; all converted ones if not given.
        batch_size: number of texts in a batch.
        say: takes a line of progress.
    """
    if trials < 1:
        raise InputError(f"--trials: got {trials}, expected at least 1.")
    _open_scorer.cache_clear()
    model, _ = _open_scorer(path, metric, tuple(pairs), batch_size)
    config = model.config.quantization_config
    sections = [section for section in config.sections if not where or section in where]
    if not sections:
        raise InputError(f"{path}: --where is {', '.join(where)}, expected some of {', '.join(config.sections)}.")
    dials = [name for name in RANGES if name == "tau_alpha" or not any(nvib.rotary for _, nvib in nvibs(model))]
    suggest = suggest_by_optuna if sampler == "optuna" else suggest_at_random
    file = Path(path).expanduser() / TRIALS
    weights = fingerprint(path, {name: taus for name, taus in config.sections.items() if name not in sections})
    same = metric, digest(pairs), weights
    done = [trial for trial in read_trials(file) if (trial.metric, trial.pairs, trial.weights) == same]
    if any(set(trial.taus) != set(sections) for trial in done):
        raise InputError(f"{file}: has trials of other sections. Remove it, or give the same --where.")
    yield from (trial for trial in done if trial.number < trials)
    missing = sorted(set(range(trials)) - {trial.number for trial in done})
    with engine:
        at_once = len(missing) if sampler == "random" else engine.slots
        while missing:
            numbers, missing = missing[:at_once], missing[at_once:]
            taus = suggest(seed, numbers, [f"{section} {dial}" for section in sections for dial in dials], done)
            jobs = [
                TrialJob(path, metric, tuple(pairs), batch_size, number, taus[number], weights) for number in numbers
            ]
            for outcome in engine.run(jobs, say=say):
                if isinstance(outcome, Trial):
                    done.append(outcome)
                    with file.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(asdict(outcome)) + "\n")
                yield outcome


def apply_taus(path: str, taus: Taus) -> None:
    """Write the dials into the config of a converted model."""
    config = AutoConfig.from_pretrained(path)
    conversion = NVIBConfig(**config.quantization_config)
    for section, values in taus.items():
        conversion.sections[section].update(values)
    config.quantization_config = conversion
    config.save_pretrained(path)


def suggest_at_random(
    seed: int, numbers: Sequence[int], names: Sequence[str], done: Sequence[Trial]
) -> dict[int, Taus]:
    """Draw the dials of each trial from its number, whatever was tried before."""
    generators = {number: random.Random(f"{seed} {number}") for number in numbers}
    return {number: _taus(number, {name: generators[number].random() for name in names}) for number in numbers}


def suggest_by_optuna(
    seed: int, numbers: Sequence[int], names: Sequence[str], done: Sequence[Trial]
) -> dict[int, Taus]:
    """Ask Optuna's TPE sampler for the dials of each trial, after telling it of those that were tried."""
    try:
        import optuna
    except ImportError as error:
        raise InputError("--sampler optuna: optuna is not installed. Install it with pip, or use random.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=random.Random(f"{seed} {numbers[0]}").getrandbits(32))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    kind = optuna.distributions.FloatDistribution(0.0, 1.0)
    for trial in done:
        params = {name: _place(name, trial.settings) for name in names}
        kinds: dict[str, Any] = dict.fromkeys(names, kind)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=trial.score))
    asked = {number: study.ask() for number in numbers}
    return {
        number: _taus(number, {name: trial.suggest_float(name, 0.0, 1.0) for name in names})
        for number, trial in asked.items()
    }


def _taus(number: int, places: dict[str, float]) -> Taus:
    """Convert places between 0 and 1 to dials: from 0 to their largest value, then off. In trial 0 all are off."""
    taus: Taus = {}
    for name, place in places.items():
        section, dial = name.split()
        value = round(RANGES[dial] * place / (1 - OFF_SHARE), 4)
        is_off = number == 0 or value > RANGES[dial]
        taus.setdefault(section, dict(OFF))[dial] = OFF[dial] if is_off else value
    return taus


def _place(name: str, taus: Taus) -> float:
    """Find the place between 0 and 1 of a dial, in the middle of all that are off."""
    section, dial = name.split()
    value = taus[section][dial]
    return 1 - OFF_SHARE / 2 if value == OFF[dial] else value / RANGES[dial] * (1 - OFF_SHARE)


def fingerprint(path: str, taus: Taus) -> str:
    """Compute a short name of the weights of a model, and of dials that stay as they are."""
    files = sorted(Path(path).expanduser().glob("*.safetensors"))
    return digest([taus, [digest_of_file(file) for file in files]])


def read_trials(file: Path) -> list[Trial]:
    """Read the trials of a search; none if there is no file. A last line that was cut off is left out."""
    if not file.exists():
        return []
    found = []
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is no UTF-8 text ({in_one_line(error)}). Remove it.") from error
    lines = text.splitlines()
    if lines and not text.endswith("\n"):
        file.write_text(text + "\n", encoding="utf-8")
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
        text = Path(file).expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text ({in_one_line(error)}). Give a UTF-8 text file.") from error
    pairs = []
    for number, line in enumerate(text.split("\n") if text else (), 1):
        parts = line.split("\t")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise InputError(
                f"{file}: line {number} is {line[:40]!r}, expected a text, a tab and what is expected of it."
            )
        pairs.append((parts[0], parts[1]))
    if not pairs:
        raise InputError(f"{file}: has no line, expected pairs of a text, a tab and what is expected of it.")
    return pairs


@lru_cache(maxsize=1)
def _open_scorer(
    path: str, metric: str, pairs: tuple[tuple[str, str], ...], batch_size: int
) -> tuple[Any, Callable[[], float]]:
    """Open a converted model, and return it with the function that computes its score."""
    model, tokenizer = open_model(path)
    if not isinstance(getattr(model.config, "quantization_config", None), NVIBConfig):
        raise InputError(f"{path}: is not a converted model. Convert it with nvib convert first.")
    inputs = [source for source, _ in pairs]
    expected = [target for _, target in pairs]
    if metric == "accuracy":
        if not type(model).__name__.endswith("ForSequenceClassification"):
            raise InputError(f"--metric accuracy: the model is a {type(model).__name__}, expected a classifier.")
        labels = {str(index): index for index in range(model.config.num_labels)} | model.config.label2id
        if unknown := [label for label in expected if label not in labels]:
            raise InputError(f"--pairs: {unknown[0]!r} is no label, expected one of {', '.join(labels)}.")
        numbers = [labels[label] for label in expected]
        return model, lambda: _accuracy(model, tokenizer, inputs, numbers, batch_size)
    if not model.can_generate() or not model.config.is_encoder_decoder:
        raise InputError(f"--metric {metric}: the model is a {type(model).__name__}, expected one that translates.")
    import sacrebleu

    compute = sacrebleu.corpus_bleu if metric == "bleu" else sacrebleu.corpus_chrf
    return model, lambda: compute(_generate(model, tokenizer, inputs, batch_size), [expected]).score


def _batches(model: Any, tokenizer: Any, texts: Sequence[str], size: int) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), size):
        yield encode_texts(model, tokenizer, texts[first : first + size])


@torch.no_grad()
def _generate(model: Any, tokenizer: Any, texts: Sequence[str], size: int) -> list[str]:
    found = []
    for batch in _batches(model, tokenizer, texts, size):
        ids = generate_greedily(model, batch, MAX_NEW_TOKENS)
        found += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return found


@torch.no_grad()
def _accuracy(model: Any, tokenizer: Any, texts: Sequence[str], labels: Sequence[int], size: int) -> float:
    found = [model(**batch).logits.argmax(-1) for batch in _batches(model, tokenizer, texts, size)]
    return (torch.cat(found) == torch.tensor(labels)).float().mean().item()
