"""Results of an evaluation, as `metrics.json` and the results of cells hold them, and how two are merged.

A number that is not finite, and one that was not measured, is null on disk and None here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from open_nvib.store.files import OPTIONAL
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import PARTS, EvaluateConfig, Part, Recipe

CAUSAL, COPYING = "causal", "autoencoder"  # scorers: a language model, and one that sees the sentence that it scores


def split_name(name: str) -> tuple[str, str]:
    """Return the split and the scorer of the name of an evaluation."""
    split, _, scorer = name.rpartition("-")
    return split, scorer


DEFAULT_NAME = EvaluateConfig().name


def is_causal(name: str) -> bool:
    """Tell whether an evaluation is by a language model, as perplexities that mean something are."""
    return split_name(name)[1] == CAUSAL


@dataclass(frozen=True)
class KeptAtLength:
    """Vectors kept for texts of one length: mean and standard deviation of the number."""

    length: int
    sentences: int
    kept: float
    sd: float


@dataclass(frozen=True)
class Example:
    """A text and its reconstruction."""

    text: str
    reconstruction: str


@dataclass(frozen=True)
class Reconstruction:
    """Reconstruction of texts of one partition from the means of their latents, and the vectors kept.

    Attributes:
        kept: ν, the mean over texts of the vectors kept for each token.
        bleu: against the texts as the tokenizer gives them back, as a perfect model would.
        text_bleu: against the texts before they were tokenised; None in early records.
        signature: of sacreBLEU: its version and options.
        exact: share of texts that are reconstructed token for token.
        text_exact: share that equal the texts before they were tokenised; None in early records.
        points_bleu, points_exact: the same of an NVAE whose points are read in place of the mean.
        kept_by_kind: share of the tokens with a vector of their own, by kind (content, function, piece, number,
            punctuation), of a model that can drop vectors.
    """

    sentences: int
    bleu: float | None = None
    text_bleu: float | None = None
    signature: str = ""
    exact: float | None = None
    text_exact: float | None = None
    points_bleu: float | None = None
    points_exact: float | None = None
    perplexity: float | None = None
    cross_entropy: float | None = None
    kept: float | None = None
    kept_by_kind: dict[str, float] = field(default_factory=dict)
    by_length: tuple[KeptAtLength, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class RealText:
    """Real sentences, measured as the samples of a model are: what a perfect generator would reach.

    The perplexities are of held-out text; the other numbers of training sentences, as many as there are samples.
    """

    forward_perplexity: float | None = None
    word_perplexity: float | None = None
    reverse_perplexity: float | None = None
    distinct: dict[int, float | None] = field(default_factory=dict)
    self_bleu: float | None = None
    lengths: tuple[int, ...] = ()  # of all training sentences


@dataclass(frozen=True)
class Generation:
    """Samples of the prior, and `real` text beside them.

    Attributes:
        forward_perplexity: of the samples under a scorer of the training text: low if they are fluent.
        reverse_perplexity: of held-out text under a scorer of the samples: low if they are fluent and as diverse as
            real text.
        word_perplexity: of the samples under the judge, by word; None without one.
        distinct: share of n-grams that are distinct, by n.
        copied, empty: shares of the samples that are training sentences, and that have no token.
        lengths: entry k is the number of samples of k tokens.
        learned: the same of samples of the prior that `nvib fit-prior` fitted; None of a run without.
    """

    samples: int = 0
    forward_perplexity: float | None = None
    word_perplexity: float | None = None
    reverse_perplexity: float | None = None
    distinct: dict[int, float | None] = field(default_factory=dict)
    self_bleu: float | None = None
    copied: float | None = None
    empty: float | None = None
    lengths: tuple[int, ...] = ()
    examples: tuple[str, ...] = ()
    real: RealText = RealText()
    learned: "Generation | None" = None


WORSE_NLL = 0.1  # nats per token by which decoding from the mean must be worse than from a sample to be worth a warning


@dataclass(frozen=True)
class LatentDiagnosis:
    """Diagnosis of the latent: means over texts. Numbers that need samples are None without them.

    Attributes:
        kl_dirichlet, kl_gaussian: L_D and L_G in nats per text, in the form and with the κ of the model's loss.
        kl_dirichlet_scaled, kl_gaussian_scaled: L_D/n and L_G/(n d), as in the loss.
        alpha0: α₀^q, of NVAE.
        active_units: dimensions whose posterior mean varies, of `units`.
        mutual_information: lower bound on I(x; F) in nats, at most the logarithm of the number of texts.
        importance_nll: upper bound on −log p(x | n) in nats per text.
        importance_perplexity: the same for each token, ends included; also None if no float can hold it.
        elbo: the lower bound on log p(x | n) of one sample, a mean over the same samples.
        mean_nll, sample_nll, points_nll: cross-entropy per token, ends included, of decoding from the mean of the
            latent, from one sample of it, and from the points (μ, α).
    """

    kl_dirichlet: float | None = None
    kl_gaussian: float | None = None
    kl_dirichlet_scaled: float | None = None
    kl_gaussian_scaled: float | None = None
    alpha0: float | None = None
    active_units: int | None = None
    units: int | None = None
    mutual_information: float | None = None
    importance_nll: float | None = None
    importance_perplexity: float | None = None
    elbo: float | None = None
    mean_nll: float | None = None
    sample_nll: float | None = None
    points_nll: float | None = None

    @property
    def mean_is_worse(self) -> bool:
        """Whether decoding from the mean is clearly worse than from a sample: see `open_nvib.compare_readings`."""
        if self.mean_nll is None or self.sample_nll is None:
            return False
        return self.mean_nll > self.sample_nll + WORSE_NLL


@dataclass(frozen=True)
class Interpolation:
    """Interpolation: paths between pairs of texts.

    Attributes:
        pairs, steps: number of paths, and of points on each, both ends included.
        perplexity: of all texts at each point of the path, both ends included.
        word_perplexity: the same under the judge, by word; empty without one.
        smoothness, smoothness_sd: mean and standard deviation over paths.
        examples: the first paths.
    """

    pairs: int = 0
    steps: int = 0
    perplexity: tuple[float | None, ...] = ()
    word_perplexity: tuple[float | None, ...] = ()
    smoothness: float | None = None
    smoothness_sd: float | None = None
    examples: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class AtShare:
    """One model at a fixed share of vectors.

    `any_offset` is the gain from trying offsets alone: the share of texts that are exact at any of the offsets that a
    search tries, with the number fixed and all vectors of one size.
    """

    share: float
    kept: float  # ν, the mean over texts of the vectors for each token
    bleu: float | None = None
    exact: float | None = None
    cross_entropy: float | None = None  # per token, in nats
    any_offset: float | None = None


@dataclass(frozen=True)
class Chosen:
    """One model with a number of vectors that is chosen for each text."""

    kept: float  # ν, the mean over texts of the vectors for each token
    vectors: float  # mean number
    bleu: float | None = None
    exact: float | None = None  # share of texts that greedy decoding returns token for token
    verified: float | None = None  # share of texts that are known to be exact without decoding them
    tries: float | None = None  # mean number
    sd: float | None = None  # of the number, among texts of one length
    correlation: float | None = None  # with the fewest vectors of a text, among texts of one length
    by_length: tuple[KeptAtLength, ...] = ()


@dataclass(frozen=True)
class NumberExample:
    """A text, its number of tokens and its fewest vectors."""

    text: str
    tokens: int
    vectors: int


@dataclass(frozen=True)
class NumberOfVectors:
    """One model with several numbers of vectors, on texts of one partition.

    `agreement`, a reliability estimate, is the correlation of the fewest vectors under two disjoint sets of offsets,
    among texts of one length; None for gates, which have no offsets.
    """

    sentences: int
    shares: tuple[AtShare, ...]
    fewest: Chosen  # the smallest number with which a search found each text exact
    auto: Chosen  # the number of the quick decision
    agreement: float | None = None
    examples: tuple[NumberExample, ...] = ()  # pairs of one length: the text that needs fewest vectors, and most


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation of a model, and what they were measured on. A part that was not measured is None.

    Attributes:
        settings: of the evaluation.
        model: digest of the weights; early records have none.
        config: the configuration that the model was trained with.
        recipe: of the data.
        reconstruction: by partition; the one that the model was trained on comes first.
        number: likewise.
    """

    settings: EvaluateConfig
    config: TrainConfig
    recipe: Recipe
    model: str | None = None
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    reconstruction: dict[str, Reconstruction] | None = field(default=None, metadata=OPTIONAL)
    generation: Generation | None = field(default=None, metadata=OPTIONAL)
    latent: LatentDiagnosis | None = field(default=None, metadata=OPTIONAL)
    interpolation: Interpolation | None = field(default=None, metadata=OPTIONAL)
    number: dict[str, NumberOfVectors] | None = field(default=None, metadata=OPTIONAL)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def trained_on(self) -> Reconstruction | None:
        """Reconstruction of the partition that the model was trained on."""
        return next(iter(self.reconstruction.values())) if self.reconstruction else None

    @property
    def number_trained_on(self) -> NumberOfVectors | None:
        """Numbers of vectors on the partition that the model was trained on."""
        return next(iter(self.number.values())) if self.number else None

    @property
    def measured(self) -> dict[Part, Any]:
        return {part: value for part in PARTS if (value := getattr(self, part)) is not None}


DEPENDS: dict[Part, tuple[str, ...]] = {
    "reconstruction": ("sentences", "generalise", "seed"),
    "generation": ("samples", "scorer_steps", "judge", "seed"),
    "latent": ("latent_sentences", "importance_samples", "seed"),
    "number": ("sentences", "generalise", "seed"),
    "interpolation": ("interpolations", "interpolation_steps", "scorer_steps", "judge", "seed"),
}
"""Settings that the numbers of each part depend on, beside split and scorer, which name the evaluation."""
CIRCUMSTANCES = ("model", "config", "recipe", "versions")


def merge(known: Evaluation | None, fresh: Evaluation, say: Callable[[str], None]) -> Evaluation:
    """Add to a new evaluation the parts of an earlier one that it does not have.

    An evaluation has one value of each setting: a setting on which no new part depends keeps the value that the earlier
    parts were measured with. An earlier part is left out, and `say` is told, if it was measured on something else or
    with another value of a setting on which a new part depends.
    """
    if known is None:
        return fresh
    used = {name for part in fresh.measured for name in DEPENDS[part]}
    kept: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for part, value in known.measured.items():
        if part in fresh.measured:
            continue
        if obstacles := _obstacles(part, known, fresh, used):
            say(f"{part} of an earlier evaluation is left out: {', '.join(obstacles)}. Measure it again to restore it.")
            continue
        kept[part] = value
        settings |= {name: getattr(known.settings, name) for name in DEPENDS[part]}
    settings["measure"] = [*fresh.settings.measure, *(part for part in kept if part not in fresh.settings.measure)]
    return replace(fresh, settings=replace(fresh.settings, **settings), **kept)


def _obstacles(part: Part, known: Evaluation, fresh: Evaluation, used: set[str]) -> list[str]:
    """Say in what an earlier part differs from the new ones; what an early record does not say is taken as equal."""
    pairs = {name: (getattr(known, name), getattr(fresh, name)) for name in CIRCUMSTANCES}
    found = [f"another {name}" for name, (before, now) in pairs.items() if before and before != now]
    for name in DEPENDS[part]:
        before, now = getattr(known.settings, name), getattr(fresh.settings, name)
        if name in used and before != now:
            found.append(f"{name} was {before}, now {now}")
    return found


def load(text: str) -> Any:
    """Read JSON with evaluations in it, of this version or an earlier one."""
    return upgrade(json.loads(text))


def upgrade(value: Any) -> Any:
    """Rename, at any depth, entries of evaluations that version 0.1 wrote under other names."""
    if isinstance(value, list):
        return [upgrade(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    value = {key: upgrade(entry) for key, entry in value.items()}
    if "real_lengths" in value or "real_forward_perplexity" in value:
        value["real"] = {key.removeprefix("real_"): value.pop(key) for key in [*value] if key.startswith("real_")}
    if "any_place" in value:
        value["any_offset"] = value.pop("any_place")
    if {"needed", "decided"} <= value.keys():
        value |= {"fewest": value.pop("needed"), "auto": value.pop("decided")}
    return value
