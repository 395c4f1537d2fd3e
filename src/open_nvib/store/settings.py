"""Typed settings of preparation, training and evaluation, as YAML and the command line give them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from open_nvib.schedules import Schedule as Schedule
from open_nvib.store.files import InputError, as_builtins, in_one_line


def differences(known: Any, now: Any) -> list[str]:
    """Name the settings that differ, as paths such as model.kappa.

    Both are dataclasses or mappings. `known` may be older than the code: a setting that it lacks has the default of
    the dataclass `now`.
    """
    return sorted(_differences(_with_defaults(as_builtins(known), _defaults(now)), as_builtins(now)))


def _defaults(settings: Any) -> dict[str, Any]:
    if not is_dataclass(settings):
        return {}
    made = {f.name: f.default_factory() for f in fields(settings) if f.default_factory is not MISSING}
    return as_builtins(made | {f.name: f.default for f in fields(settings) if f.default is not MISSING})


def _with_defaults(known: Any, defaults: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(defaults, dict):
        return known
    return {**defaults, **{name: _with_defaults(value, defaults.get(name)) for name, value in known.items()}}


def _differences(a: Any, b: Any, path: str = "") -> set[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = a.keys() | b.keys()
        return {d for name in names for d in _differences(a.get(name), b.get(name), f"{path}.{name}".strip("."))}
    return set() if a == b else {path}


def packaged_config(name: str) -> Path | None:
    """Find a configuration such as `configs/small/nvae.yaml` in the installed package or in the clone."""
    package = Path(__file__).parents[1]
    for folder in (package, package.parents[1]):
        if name.startswith("configs/") and ".." not in name and (folder / name).is_file():
            return folder / name
    return None


LARGEST_SEED = 2**32 - 1
"""Every generator of random numbers takes seeds up to this."""


MOST = 2**31 - 1
"""Of whatever is counted, where nothing else is said."""
BOUNDS: dict[str, tuple[float, float]] = {
    # The model
    **dict.fromkeys(("d_model", "latent_size", "ffn_size", "max_positions"), (1, 2**24)),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "heads", "kappa"), (1, 1000)),
    **dict.fromkeys(("dropout", "stride"), (0, 0.999)),
    "alpha0_p": (1e-6, 1e6),
    # The loss
    **dict.fromkeys(("lambda_g", "lambda_d"), (0, 1e9)),
    "delta": (0, 1e6),
    "alpha_contrast": (0, 1),
    **dict.fromkeys(("keep_share", "smallest_share"), (1e-6, 1)),
    # Training
    **dict.fromkeys(("steps", "batch_size", "accumulate"), (1, MOST)),
    **dict.fromkeys(("log_every", "evaluate_every", "keep_checkpoints"), (1, MOST)),
    "epochs": (1e-6, 1e9),
    "learning_rate": (1e-12, 1e38),  # what is too high for a model is seen in training
    "decay_share": (0, 1),
    "clip": (0, 1e9),
    "weight_decay": (0, 1e3),
    # Data and measurements
    **dict.fromkeys(("per_partition", "limit", "count", "scorer_steps"), (1, MOST)),
    **dict.fromkeys(("importance_samples", "interpolations"), (1, MOST)),
    **dict.fromkeys(("samples", "interpolation_steps"), (2, MOST)),
    "vocab_size": (100, MOST),
    "workers": (0, 4096),
    "seed": (0, LARGEST_SEED),
}
"""The smallest and the largest value of every numeric setting, by name; from 0 to MOST where it is not listed."""


def check_number(name: str, value: Any, where: str = "") -> None:
    """Raise an InputError that names the setting if its number is out of bounds; NaN always is."""
    low, high = BOUNDS.get(name, (0, MOST))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not low <= value <= high:
        expected = f"at least {low}" if value < low else f"at most {high}" if value > high else f"{low} to {high}"
        raise InputError(f"{where}{name} is {in_one_line(repr(value))}, expected {expected}.")


def check_numbers(settings: Any, *kinds: Any, where: str = "") -> None:
    """Check the numbers of settings, and of their schedules: the fields of `kinds`, or of their own class."""
    for option in (option for kind in kinds or (settings,) for option in fields(kind)):
        value = getattr(settings, option.name)
        for number in (value.start, value.end) if isinstance(value, Schedule) else (value,):
            check_number(option.name, number, where)
        if isinstance(value, Schedule):  # its steps
            check_numbers(value, where=f"{where}{option.name}: ")


BottleneckKind = Literal["t", "vt", "vtp", "vts", "nvae"]


@dataclass(frozen=True)
class ModelSettings:
    """The model: one encoder and one decoder around a bottleneck. The defaults are the paper's sizes.

    The one definition of these options: `TextAutoencoderConfig` takes its fields from here. The vocabulary comes with
    the data.

    Args:
        bottleneck: t (none), vt (a Gaussian for each vector), vtp (one pooled vector), vts (vectors dropped at a
            stride) or nvae (NVIB).
        d_model: size of embeddings and hidden states.
        latent_size: size of a latent vector; d_model if not given.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        heads: heads of each attention.
        ffn_size: size of the feed-forward layers.
        dropout: share dropped after embeddings, attentions and feed-forward layers.
        positions: sinusoidal, which any length has, or learned, up to max_positions.
        max_positions: longest text in tokens.
        tie_word_embeddings: whether the output projection is the embedding matrix.
        pooling: of vtp: mean, max or cls, the first vector.
        stride: of vts: the share of vectors dropped.
        stride_pooling: of vts: a vector that stays is the mean of its token and of those dropped after it, as NVIB
            merges them with keep_share.
        alpha0_p: of nvae: the concentration of the prior.
        alpha_activation: of nvae: relu or softplus.
        alpha_unit: of nvae: what a count of 1 of the projection is, one (the paper's) or delta.
        gamma_method: of nvae: how weights are sampled, paper or implicit.
        kappa: of nvae: vectors sampled from each component.
        kl_form: of nvae: expected or exact.
        reading: of nvae: what test time reads, the mean of the process, as in the paper, or its points, the means of
            the vectors without their spread.
    """

    bottleneck: BottleneckKind = "nvae"
    d_model: int = 256
    latent_size: int | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    heads: int = 1
    ffn_size: int = 256
    dropout: float = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 512
    tie_word_embeddings: bool = False
    pooling: Literal["mean", "max", "cls"] = "mean"
    stride: float = 0.5
    stride_pooling: bool = False
    alpha0_p: float = 1.0
    alpha_activation: Literal["relu", "softplus"] = "relu"
    alpha_unit: Literal["one", "delta"] = "one"
    gamma_method: Literal["paper", "implicit"] = "paper"
    kappa: int = 1
    kl_form: Literal["expected", "exact"] = "expected"
    reading: Literal["mean", "points"] = "mean"

    def __post_init__(self) -> None:
        check_model_options(self)


def check_model_options(options: Any) -> None:
    """Raise a ValueError that names the option if a value of `ModelSettings`, or of a copy of it, is wrong."""
    check_numbers(options, ModelSettings)
    if options.d_model % options.heads:
        raise ValueError(f"d_model = {options.d_model} is not a multiple of heads = {options.heads}. Change one.")


@dataclass(frozen=True)
class ScheduledValues:
    """The numbers of `LossSettings` at one step."""

    lambda_g: float
    lambda_d: float
    delta: float
    alpha_contrast: float | None
    keep_share: float | None
    shares: Literal["uniform", "log_uniform"] | None
    smallest_share: float


@dataclass(frozen=True)
class LossSettings:
    """The loss: cross-entropy per token + λ′_G/(n d) L_G + λ′_D/n L_D. Each is a number or a schedule.

    Args:
        lambda_g: λ′_G, which presses on the content of the vectors.
        lambda_d: λ′_D, which presses on their number.
        delta: Δ, the pseudo-count that the conditional prior expects of each token.
        alpha_contrast: of nvae: by how much tokens may differ in α, from 0 (all alike) to 1, which is the paper's.
        keep_share: of nvae: vectors for each token, above 0 and at most 1: neighbouring tokens share one. The paper's
            NVAE, a vector for each token, if not given.
        shares: of nvae with keep_share and vts with stride_pooling: training draws the share of each text from this
            distribution, uniform or log_uniform, from smallest_share to 1, so that the model takes any number of
            vectors. keep_share and stride then say how many a text gets if nobody says. Fixed if not given.
        smallest_share: of shares: where the distribution begins.
    """

    lambda_g: float | Schedule = 0.01
    lambda_d: float | Schedule = 1.0
    delta: float | Schedule = 1.0
    alpha_contrast: float | Schedule | None = None
    keep_share: float | Schedule | None = None
    shares: Literal["uniform", "log_uniform"] | None = None
    smallest_share: float = 0.12

    def __post_init__(self) -> None:
        check_numbers(self)
        for values in (self._values(lambda schedule: schedule.start), self.at_end()):
            if values.keep_share is not None and values.delta == 0:
                raise ValueError("delta is 0, expected more with keep_share, whose vectors hold Δ/keep_share.")

    def at(self, step: int) -> ScheduledValues:
        """Return the numbers at a step."""
        return self._values(lambda schedule: schedule.at(step))

    def at_end(self) -> ScheduledValues:
        """Return the numbers at which the schedules end."""
        return self._values(lambda schedule: schedule.end)

    def _values(self, value_of: Callable[[Schedule], float]) -> ScheduledValues:
        def number(value: float | str | Schedule | None) -> Any:
            if isinstance(value, Schedule):
                return value_of(value)
            return float(value) if isinstance(value, int) else value

        return ScheduledValues(**{f.name: number(getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True)
class OptimiserSettings:
    """How the weights are learned.

    Args:
        steps: optimiser steps in all; if not given, `epochs` says.
        epochs: passes over the data, where `steps` is not given.
        batch_size: texts in an optimiser step on one process, before accumulation.
        accumulate: batches whose gradients are added up for one step.
        learning_rate: the highest learning rate.
        schedule: constant, or warmup_stable_decay: up over `warmup_steps`, then constant, then down to 0 over the last
            `decay_share` of the steps.
        warmup_steps: steps until the learning rate is reached.
        decay_share: share of the steps in which it falls to 0.
        clip: largest norm of the gradient; 0 does not clip.
        weight_decay: AdamW's; 0 is Adam.
        precision: float32, or bf16 for autocast.
    """

    steps: int | None = None
    epochs: float = 50
    batch_size: int = 256
    accumulate: int = 1
    learning_rate: float = 5e-5
    schedule: Literal["constant", "warmup_stable_decay"] = "constant"
    warmup_steps: int = 0
    decay_share: float = 0.2
    clip: float = 0.1
    weight_decay: float = 0.0
    precision: Literal["float32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        check_numbers(self)

    def steps_for(self, sentences: int, processes: int = 1) -> int:
        """Count the optimiser steps on that many sentences; an epoch drops its last batch if that is not full."""
        per_epoch = max(1, sentences // (self.batch_size * self.accumulate * processes))
        return self.steps or max(1, int(per_epoch * self.epochs))


@dataclass(frozen=True)
class WatchSettings:
    """What is looked at and kept on the way.

    Args:
        log_every: steps between two lines of the log.
        evaluate_every: steps between two evaluations on validation data, each with a checkpoint.
        evaluate_sentences: validation sentences for the losses; 0 takes all.
        bleu_sentences: how many of these are reconstructed for BLEU.
        best_metric: the checkpoint kept as the model is the best by this: bleu, loss or exact; or last.
        keep_checkpoints: checkpoints kept beside the best.
        trackers: trackers of the Hugging Face Trainer to log to, such as tensorboard or wandb.
    """

    log_every: int = 50
    evaluate_every: int = 250
    evaluate_sentences: int = 2000
    bleu_sentences: int = 500
    best_metric: Literal["bleu", "loss", "exact", "last"] = "last"
    keep_checkpoints: int = 2
    trackers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Args:
        data: directory of prepared data, as `nvib prepare` writes it.
        partition: the partition to train on.
        seed: of the weights, the order of the data and the noise.
        model: the model.
        loss: the loss and its schedules.
        optimiser: how the weights are learned.
        watch: logging, evaluation and checkpoints.
    """

    data: str = "data/enwik8"
    partition: str = "short"
    seed: int = 0
    model: ModelSettings = field(default_factory=ModelSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)

    def __post_init__(self) -> None:
        check_numbers(self)


Layout = Literal["running", "sentences"]
TRAINED_TOKENIZER = "train"


def paper_partitions() -> dict[str, Sequence[int]]:
    """Return the bounds of the paper's partitions, in tokens."""
    return {"short": [5, 20], "long": [21, 50]}


@dataclass(frozen=True)
class PrepareConfig:
    """Settings of `prepare`, which turns raw text into training data. The defaults prepare enwik8, as in the docs.

    Args:
        source: The text: `enwik8`, `wikitext-103`, `wikitext-2`, a file or folder (.txt, .jsonl, .csv, .parquet,
            WikiText .tokens/.raw, MediaWiki .xml; .gz and .bz2 of the text formats), or the id of a dataset on the
            Hugging Face hub.
        output: The directory to write: a new or empty one, or data that was prepared before.
        column: The column (or JSON key) that holds the text, in .jsonl, .csv, .parquet and hub datasets.
        dataset_config: The configuration of a hub dataset, where it has several.
        dataset_split: The split of a hub dataset to read. It is split again, by `seed`.
        dataset_revision: The branch, tag or commit of a hub dataset; without it, the newest.
        layout: `running` for running text, which is split into sentences, or `sentences` for one sentence a line
            (or a row), which is not split.
        language: The language of the text for the sentence splitter, such as `en`.
        drop_residue: Drop text that does not look like a sentence: no capital or digit at the start, no final
            punctuation, or markup left in it. If not given, only text that comes with markup (enwik8, WikiText and
            MediaWiki dumps) is judged so; text of your own is kept as it is.
        tokenizer: `train` for a WordPiece trained on the training split, `bert-base-uncased` or any other tokenizer on
            the hub, or a local vocab.txt (read as uncased BERT's), tokenizer.json or folder of a saved tokenizer.
        vocab_size: Entries of a trained WordPiece, with the five special tokens.
        lowercase: Whether a trained WordPiece or a local vocab.txt lowers case and strips accents, as uncased BERT.
        partitions: Smallest and largest number of tokens of each partition, both included, without special tokens.
        per_partition: Sentences to sample into each partition, its three splits together; all if there are fewer.
        limit: Stop reading after about this many sentences; without it, read all.
        seed: The seed of the split and of the sample.
        workers: Processes that clean and split text; 0 for one per core. The result does not depend on it.
    """

    source: str = "enwik8"
    output: str = "data/enwik8"
    column: str = "text"
    dataset_config: str | None = None
    dataset_split: str = "train"
    dataset_revision: str | None = None
    layout: Layout = "running"
    language: str = "en"
    drop_residue: bool | None = None
    tokenizer: str = TRAINED_TOKENIZER
    vocab_size: int = 3000
    lowercase: bool = True
    partitions: dict[str, Sequence[int]] = field(default_factory=paper_partitions)
    per_partition: int = 500_000
    limit: int | None = None
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("source", "output", "column", "tokenizer"):
            if not getattr(self, name):
                raise InputError(f"prepare: {name} is empty, expected a name or a path. Give --{name}.")
        if self.layout not in ("running", "sentences"):
            raise InputError(f"prepare: layout is {self.layout!r}, expected 'running' or 'sentences'.")
        check_numbers(self, where="prepare: ")
        if not self.partitions:
            raise InputError("prepare: partitions is empty, expected at least one, such as {short: [5, 20]}.")
        for name, bounds in self.partitions.items():
            _check_partition(name, bounds)


def _check_partition(name: str, bounds: Sequence[int]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name == "tokenizer":
        raise InputError(
            f"prepare: partitions has the name {name!r}, expected letters, digits, - and _, and not 'tokenizer': it "
            f"names a folder. Choose another name."
        )
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise InputError(
            f"prepare: partitions has {name!r}: {list(bounds)}, expected [smallest, largest] number of tokens "
            f"with 1 <= smallest <= largest, such as [5, 20]."
        )


Part = Literal["reconstruction", "generation", "latent", "interpolation", "number"]
PARTS: tuple[Part, ...] = ("reconstruction", "generation", "latent", "interpolation", "number")


@dataclass(frozen=True)
class EvaluateConfig:
    """What to measure, and on how much.

    Args:
        split: validation or test.
        measure: which of reconstruction, generation, latent, interpolation and number: the number of vectors of a model
            that takes any.
        sentences: sentences of the split to reconstruct, chosen by the seed; 0 for all.
        generalise: partitions the model was not trained on to reconstruct, too; by default long, where the data has it.
        samples: texts to generate from the prior.
        scorer: causal, a language model, or autoencoder, which copies the sentence it scores: its numbers can be held
            against the published ones and say nothing about a language.
        scorer_steps: training steps of every scorer.
        latent_sentences: sentences for the diagnosis of the latent; 0 for all.
        importance_samples: samples of the latent for each of them.
        interpolations: pairs of sentences to interpolate between.
        interpolation_steps: points on each path, both ends included.
        seed: of the choice of sentences, the samples and the scorers.
    """

    split: Literal["validation", "test"] = "validation"
    measure: list[Part] = field(default_factory=lambda: list(PARTS))
    sentences: int = 2000
    generalise: list[str] = field(default_factory=lambda: ["long"])
    samples: int = 20_000
    scorer: Literal["causal", "autoencoder"] = "causal"
    scorer_steps: int = 600
    latent_sentences: int = 200
    importance_samples: int = 64
    interpolations: int = 50
    interpolation_steps: int = 7
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [part for part in self.measure if part not in PARTS]
        if unknown or not self.measure:
            raise ValueError(f"measure is {self.measure}, expected some of {', '.join(PARTS)}.")
        check_numbers(self)


_NOT_IN_RECIPE = ("source", "output", "workers", "column", "dataset_config", "dataset_split", "dataset_revision")
"""Settings that do not change the data, and those that the identity of the source contains."""


def recipe_settings(config: PrepareConfig) -> dict[str, Any]:
    """Select the settings that decide the prepared data, in JSON's own types."""
    settings = {name: value for name, value in asdict(config).items() if name not in _NOT_IN_RECIPE}
    settings["partitions"] = {name: list(bounds) for name, bounds in config.partitions.items()}
    if config.tokenizer != TRAINED_TOKENIZER:
        del settings["vocab_size"]
    return settings


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo.

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
    samples: int = 2_000
    scorer_steps: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, where="demo: ")

    @property
    def directory(self) -> Path:
        """Where everything is written."""
        if self.output is not None:
            return Path(self.output).expanduser()
        return Path("demo" if self.data == "enwik8" else f"demo-{Path(self.data).stem or 'text'}")


@dataclass(frozen=True)
class Recipe:
    """What prepared data was made from and how: equal recipes make equal data.

    Attributes:
        source: what identifies the text: its name, and digests of its files.
        config: the settings of `PrepareConfig` that decide the result, and digests of a local tokenizer's files.
    """

    source: dict[str, Any]
    config: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, with the default of each that is newer than the recipe."""
        tokenizer = self.config.get("tokenizer", TRAINED_TOKENIZER)
        return {**recipe_settings(PrepareConfig(tokenizer=tokenizer, drop_residue=True)), **self.config}

    def differences(self, other: "Recipe") -> list[str]:
        """Name what differs in another recipe, as in "seed was 0, now 5"; empty if the two make equal data.

        Where the other one leaves `drop_residue` to the kind of the text, what this one did is right.
        """
        old, new = ({**recipe.source, **recipe.settings} for recipe in (self, other))
        return [
            f"{name} differ" if name.endswith("files") else f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
            for name in {**old, **new}
            if old.get(name) != new.get(name) and (name, new.get(name)) != ("drop_residue", None)
        ]
