"""Results as lines of text: what `nvib inspect` and `nvib evaluate` print."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from open_nvib.report.measures import FORWARD, JUDGED, LATENT, PATHS, REVERSE, SAMPLES, Measure
from open_nvib.store.evaluations import COPYING, Evaluation, NumberOfVectors, Reconstruction

if TYPE_CHECKING:  # it imports torch, and --help does not wait for that
    from open_nvib.text import TextReport


def number(value: float | None, form: str, *, missing: str = "-") -> str:
    """A number; a dash where it is undefined or not finite."""
    return missing if value is None else f"{value:{form}}"


def token_table(report: "TextReport") -> str:
    """A text, its reconstruction, and a row for each of its tokens."""
    lines = [
        report.text,
        f"  -> {report.reconstruction}",
        f"  {'token':<16}{'alpha':>9}{'weight':>9}{'sigma':>9}{'KL':>9}",
    ]
    vectors = {row.place: row.token for row in report.tokens if row.kept}
    above = None
    for row in report.tokens:
        alpha, sigma, kl = (
            number(value, form, missing="") for value, form in ((row.alpha, ".3f"), (row.sigma, ".3f"), (row.kl, ".1f"))
        )
        weight = "" if row.shared else f"{row.weight:.1%}"
        where = "above" if row.place == above else f"of {vectors.get(row.place)}"
        kept = "" if row.kept else f"  shares the vector {where}" if row.shared else "  dropped"
        lines.append(f"  {row.token:<16}{alpha:>9}{weight:>9}{sigma:>9}{kl:>9}{kept}")
        above = row.place
    if report.prior_weight:
        lines.append(f"  {'(prior)':<16}{'':>9}{report.prior_weight:>9.1%}")
    return "\n".join(lines)


def summarise_evaluation(found: Evaluation) -> str:
    """A few lines on each part that was measured."""
    lines = []
    for partition, reconstruction in (found.reconstruction or {}).items():
        lines += _reconstruction(reconstruction, f"{partition}, {found.settings.split}")
    for partition, number_found in (found.number or {}).items():
        lines += _number_of_vectors(number_found, f"{partition}, {found.settings.split}")
    if samples := found.generation:
        scorer = ", by a scorer that copies" if found.settings.scorer == COPYING else ""
        judged = () if samples.word_perplexity is None else (JUDGED,)
        measures = (FORWARD, REVERSE, *judged, *SAMPLES)
        lines.append(f"{samples.samples:,} samples{scorer}: {_listed(found, measures)}")
        if samples.learned:
            of_learned = replace(found, generation=samples.learned)
            lines.append(f"of the learned prior: {_listed(of_learned, measures)}")
    if found.latent:
        lines.append(f"latent, in nats a sentence: {_listed(found, LATENT)}")
    if paths := found.interpolation:
        lines.append(f"interpolation of {paths.pairs} pairs: {_listed(found, PATHS)}")
    return "\n".join(lines)


def _listed(found: Evaluation, measures: Sequence[Measure]) -> str:
    """Each measure by its title, with the number of real text beside it."""
    shown = []
    for measure in measures:
        real = f" (real text {measure.write_one(measure.real(found))})" if measure.real else ""
        shown.append(f"{measure.title} {measure.write_one(measure.read(found))}{real}")
    return ", ".join(shown)


def _reconstruction(found: Reconstruction, where: str) -> list[str]:
    text = "" if found.text_bleu is None else f" ({found.text_bleu:.2f} against the text before the tokenizer)"
    points = "" if found.points_bleu is None else f"; from the points of the latent, BLEU {found.points_bleu:.2f}"
    return [
        f"reconstruction of {found.sentences:,} sentences ({where}): BLEU {number(found.bleu, '.2f')}{text}, "
        f"perplexity {number(found.perplexity, '.3f')}, exact {number(found.exact, '.1%')}, kept "
        f"{number(found.kept, '.1%')} of the vectors{points}",
        f"  {found.signature}",
    ]


def _number_of_vectors(found: NumberOfVectors, where: str) -> list[str]:
    rows = [(f"share {each.share:g}", each) for each in found.shares]
    rows += [("fewest", found.fewest), ("auto", found.auto)]
    table = [
        f"  {name:<22}{row.kept:>8.1%}{number(row.bleu, '.2f'):>8}{number(row.exact, '.1%'):>8}" for name, row in rows
    ]
    sd, correlation = number(found.fewest.sd, ".2f"), number(found.auto.correlation, ".2f")
    return [
        f"number of vectors, {found.sentences:,} sentences ({where}):",
        f"  {'':<22}{'kept':>8}{'BLEU':>8}{'exact':>8}",
        *table,
        f"  among texts of one length, the fewest vectors have a standard deviation of {sd}, and auto correlates with "
        f"them by {correlation}",
    ]
