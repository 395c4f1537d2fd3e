"""What the report of a single run says."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from open_nvib.report.cells import Cell, find, number
from open_nvib.report.content import facts
from open_nvib.report.document import Column, Document, Line, Paragraph, Part, Section, Table, Value
from open_nvib.report.figures.training import draw_training
from open_nvib.report.models import family_of, settings_of
from open_nvib.report.parts import MEASURED, figure, interpolation, reference, samples, some, texts, vectors
from open_nvib.report.results import Plan, Results, Row, RowPlan
from open_nvib.report.spread import write
from open_nvib.report.tables import latent_table, main_table
from open_nvib.store.files import InputError, damaged

VALIDATION = {
    "bleu": ("BLEU", 2, 1.0),
    "exact": ("exact (%)", 1, 100.0),
    "perplexity": ("PPL", 3, 1.0),
    "loss": ("cross-entropy (nats per token)", 4, 1.0),
    "kept": ("ν", 3, 1.0),
    "kl_gaussian": ("L_G / nd", 4, 1.0),
    "kl_dirichlet": ("L_D / n", 4, 1.0),
    "alpha0": ("α_0", 2, 1.0),
    "sigma": ("mean σ", 3, 1.0),
}
"""What `nvib train` measures: the title, the decimals and the scale of each."""


def run_document(run: Path) -> Document:
    """Of a run directory: its training, and its evaluations where it has any."""
    from open_nvib.store.runs import LOG, read_config, read_metrics

    config, metrics = read_config(run), read_metrics(run)
    log = list(_log(run / LOG))
    if not metrics and not log:
        raise InputError(f"{run}: this run has logged nothing yet, so that there is nothing to report. Train it first.")
    results = run_results(run, config, metrics)
    name, title = run.resolve().name, _title(config)
    sections = [Section("training", "Training", _training(log, metrics))]
    if results.records:
        sections += _evaluated(results)
    else:
        words = f"This run was not evaluated yet: `nvib evaluate {run}` adds samples, perplexities and the latent."
        sections.append(Section("evaluation", "Evaluation", (Paragraph(words),)))
    return Document(
        title=f"{name}: {title}",
        lead=f"A run of {title}: how it was trained and what was measured of it.",
        facts=tuple(_facts(config, metrics, results)),
        sections=tuple(section for section in sections if section.parts),
    )


def run_results(run: Path, config: dict[str, Any], metrics: dict[str, Any]) -> Results:
    """The evaluations of a run as the rows of a table, the causal ones first."""
    evaluations, seed = metrics.get("evaluations", {}), config["seed"]
    content = {"row": run.name, "seed": seed, "train": metrics, "evaluations": evaluations}
    cell = Cell(run.name, seed, content, run)
    names = sorted(evaluations, key=lambda name: not name.endswith("-causal"))
    rows = tuple(Row(RowPlan(name, (seed,), label=name.replace("-", ", scorer ")), (cell,), name) for name in names)
    plan = Plan(run.name, run.name, "", tuple(row.plan for row in rows))
    return Results(plan, names[0] if names else "validation-causal", rows, ())


def _title(config: dict[str, Any]) -> str:
    family = family_of("", None, None, config)
    return f"{family} {settings_of('', None, None, config)}".strip() or "a text autoencoder"


def _log(path: Path) -> Iterable[dict[str, Any]]:
    """Its entries; of a run that is still going, the last line may be cut."""
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise damaged(path, error, fix="Move it away: a report does without it.") from error
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and type(entry.get("step")) is int:
            yield entry


def _facts(config: dict[str, Any], metrics: dict[str, Any], results: Results) -> Iterable[tuple[str, str]]:
    data, partition = find(config, "data"), find(config, "partition")
    yield "data", f"{data}, partition {partition}"
    sizes = {
        "d_model": "size",
        "encoder_layers": "encoder layers",
        "decoder_layers": "decoder layers",
        "heads": "heads",
    }
    shown = [f"{text} {value}" for name, text in sizes.items() if (value := find(config, f"model/{name}"))]
    yield "model", ", ".join(shown)
    step, batch = number(metrics, "step"), find(config, "optimiser/batch_size")
    yield "training", f"{step:,.0f} steps of {batch} sentences" if step else "not finished"
    yield "seed", str(config["seed"])
    for name, value in facts(results):
        if name in ("evaluation of every cell", "BLEU", "versions"):
            yield name.removesuffix(" of every cell"), value


def _training(log: list[dict[str, Any]], metrics: dict[str, Any]) -> tuple[Part, ...]:
    found = metrics.get("validation", {})
    rows = [
        Line((Value(title), Value(write(scale * value, decimals))))
        for name, (title, decimals, scale) in VALIDATION.items()
        if (value := number(found, name)) is not None
    ]
    columns = (Column("on validation data", numeric=False), Column("value"))
    caption = "The model that was kept, at the end of training, at the mean of its latent."
    return some(
        figure(
            "training",
            draw_training(log),
            "Three panels over training steps: cross-entropy, the KL divergences, and BLEU with the share of vectors "
            "kept.",
            "The course of training. Training numbers are of samples of the latent, validation numbers of its mean. "
            "The KL divergences are scaled as in the loss, without their weights λ′.",
        ),
        Table("validation", caption, columns, tuple(rows)) if rows else None,
    )


def _evaluated(results: Results) -> list[Section]:
    """Scores of every evaluation, then what does not depend on the scorer, once."""
    first = results.rows[0]
    model = Row(RowPlan(results.plan.name, first.plan.seeds), first.cells, first.evaluation)
    once = Results(results.plan, results.evaluation, (model,), ())
    return [
        Section(
            "table",
            "Reconstruction and generation",
            some(Paragraph(MEASURED), main_table(results, None), reference(results)),
        ),
        Section("vectors", "How many vectors are kept", some(vectors(model, "this model"))),
        Section("samples", "What samples are like", samples(once)),
        Section("latent", "What the latent carries", some(latent_table(once))),
        Section("interpolation", "Between two texts", interpolation(once, [model])),
        Section("texts", "Reconstructions and samples", some(texts(model, shown=True))),
    ]
