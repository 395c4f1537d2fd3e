"""Numbers of a report: how each is read from an evaluation, its mean over seeds, and how it is written."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from open_nvib.store.evaluations import Chosen, Evaluation, Generation, LatentDiagnosis, NumberOfVectors, Reconstruction

Read = Callable[[Evaluation], float | None]
"""Reads a number from an evaluation; None where it was not measured."""


@dataclass(frozen=True)
class MeanAndDeviation:
    """The mean over seeds and the sample standard deviation (n − 1), which one seed does not have."""

    mean: float
    sd: float | None
    count: int


def mean_and_deviation(values: Sequence[float]) -> MeanAndDeviation | None:
    """Compute both; None where nothing was measured."""
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return MeanAndDeviation(statistics.fmean(values), sd, len(values))


@dataclass(frozen=True)
class Measure:
    """A number that tables and figures show.

    Args:
        title: a short name, such as "BLEU".
        read: reads it from an evaluation.
        real: reads the same number of real text, where there is one.
        decimals: how many are written; None for a perplexity, whose size decides.
        scale: 100 for a share that is written in percent.
        deviates: False for what is the same in every seed.
    """

    title: str
    read: Read
    real: Read | None = None
    decimals: int | None = 2
    scale: float = 1.0
    deviates: bool = True

    def write(self, value: MeanAndDeviation) -> tuple[str, str]:
        """Write the mean and the deviation, which is empty where there is none."""
        decimals = decimals_of_perplexity(value.mean) if self.decimals is None else self.decimals
        deviation = "" if value.sd is None or not self.deviates else write_number(self.scale * value.sd, decimals)
        return write_number(self.scale * value.mean, decimals), deviation


def _reconstruction(read: Callable[[Reconstruction], float | None]) -> Read:
    return lambda evaluation: read(evaluation.trained_on) if evaluation.trained_on else None


def _generation(read: Callable[[Generation], float | None]) -> Read:
    return lambda evaluation: read(evaluation.generation) if evaluation.generation else None


def _latent(read: Callable[[LatentDiagnosis], float | None]) -> Read:
    return lambda evaluation: read(evaluation.latent) if evaluation.latent else None


def number_of(evaluation: Evaluation) -> NumberOfVectors | None:
    """Read what numbers of vectors gave, on texts of the partition that the model was trained on."""
    return next(iter((evaluation.number or {}).values()), None)


def _number(read: Callable[[NumberOfVectors], float | None]) -> Read:
    return lambda evaluation: read(part) if (part := number_of(evaluation)) else None


def _chosen(who: str, choose: Callable[[NumberOfVectors], Chosen]) -> tuple[Measure, ...]:
    """What a number that is chosen for each text gives."""
    return (
        Measure(f"ν, {who}", _number(lambda part: choose(part).kept)),
        Measure(f"BLEU, {who}", _number(lambda part: choose(part).bleu)),
        Measure(f"exact (%), {who}", _number(lambda part: choose(part).exact), decimals=1, scale=100),
    )


def _distinct(n: int) -> Measure:
    """Share of n-grams that are distinct."""
    ours, real = _generation(lambda part: part.distinct.get(n)), _generation(lambda part: part.real_distinct.get(n))
    return Measure(f"distinct-{n} (%)", ours, real, decimals=1, scale=100)


KEPT = Measure("ν", _reconstruction(lambda part: part.kept))
BLEU = Measure("BLEU", _reconstruction(lambda part: part.bleu))
PERPLEXITY = Measure("PPL", _reconstruction(lambda part: part.perplexity), decimals=None)
_real_forward = _generation(lambda part: part.real_forward_perplexity)
_real_reverse = _generation(lambda part: part.real_reverse_perplexity)
_real_self_bleu = _generation(lambda part: part.real_self_bleu)
FORWARD = Measure("F-PPL", _generation(lambda part: part.forward_perplexity), _real_forward, decimals=None)
REVERSE = Measure("R-PPL", _generation(lambda part: part.reverse_perplexity), _real_reverse, decimals=None)
SAMPLES = (
    *map(_distinct, range(1, 5)),
    Measure("self-BLEU", _generation(lambda part: part.self_bleu), _real_self_bleu, decimals=1),
    Measure("copied (%)", _generation(lambda part: part.copied), scale=100),
    Measure("empty (%)", _generation(lambda part: part.empty), scale=100),
)
LATENT = (
    Measure("L_D", _latent(lambda part: part.kl_dirichlet)),
    Measure("L_G", _latent(lambda part: part.kl_gaussian), decimals=1),
    Measure("α_0", _latent(lambda part: part.alpha0)),
    Measure("active units", _latent(lambda part: part.active_units), decimals=0),
    Measure("of", _latent(lambda part: part.units), decimals=0, deviates=False),
    Measure("mutual information", _latent(lambda part: part.mutual_information)),
    Measure("IW-NLL", _latent(lambda part: part.importance_nll), decimals=1),
    Measure("IW-PPL", _latent(lambda part: part.importance_perplexity), decimals=None),
    Measure("ELBO", _latent(lambda part: part.elbo), decimals=1),
)
READINGS = (
    BLEU,
    Measure("BLEU, points", _reconstruction(lambda part: part.points_bleu)),
    Measure("nats, mean", _latent(lambda part: part.mean_nll)),
    Measure("nats, points", _latent(lambda part: part.points_nll)),
    Measure("nats, sample", _latent(lambda part: part.sample_nll)),
)
NUMBER = (
    *_chosen("needed", lambda part: part.needed),
    Measure("sd at one length", _number(lambda part: part.needed.sd)),
    *_chosen("decided", lambda part: part.decided),
)


def _along_path(choose: Callable[[Sequence[float | None]], Sequence[float | None]]) -> Read:
    """Read the mean perplexity of some points of the paths between texts."""

    def read(evaluation: Evaluation) -> float | None:
        chosen = choose(evaluation.interpolation.perplexity) if evaluation.interpolation else ()
        known = [value for value in chosen if value is not None]
        return sum(known) / len(known) if known and len(known) == len(chosen) else None

    return read


PATHS = (
    Measure("PPL at the ends", _along_path(lambda line: (line[0], line[-1]) if line else ()), decimals=None),
    Measure("PPL between", _along_path(lambda line: line[1:-1]), decimals=None),
    Measure("smoothness", lambda found: found.interpolation.smoothness if found.interpolation else None, decimals=3),
)

MINUS = "−"
LARGE = 1e7
"""Numbers from here on are written as powers of ten, such as the perplexity of a model that has not learned yet."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimals_of_perplexity(value: float) -> int:
    """Choose fewer decimals the larger a perplexity is: one near 1 and one in the thousands share a column."""
    return 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def write_number(value: float, decimals: int) -> str:
    """Write a number with commas between thousands, a true minus and no negative zero."""
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if abs(value) >= LARGE:
        digits, _, power = f"{value:.1e}".replace("-", MINUS).partition("e+")
        return f"{digits}×10{power.lstrip('0').translate(_RAISED)}"
    text = f"{value:,.{decimals}f}"
    if text.startswith("-"):
        text = text[1:] if not float(text.replace(",", "")) else MINUS + text[1:]
    return text
