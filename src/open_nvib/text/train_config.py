"""What a training run is told, as YAML and on the command line."""

from dataclasses import dataclass, field
from typing import Literal

from open_nvib.text.schedules import Schedule

LARGEST_SEED = 2**32 - 1
"""What every generator of random numbers takes."""


def _check_positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}, wanted more than 0.")


@dataclass(frozen=True)
class ModelSettings:
    """The model: see `TextAutoencoderConfig`. The vocabulary comes with the data.

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
        positions: sinusoidal or learned.
        max_positions: longest text in tokens.
        tie_word_embeddings: whether the output projection is the embedding matrix.
        pooling: of vtp: mean, max or cls, the first vector.
        stride: of vts: the share of vectors dropped.
        stride_pooling: of vts: a vector that stays is the mean of its token and of those dropped after it.
        alpha0_p: of nvae: the concentration of the prior.
        alpha_activation: of nvae: relu or softplus.
        alpha_unit: of nvae: what a count of 1 of the projection is, one (the paper's) or delta.
        gamma_method: of nvae: how weights are sampled, paper or implicit.
        kappa: of nvae: vectors sampled from each component.
        kl_form: of nvae: expected or exact.
    """

    bottleneck: Literal["t", "vt", "vtp", "vts", "nvae"] = "nvae"
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

    def __post_init__(self) -> None:
        _check_positive(self, "d_model", "latent_size", "encoder_layers", "decoder_layers", "heads", "ffn_size")
        _check_positive(self, "max_positions", "alpha0_p", "kappa")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, wanted a share of at least 0 and below 1.")
        if not 0 <= self.stride < 1:
            raise ValueError(f"stride is {self.stride}, wanted a share of at least 0 and below 1.")
        if self.d_model % self.heads:
            raise ValueError(f"d_model = {self.d_model} is not a multiple of heads = {self.heads}. Change one.")


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
    """

    lambda_g: float | Schedule = 0.01
    lambda_d: float | Schedule = 1.0
    delta: float | Schedule = 1.0
    alpha_contrast: float | Schedule | None = None
    keep_share: float | Schedule | None = None

    def __post_init__(self) -> None:
        for end in _ends(self.keep_share):
            if not 0 < end <= 1:
                raise ValueError(f"keep_share is {end}, wanted a share above 0 and at most 1.")
            if 0 in _ends(self.delta):
                raise ValueError("delta is 0, wanted more with keep_share, whose vectors hold Δ/keep_share.")
        for end in _ends(self.alpha_contrast):
            if not 0 <= end <= 1:
                raise ValueError(f"alpha_contrast is {end}, wanted a number from 0 to 1.")


def _ends(number: float | Schedule | None) -> tuple[float, ...]:
    if isinstance(number, Schedule):
        return number.start, number.end
    return () if number is None else (number,)


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
        _check_positive(self, "steps", "epochs", "batch_size", "accumulate", "learning_rate")

    def steps_for(self, sentences: int, processes: int = 1) -> int:
        """Optimiser steps in all, on that many sentences; the last batch of an epoch is dropped if it is not full."""
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
        _check_positive(self, "log_every", "evaluate_every", "keep_checkpoints")


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
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed is {self.seed}, wanted 0 to {LARGEST_SEED}.")
