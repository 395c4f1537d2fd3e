"""What the report of an experiment says."""

from collections.abc import Iterable, Sequence
from functools import cache

from open_nvib.report.best import Best, best_nvae
from open_nvib.report.cells import find, number
from open_nvib.report.document import Document, Paragraph, Part, Section
from open_nvib.report.figures.attention import draw_attention
from open_nvib.report.figures.gamma import draw_gamma
from open_nvib.report.figures.points import MOST_LABELS, draw_bleu_kept, draw_bleu_perplexity, draw_perplexity_kept
from open_nvib.report.figures.rows import draw_rows
from open_nvib.report.parts import (
    LABELS,
    MEASURED,
    TEXTS,
    figure,
    interpolation,
    reference,
    samples,
    some,
    texts,
    vectors,
)
from open_nvib.report.results import Results, Row
from open_nvib.report.tables import copying_table, latent_table, main_table

MOST_NAMED = 12


def document(results: Results) -> Document:
    """All sections for which there is something to show."""
    best = best_nvae(results.rows)
    compared = [row for row in (best.row if best else None, _vt(results)) if row is not None]
    sections = (
        Section("table", "The table", _table(results, best)),
        Section("trade-off", "Reconstruction against generation", _trade_off(results, best)),
        Section("vectors", "How many vectors are kept", _vectors(results, best)),
        Section("samples", "What samples are like", _samples(results)),
        Section("latent", "What the latent carries", some(latent_table(results))),
        Section("interpolation", "Between two texts", interpolation(results, compared)),
        Section("texts", "Reconstructions and samples of every row", _texts(results, best)),
        Section("method", "How denoising attention works", _method()),
    )
    return Document(
        title=results.plan.title,
        lead=_lead(results),
        facts=tuple(facts(results)),
        sections=tuple(section for section in sections if section.parts),
    )


def _lead(results: Results) -> str:
    there, wanted = len(results.records), results.wanted
    scale = f" at the {results.plan.scale} scale" if results.plan.scale else ""
    cells = f"all {wanted} cells" if there == wanted else f"{there} of {wanted} cells so far"
    return (
        f"Text autoencoders whose latent is a set of vectors, measured{scale}: {cells}, a cell being a row of the "
        f"table with one seed. All numbers come from the JSON files beside this page."
    )


def facts(results: Results) -> Iterable[tuple[str, str]]:
    """What a reader should know before the numbers."""
    source, partition = results.first("recipe/source/source"), results.first("config/partition")
    if source:
        lengths = results.first(f"recipe/config/partitions/{partition}")
        tokens = f" of {lengths[0]} to {lengths[1]} tokens" if isinstance(lengths, list) and len(lengths) == 2 else ""
        yield "data", f"{source}, sentences{tokens}"
    budgets = {
        (find(record, "config/optimiser/steps"), find(record, "config/optimiser/batch_size"))
        for record in results.records
    }
    if len(budgets) == 1 and None not in (budget := budgets.pop()):
        yield "training of every cell", f"{budget[0]:,} steps of {budget[1]:,} sentences"
    sentences, drawn = _largest(results, "reconstruction/*/sentences"), _largest(results, "generation/samples")
    measured = [f"{sentences:,} sentences of the {results.split} split"] if sentences else []
    measured += [f"{drawn:,} samples"] if drawn else []
    if measured:
        yield "evaluation of every cell", f"{', '.join(measured)}, scorer: {results.scorer}"
    signature = results.first("reconstruction/*/signature")
    if signature:
        yield "BLEU", f"sacreBLEU, `{signature}`"
    versions = results.first("versions")
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    if results.missing:
        yield "still missing", _listed([f"{row} seed {seed}" for row, seed in results.missing])
    if results.strays:
        yield "left out, not in the experiment", _listed(results.strays)


def _largest(results: Results, path: str) -> int | None:
    found = [value for record in results.records if (value := number(record, path)) is not None]
    return int(max(found)) if found else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _points(results: Results) -> str:
    """What a caption says of points."""
    labels = LABELS if len(results.rows) <= MOST_LABELS else "On the page, pointing at one tells which it is."
    return f"A point is a cell (a row with one seed). {labels}"


def _table(results: Results, best: Best | None) -> tuple[Part, ...]:
    printed = " Hollow marks are the paper’s printed means, at another scale."
    return some(
        Paragraph(MEASURED + (f" The marked row is the best NVAE: {best.reason}." if best else "")),
        main_table(results, best),
        reference(results),
        figure(
            "bleu_rows",
            draw_rows(results.rows),
            "Dot plot of the reconstruction BLEU of every row.",
            f"BLEU of every row.{printed if any(row.paper for row in results.measured) else ''}",
        ),
    )


def _trade_off(results: Results, best: Best | None) -> tuple[Part, ...]:
    return some(
        figure(
            "bleu_perplexity",
            draw_bleu_perplexity(results, best),
            "Two scatter plots: BLEU against F-PPL and against R-PPL, a point for each cell, in a colour and marker "
            "for each family of models, with a dashed line at the perplexity of real text.",
            f"BLEU against F-PPL (left) and R-PPL (right). Upwards is better reconstruction; the dashed line is real "
            f"text. {_points(results)}",
        )
    )


def _vectors(results: Results, best: Best | None) -> tuple[Part, ...]:
    return some(
        figure(
            "bleu_kept",
            draw_bleu_kept(results, best),
            "Scatter plot of BLEU against the share of vectors kept, a point for each cell.",
            f"BLEU against ν. {_points(results)}",
        ),
        figure(
            "perplexity_kept",
            draw_perplexity_kept(results, best),
            "Two scatter plots: F-PPL and R-PPL against the share of vectors kept, a point for each cell.",
            f"F-PPL (left) and R-PPL (right) against ν. The dashed line is real text. {_points(results)}",
        ),
        vectors(best.row, "the best NVAE", best.reason) if best else None,
    )


def _samples(results: Results) -> tuple[Part, ...]:
    copying = results.copying()
    return samples(results) + some(copying_table(copying) if copying else None)


def _vt(results: Results) -> Row | None:
    """The regularised VT of the paper, else the VT that reconstructs best."""
    rows = [row for row in results.measured if row.family == "VT"]
    named = [row for row in rows if row.plan.paper == "vt"]
    rows = named or sorted(rows, key=lambda row: -max(row.values("reconstruction/*/bleu"), default=0.0))
    return rows[0] if rows else None


def _texts(results: Results, best: Best | None) -> tuple[Part, ...]:
    found = some(*(texts(row, shown=best is not None and best.row is row) for row in results.measured))
    words = f"The first {TEXTS} of each, of the first seed. Words that came back and were not in the text are marked."
    return (Paragraph(words), *found) if found else ()


@cache
def _method() -> tuple[Part, ...]:
    """The same in every report, and drawn once."""
    return some(
        figure(
            "denoising_attention",
            draw_attention(),
            "Two panels with the same seven queries: on the left each goes to weighted points of a sample, on the "
            "right to Gaussians of the mean; arrows lead from each query to its denoised value.",
            "Denoising attention in two dimensions, drawn by the library’s own functions: the mixture is the prior, a "
            "query a noisy observation, and the result its expected value. Left: `attend_impulses` over a sample, "
            "where the area of a disc is its weight. Right: `attend_gaussians` over the mean, with rings out to two "
            "standard deviations. One token was dropped: its pseudo-count is exactly 0.",
        ),
        figure(
            "gamma_approximation",
            draw_gamma(),
            "Mean absolute difference of two approximations from the true inverse CDF of a Gamma, over the "
            "pseudo-count.",
            "How far the paper’s two approximations are from the true inverse CDF of a Gamma, and where they are "
            "equally far. The sampler goes from one to the other at 0.6363, as printed.",
        ),
    )
