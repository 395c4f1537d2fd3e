"""Results as lines of text: what `nvib inspect` and `nvib evaluate` print."""

from typing import TYPE_CHECKING

from open_nvib.store.evaluations import Evaluation, Generation, NumberOfVectors, Reconstruction

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
    for row in report.tokens:
        alpha, sigma, kl = (
            number(value, form, missing="") for value, form in ((row.alpha, ".3f"), (row.sigma, ".3f"), (row.kl, ".1f"))
        )
        weight = "" if row.shared else f"{row.weight:.1%}"
        kept = "" if row.kept else "  shares the vector above" if row.shared else "  dropped"
        lines.append(f"  {row.token:<16}{alpha:>9}{weight:>9}{sigma:>9}{kl:>9}{kept}")
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
    if found.generation:
        lines += _generation(found.generation, by_copying=found.settings.scorer == "autoencoder")
    if latent := found.latent:
        lines.append(
            f"latent: L_D {number(latent.kl_dirichlet, '.2f')}, L_G {number(latent.kl_gaussian, '.1f')} nats a "
            f"sentence, {latent.active_units} of {latent.units} units active, NLL at most "
            f"{number(latent.importance_nll, '.1f')} nats a sentence"
        )
    if paths := found.interpolation:
        perplexity = " ".join(number(value, ".0f") for value in paths.perplexity)
        smoothness = number(paths.smoothness, ".3f")
        lines.append(f"interpolation of {paths.pairs} pairs: perplexity {perplexity}, smoothness {smoothness}")
    return "\n".join(lines)


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


def _generation(found: Generation, *, by_copying: bool) -> list[str]:
    judged = f"  under the judge, perplexity by word {number(found.word_perplexity, '.1f')} (real text "
    judged += f"{number(found.real.word_perplexity, '.1f')})"
    return [
        f"{found.samples:,} samples: F-PPL {number(found.forward_perplexity, '.2f')} (real text "
        f"{number(found.real.forward_perplexity, '.2f')}), R-PPL {number(found.reverse_perplexity, '.2f')} "
        f"(real text {number(found.real.reverse_perplexity, '.2f')})"
        f"{', by a scorer that copies' if by_copying else ''}",
        f"  distinct 2-grams {number(found.distinct.get(2), '.1%')} (real text "
        f"{number(found.real.distinct.get(2), '.1%')}), self-BLEU {number(found.self_bleu, '.1f')} "
        f"({number(found.real.self_bleu, '.1f')}), copied from the training text {number(found.copied, '.2%')}",
        *([] if found.word_perplexity is None else [judged]),
    ]
