"""Numbers of a report: how each is read from an evaluation, its mean over seeds, and how it is written."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from open_nvib.store.evaluations import Evaluation

NOT_MEASURED = "–"
Read = Callable[[Any], float | None]  # reads a number from an evaluation; None where it was not measured


class MeanAndDeviation(NamedTuple):
    """The mean over seeds and the sample standard deviation (n − 1), which one seed does not have."""

    mean: float
    sd: float | None = None


def mean_and_deviation(values: Sequence[float]) -> MeanAndDeviation | None:
    """Compute both; None where nothing was measured."""
    if not values:
        return None
    return MeanAndDeviation(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Measure:
    """A number that tables and figures show."""

    title: str  # a short name, such as "BLEU"
    read: Read
    real: Read | None = None  # reads the same number of real text, where there is one
    decimals: int | None = 2  # that are written; None for a perplexity, whose size decides
    scale: float = 1.0  # 100 for a share that is written in percent
    deviates: bool = True  # False for what is the same in every seed
    direction: str = ""  # an arrow to where better numbers are, if there is such a direction
    paper: str = ""  # the field of a `PaperRow` that has the paper's number, if the paper prints it

    def write(self, value: MeanAndDeviation | None) -> str:
        """Write the mean, and ± the deviation if there is one; a dash for None."""
        if value is None:
            return NOT_MEASURED
        size, decimals = abs(value.mean), self.decimals
        if decimals is None:  # a perplexity near 1 and one in the thousands share a column
            decimals = 2 if size < 100 else 1 if size < 1000 else 0
        mean = write_number(self.scale * value.mean, decimals)
        if value.sd is None or not self.deviates:
            return mean
        return f"{mean} ± {write_number(self.scale * value.sd, decimals)}"

    def write_one(self, value: float | None) -> str:
        """Write the number of one evaluation; a dash for None."""
        return self.write(None if value is None else MeanAndDeviation(value))


def read_at(path: str) -> Read:
    """Read the number at a path of attributes and keys of an evaluation, such as "number.long.fewest.bleu"."""

    def read(evaluation: Any) -> float | None:
        found = evaluation
        for name in path.split("."):
            if isinstance(found, dict):
                found = found.get(int(name) if name.isdigit() else name)
            elif found is not None:
                found = getattr(found, name)
        return found

    return read


def _percent(title: str, path: str, decimals: int = 1, direction: str = "") -> Measure:
    return Measure(title, read_at(path), decimals=decimals, scale=100, direction=direction)


def _of_samples(title: str, name: str, decimals: int | None = None, scale: float = 1.0) -> Measure:
    """A number of the samples, which real text has too."""
    return Measure(title, read_at(f"generation.{name}"), read_at(f"generation.real.{name}"), decimals, scale)


def _chosen(how: str) -> tuple[Measure, ...]:
    """What a number of vectors that is chosen for each text gives."""
    path = f"number_trained_on.{how}"
    return (
        Measure(f"ν, {how}", read_at(f"{path}.kept")),
        Measure(f"BLEU, {how}", read_at(f"{path}.bleu")),
        _percent(f"exact (%), {how}", f"{path}.exact"),
    )


def _along_path(choose: Callable[[Sequence[float | None]], Sequence[float | None]]) -> Read:
    """Read the mean perplexity of some points of the paths between texts."""

    def read(evaluation: Evaluation) -> float | None:
        chosen = choose(evaluation.interpolation.perplexity) if evaluation.interpolation else ()
        known = [value for value in chosen if value is not None]
        return sum(known) / len(known) if known and len(known) == len(chosen) else None

    return read


KEPT = Measure("ν", read_at("trained_on.kept"), paper="kept")
BLEU = Measure("BLEU", read_at("trained_on.bleu"), direction="↑", paper="bleu")
EXACT = _percent("exact (%)", "trained_on.exact", direction="↑")
TEXT_EXACT = _percent("text exact (%)", "trained_on.text_exact", direction="↑")
PERPLEXITY = Measure("PPL", read_at("trained_on.perplexity"), decimals=None, direction="↓", paper="perplexity")
FORWARD = replace(_of_samples("F-PPL", "forward_perplexity"), direction="↓", paper="forward")
REVERSE = replace(_of_samples("R-PPL", "reverse_perplexity"), direction="↓", paper="reverse")
JUDGED = _of_samples("perplexity by word under the judge", "word_perplexity")
MAIN = (KEPT, BLEU, EXACT, TEXT_EXACT, PERPLEXITY, FORWARD, REVERSE)
SAMPLES = (
    *(_of_samples(f"distinct-{n} (%)", f"distinct.{n}", 1, 100) for n in range(1, 5)),
    _of_samples("self-BLEU", "self_bleu", 1),
    _percent("copied (%)", "generation.copied", 2),
    _percent("empty (%)", "generation.empty", 2),
)
LATENT = (
    Measure("L_D", read_at("latent.kl_dirichlet")),
    Measure("L_G", read_at("latent.kl_gaussian"), decimals=1),
    Measure("α_0", read_at("latent.alpha0")),
    Measure("active units", read_at("latent.active_units"), decimals=0),
    Measure("of", read_at("latent.units"), decimals=0, deviates=False),
    Measure("mutual information", read_at("latent.mutual_information")),
    Measure("IW-NLL", read_at("latent.importance_nll"), decimals=1),
    Measure("ELBO", read_at("latent.elbo"), decimals=1),
)
READINGS = (
    BLEU,
    Measure("BLEU, points", read_at("trained_on.points_bleu")),
    Measure("nats, mean", read_at("latent.mean_nll")),
    Measure("nats, points", read_at("latent.points_nll")),
    Measure("nats, sample", read_at("latent.sample_nll")),
)
NUMBER = (*_chosen("fewest"), Measure("sd at one length", read_at("number_trained_on.fewest.sd")), *_chosen("auto"))
PATHS = (
    Measure("PPL at the ends", _along_path(lambda line: (line[0], line[-1]) if line else ()), decimals=None),
    Measure("PPL between", _along_path(lambda line: line[1:-1]), decimals=None),
    Measure("smoothness", read_at("interpolation.smoothness"), decimals=3),
)

MINUS = "−"
LARGE = 1e7
"""Numbers from here on are written as powers of ten, such as the perplexity of a model that has not learned yet."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


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
