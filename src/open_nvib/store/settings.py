"""Typed settings of training: their bounds, how they are compared, and how YAML and options become settings."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from open_nvib.schedules import Schedule as Schedule
from open_nvib.store.files import InputError, as_mapping, in_one_line, shown, suggestion

T = TypeVar("T")

LARGEST_SEED = 2**32 - 1  # every generator of random numbers takes seeds up to this


MOST = 2**31 - 1  # default upper bound of integer settings
BOUNDS: dict[str, tuple[float, float]] = {
    # The model
    **dict.fromkeys(("d_model", "latent_size", "ffn_size", "max_positions"), (1, 2**24)),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "heads", "kappa"), (1, 1000)),
    **dict.fromkeys(("dropout", "stride"), (0, 0.999)),
    "alpha0_p": (1e-6, 1e6),
    # The loss
    **dict.fromkeys(("lambda_g", "lambda_d"), (0, 1e9)),
    "delta": (0, 1e6),
    "alpha_contrast": (0, 1e3),
    **dict.fromkeys(("keep_share", "smallest_share"), (1e-6, 1)),
    "gate_share": (0.01, 0.99),
    # Training
    **dict.fromkeys(("steps", "batch_size", "accumulate"), (1, MOST)),
    **dict.fromkeys(("log_every", "evaluate_every", "keep_checkpoints"), (1, MOST)),
    "epochs": (1e-6, 1e9),
    "learning_rate": (1e-12, 1e38),  # what is too high for a model is seen in training
    "decay_share": (0, 1),
    "clip": (0, 1e9),
    "weight_decay": (0, 1e3),
    # Data and measurements
    **dict.fromkeys(("per_partition", "limit", "count", "texts", "scorer_steps"), (1, MOST)),
    **dict.fromkeys(("importance_samples", "interpolations"), (1, MOST)),
    **dict.fromkeys(("samples", "interpolation_steps"), (2, MOST)),
    "noise_scale": (0, 100),
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


def check_numbers(settings: Any, kind: Any = None, *, where: str = "") -> None:
    """Check the numbers of settings, and of their schedules: the fields of `kind`, or of their own class."""
    for option in fields(kind or settings):
        value = getattr(settings, option.name)
        for number in (value.start, value.end) if isinstance(value, Schedule) else (value,):
            check_number(option.name, number, where)
        if isinstance(value, Schedule):  # its steps
            check_numbers(value, where=f"{where}{option.name}: ")


BottleneckKind = Literal["t", "vt", "vtp", "vts", "nvae"]
BOTTLENECKS: tuple[BottleneckKind, ...] = get_args(BottleneckKind)
USED_BY: dict[str, tuple[BottleneckKind, ...]] = {
    "pooling": ("vtp",),
    **dict.fromkeys(("stride", "stride_pooling"), ("vts",)),
    **dict.fromkeys(("alpha0_p", "alpha_activation", "alpha_unit", "gamma_method", "kappa", "kl_form"), ("nvae",)),
    **dict.fromkeys(("gate_share", "gate_pooling", "bound_queries"), ("nvae",)),
    **dict.fromkeys(("reading", "lambda_d", "delta", "alpha_contrast", "keep_share"), ("nvae",)),
    "lambda_g": ("vt", "vtp", "vts", "nvae"),
    **dict.fromkeys(("shares", "smallest_share"), ("vts", "nvae")),
}
"""The kinds of model that use an option; all of them where it is not listed."""
SIZES = ("d_model", "latent_size", "encoder_layers", "decoder_layers", "heads", "ffn_size")
PRETRAINED_OPTIONS = (*SIZES, "positions", "max_positions", "tie_word_embeddings")
"""Options that a pretrained model decides."""
GATE_OPTIONS = ("gate_share", "gate_pooling")  # options of a model whose `alpha_activation` is gate


@dataclass(frozen=True)
class ModelSettings:
    """The model: one encoder and one decoder around a bottleneck. The defaults are the paper's sizes.

    The one definition of these options: `TextAutoencoderConfig` takes its fields from here. The vocabulary comes with
    the data.

    Args:
        bottleneck: t (none), vt (a Gaussian for each vector), vtp (one pooled vector), vts (vectors dropped at a
            stride) or nvae (NVIB).
        pretrained: a T5, BART or Marian of transformers, a folder or an id on the hub, whose encoder and decoder the
            model starts from. All sizes are then those of this model.
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
        alpha_activation: of nvae: relu, softplus, or gate, which lets the model decide which tokens get a vector.
        gate_share: of gate: the share of tokens with a vector at the start, and where lambda_d holds it.
        gate_pooling: of gate: a token without a vector is averaged into the vector before it; otherwise it is lost.
        bound_queries: of nvae: bound the queries of attention over the latent, so that the mean reads as samples do.
        alpha_unit: of nvae: what a count of 1 of the projection is, one (the paper's) or delta.
        gamma_method: of nvae: how weights are sampled, paper or implicit.
        kappa: of nvae: vectors sampled from each component.
        kl_form: of nvae: expected or exact.
        reading: of nvae: what test time reads, the mean of the process, as in the paper, or its points, the means of
            the vectors without their spread.
    """

    bottleneck: BottleneckKind = "nvae"
    pretrained: str | None = None
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
    alpha_activation: Literal["relu", "softplus", "gate"] = "relu"
    gate_share: float = 0.5
    gate_pooling: bool = True
    bound_queries: bool = False
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
    if options.pretrained is None and options.d_model % options.heads:
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
            Above 1, they learn to differ faster, as gates around a pretrained model have to.
        keep_share: of nvae: vectors for each token, above 0 and at most 1: neighbouring tokens share one. The paper's
            NVAE, a vector for each token, if not given.
        shares: of nvae with keep_share and vts with stride_pooling: training draws the share of each text from this
            distribution, log_uniform, from smallest_share to 1, so that the model takes any number of
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
        trained: of a pretrained model: all of it, its decoder with the bottleneck, or only the bottleneck with the
            attention that reads it.
        gradient_checkpointing: compute the layers again for the gradient, which takes more time and less memory.
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
    trained: Literal["all", "decoder", "bottleneck"] = "all"
    gradient_checkpointing: bool = False

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

    def check_used(self) -> None:
        """Raise an InputError if an option is set that this kind of model does not use. Call it before training."""
        kind = self.model.bottleneck
        for group, settings in (("model", self.model), ("loss", self.loss)):
            for option in fields(settings):
                kinds = USED_BY.get(option.name, BOTTLENECKS)
                if kind not in kinds and getattr(settings, option.name) != option.default:
                    raise InputError(
                        f"{group}.{option.name} is set and {kind} does not use it: it is of {' and '.join(kinds)}. "
                        f"Leave it out, or give another --model.bottleneck."
                    )
        given = [name for name in PRETRAINED_OPTIONS if getattr(self.model, name) != getattr(ModelSettings, name)]
        if self.model.pretrained is not None and given:
            raise InputError(f"model.{given[0]} is set and model.pretrained decides it. Leave one of the two out.")
        if self.model.pretrained is None and self.optimiser.trained != "all":
            raise InputError("optimiser.trained is set and model.pretrained is not: a new model is trained as a whole.")
        gates = self.model.alpha_activation == "gate"
        if not gates and any(getattr(self.model, name) != getattr(ModelSettings, name) for name in GATE_OPTIONS):
            raise InputError(f"{' or '.join(GATE_OPTIONS)} of model is set, expected alpha_activation gate with it.")
        for name in ("keep_share", "shares"):
            if gates and getattr(self.loss, name) is not None:
                raise InputError(f"loss.{name} is set and model.alpha_activation is gate, expected one of the two.")
        in_delta = (
            "alpha_activation gate" if gates else "alpha_unit delta" if self.model.alpha_unit == "delta" else None
        )
        if in_delta and 0 in (self.loss.at(0).delta, self.loss.at_end().delta):
            raise InputError(f"loss.delta is 0, expected more with {in_delta}: pseudo-counts are multiples of Δ.")
        if gates and self.model.alpha_unit != ModelSettings.alpha_unit:
            raise InputError("model.alpha_unit is set and gates always count in units of Δ. Leave it out.")
        for name in ("warmup_steps", "decay_share") if self.optimiser.schedule == "constant" else ():
            if getattr(self.optimiser, name) != getattr(OptimiserSettings, name):
                raise InputError(f"optimiser.{name} is set, expected --optimiser.schedule warmup_stable_decay with it.")
        takes_any = self.loss.keep_share is not None if kind == "nvae" else self.model.stride_pooling
        if self.loss.shares is not None and not takes_any:
            needed = "loss.keep_share" if kind == "nvae" else "model.stride_pooling"
            raise InputError(f"loss.shares is set and {needed} is not, expected both: {kind} draws shares of it.")
        if self.loss.shares is None and self.loss.smallest_share != LossSettings.smallest_share:
            raise InputError("loss.smallest_share is set and loss.shares is not, expected both.")
        if self.loss.shares == "uniform":
            raise InputError("loss.shares is 'uniform', which runs of before 0.2 have; expected 'log_uniform' or null.")

    def unfinished_ramps(self, steps: int) -> list[str]:
        """Describe the ramps that a training of that many steps does not complete."""
        ramps = {f.name: value for f in fields(self.loss) if isinstance(value := getattr(self.loss, f.name), Schedule)}
        ends = {name: s.to_step if s.kind == "linear" else s.from_step + s.period // 2 for name, s in ramps.items()}
        return [f"loss.{name} reaches {ramps[name].end:g} at step {end}" for name, end in ends.items() if end > steps]


# Comparison


def differences(known: Any, now: Any, path: str = "", kind: BottleneckKind | None = None) -> list[str]:
    """Name the settings that differ, as paths such as model.kappa; both are dataclasses of the same class.

    Options that a model of this `kind`, by default that of `now`, does not use make no difference.
    """
    if not is_dataclass(now) or type(known) is not type(now):
        return [] if known == now else [path]
    if isinstance(now, TrainConfig):
        kind = now.model.bottleneck
    found = []
    for name in (option.name for option in fields(now)):
        if kind in USED_BY.get(name, (kind,)):
            found += differences(getattr(known, name), getattr(now, name), f"{path}.{name}".strip("."), kind)
    return sorted(found)


# Conversion of what YAML gives


NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
    list: "a list",
    Sequence: "a list",
    dict: "a mapping",
}
"""What messages call a type."""


def merged(kind: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings of the dataclass `kind`: later ones win, one by one within a group such as `loss`."""
    groups = {option.name for option in fields(kind) if is_dataclass(option.type)}
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            together = name in groups and isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = {**result[name], **value} if together else value
    return result


def settings_of(kind: type[T], values: Any, *, where: str) -> T:
    """Build a dataclass from values as YAML gives them; a setting without a value has its default."""
    try:
        return convert(kind, as_mapping(values, where=where))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def convert(kind: Any, value: Any, path: tuple[str, ...] = ()) -> Any:
    """Convert a value of YAML to a number, text, Literal, list, dict or dataclass, or to one of a union of these."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for choice in choices:
        origin, inner = get_origin(choice) or choice, get_args(choice)
        if is_dataclass(choice) and isinstance(value, dict):
            return _build(choice, value, path)
        if origin is Literal and isinstance(value, str) and value in inner:
            return value
        if origin in (list, Sequence) and isinstance(value, list):
            return [convert(inner[0], each, (*path, str(index))) for index, each in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            return {convert(inner[0], key, path): convert(inner[1], value[key], (*path, str(key))) for key in value}
        if choice is float and type(value) is int and abs(value) < 2**1000:
            return float(value)
        if choice is Any or type(value) is choice:
            return value
    raise _refusal(path, f"got {shown(value)}, expected {' or '.join(map(_describe, choices))}.")


def _build(kind: Any, values: dict[Any, Any], path: tuple[str, ...]) -> Any:
    known = {option.name: option for option in fields(kind)}
    for key in values:
        if key not in known:
            raise _refusal(path, f"unknown key {key!r}{suggestion(key, known)}")
    for name, option in known.items():
        if name not in values and is_required(option):
            raise _refusal(path, f"has no {name}, expected {_describe(kind)}.")
    converted = {name: convert(known[name].type, value, (*path, name)) for name, value in values.items()}
    try:
        return kind(**converted)
    except ValueError as error:  # of its __post_init__
        raise _refusal(path, str(error)) from error


def _refusal(path: tuple[str, ...], reason: str) -> InputError:
    return InputError(f"{'.'.join(path)}: {reason}" if path else reason)


def is_required(option: Field[Any]) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _describe(kind: Any) -> str:
    if is_dataclass(kind):
        required = [f"{option.name}: …" for option in fields(kind) if is_required(option)]
        return f"{{{', '.join(required)}}}" if required else "settings"
    if get_origin(kind) is Literal:
        names = [repr(name) for name in get_args(kind)]
        return f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return NAMES.get(get_origin(kind) or kind, str(kind))
