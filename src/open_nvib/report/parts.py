"""Parts that the report of an experiment and that of a run share."""

from collections.abc import Sequence
from typing import Any

from open_nvib.report.cells import find
from open_nvib.report.document import Figure, Pair, Paragraph, Part, Texts
from open_nvib.report.figures.interpolation import draw_interpolation, path_of
from open_nvib.report.figures.lengths import MOST_PANELS, draw_lengths, lengths_of
from open_nvib.report.figures.vectors import draw_vectors
from open_nvib.report.results import CAUSAL, Results, Row
from open_nvib.report.spread import decimals_of_perplexity, write
from open_nvib.report.tables import interpolation_table, samples_table

TEXTS = 5
"""Samples and reconstructions that are shown of each row."""
LABELS = "Labels name the settings in which rows of a family differ: G is λ′_G, D is λ′_D."
MEASURED = (
    "ν is the share of vectors that the latent keeps. BLEU and PPL are of reconstructions from the mean of the latent. "
    "F-PPL is the perplexity of samples under a language model trained on real text, R-PPL that of held-out text under "
    "one trained on samples."
)


def some(*parts: Part | None) -> tuple[Part, ...]:
    """Those that there are."""
    return tuple(part for part in parts if part is not None)


def figure(name: str, svg: str | None, alt: str, caption: str) -> Figure | None:
    """None where nothing was drawn."""
    return None if svg is None else Figure(name, svg, alt, caption)


def reference(results: Results) -> Paragraph | None:
    """What real text reaches, and what that means for the numbers of samples."""
    forward = results.spread("generation/real_forward_perplexity")
    reverse = results.spread("generation/real_reverse_perplexity")
    if not forward or not reverse:
        return None
    f, r = (write(value.mean, decimals_of_perplexity(value.mean)) for value in (forward, reverse))
    if results.scorer != CAUSAL:
        return Paragraph(
            f"These perplexities are of the sentence-copying scorer, which sees a sentence before it scores it and is "
            f"no language model. Real held-out text has {f} (F-PPL) and {r} (R-PPL) under it."
        )
    printed = (
        " The values near 1 that the paper prints cannot come from a causal language model, since English has more "
        "entropy than that: they are not comparable."
    )
    return Paragraph(
        f"Real held-out text has an F-PPL of {f} and an R-PPL of {r} under the same language models. A perfect "
        f"generator reaches these values, not 1. An F-PPL below {f} says that samples are more predictable than real "
        f"text, such as a few common phrases again and again, not that they are better."
        + (printed if any(row.paper for row in results.rows) else "")
    )


def vectors(row: Row, who: str, why: str = "") -> Figure | None:
    """Vectors kept by length; `who` names the model and `why` says how it was chosen."""
    seeds = len(row.records)
    return figure(
        "vectors_by_length",
        draw_vectors(row.records, family=row.family, name=who),
        "Number of vectors kept against the number of input tokens, with a linear fit, beside the lines of all vectors "
        "and of every second vector.",
        f"Vectors kept of texts of each length by {who}, mean and standard deviation over the texts of {seeds} "
        f"seed{'s' if seeds > 1 else ''}.{f' It is {why}.' if why else ''} On lengths that it was not trained on, the "
        f"dash-dotted line continues the fit of those that it was.",
    )


def samples(results: Results) -> tuple[Part, ...]:
    """Diversity, copies and lengths."""
    found = [(f"{row.family} {results.short[row.name]}", row.family, row.records) for row in results.measured]
    panels = [lengths for entry in found if (lengths := lengths_of(*entry))]
    only = f" The first {MOST_PANELS} rows." if len(panels) > MOST_PANELS else ""
    return some(
        samples_table(results),
        figure(
            "lengths",
            draw_lengths(panels),
            "Lengths of samples as a line over the filled histogram of the data, for each model.",
            f"Lengths of samples (line) beside those of the data (filled), in tokens. A sample begins with a length "
            f"drawn from the data; how long it becomes is up to the model. {LABELS}{only}",
        ),
    )


def interpolation(results: Results, rows: Sequence[Row]) -> tuple[Part, ...]:
    """Every row in a table, and the course of the paths of some."""
    table = interpolation_table(results)
    if table is None:
        return ()
    paths = [path for row in rows if (path := path_of(row.title.replace("_", ""), row.family, row.records))]
    real = results.spread("generation/real_forward_perplexity")
    return some(
        table,
        figure(
            "interpolation",
            draw_interpolation(paths, real.mean if real else None),
            "Perplexity of the texts on the path between two texts, over the weight of the second.",
            "Fluency of the texts on the way from one text to another: their perplexity under the scorer, over the "
            "weight of the second text; bands are the standard deviation over seeds. NVAE mixes the two distributions, "
            "other models the vectors at the same place.",
        ),
        *(_way(row) for row in rows),
    )


def _way(row: Row) -> Texts | None:
    examples = next((found for record in row.records if (found := find(record, "interpolation/examples"))), None)
    return Texts(f"path-{row.name}", f"A path of {row.title}", path=tuple(examples[0])) if examples else None


def texts(row: Row, *, shown: bool) -> Texts | None:
    """The first reconstructions and samples of the first seed; None if there are none."""
    record: dict[str, Any] = row.records[0] if row.records else {}
    pairs = [
        Pair(str(entry.get("text", "")), str(entry.get("reconstruction", "")))
        for entry in (find(record, "reconstruction/*/examples") or [])[:TEXTS]
    ]
    drawn = [str(text) for text in (find(record, "generation/examples") or [])[:TEXTS]]
    return Texts(f"texts-{row.name}", row.title, tuple(pairs), tuple(drawn), shown=shown) if pairs or drawn else None
