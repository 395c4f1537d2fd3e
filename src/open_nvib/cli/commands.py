"""The commands of `nvib`: a function for each. Docstrings are the help, and NVIB lists them all."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from open_nvib import text
from open_nvib.cli.parser import Group
from open_nvib.store.files import MANIFEST, InputError, find_damage, in_one_line, read_stored
from open_nvib.store.runs import complete_replacement
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import PARTS, DemoConfig, EvaluateConfig, PrepareConfig

if TYPE_CHECKING:  # they import torch, and --help does not wait for that
    from open_nvib.text import Run

RunDirectory = Annotated[str, "a run directory that `nvib train` wrote"]
Device = Annotated[str | None, "such as cuda; the CPU if not given"]
Texts = Annotated[str, "one or more texts, quoted"]
Lines = Annotated[str | None, "a file with a text on each line; - reads standard input"]
ExperimentFile = Annotated[str, "the experiment, such as experiments/table.yaml"]
Rows = Annotated[Sequence[str], "only these rows"]
Seeds = Annotated[Sequence[int], "only these seeds"]
"""Types of parameters that several commands have, with their help."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """How many vectors each text gets.

    Args:
        vectors: give each text this many vectors, the fewest that reconstruct it exactly (fewest), or a number that is
            chosen quickly (auto); for a model that takes any number, as is --share
        share: give each text this many vectors per token, above 0 and at most 1
    """

    vectors: int | Literal["fewest", "auto"] | None = None
    share: float | None = None


def demo(settings: DemoConfig) -> None:
    """See it all in minutes: prepare, train, measure, show."""
    from open_nvib.demo import demo

    demo(settings)


def prepare(config: PrepareConfig, *, overwrite: bool = False, plot: str | None = None) -> None:
    """Turn text into tokenised, split sentences to train on.

    Args:
        config: YAML file with any of the options below
        overwrite: replace data of another recipe at --output
        plot: where to draw the length distributions, instead of --output
    """
    from open_nvib.text.data.prepared import PICTURE

    prepared = text.prepare(config, overwrite=overwrite)
    print(prepared.summary())
    picture = prepared.path / PICTURE if plot is None else Path(plot)
    if plot is not None or not picture.exists():
        from open_nvib.report import draw_lengths

        draw_lengths(prepared, picture)
    print(f"length distributions: {picture}")


def train(config: TrainConfig, *, output: str, overwrite: bool = False, device: str | None = None) -> None:
    """Train a text autoencoder, or continue an interrupted run.

    Args:
        config: YAML file, such as configs/small/nvae.yaml
        output: the run directory to write
        overwrite: replace a run with other settings at --output, once the new one is trained
        device: such as cpu or cuda:1; a GPU if there is one, or else the CPU, if not given
    """
    metrics = text.train(config, output, overwrite=overwrite, device=device)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(" ".join(f"{name}={'-' if value is None else f'{value:.4g}'}" for name, value in sorted(metrics.items())))


def check(path: str) -> None:
    """Check that no file of a run or of prepared data is missing or damaged.

    Args:
        path: a run directory that `nvib train` wrote, or prepared data
    """
    directory = Path(path).expanduser()
    complete_replacement(directory)
    if not (directory / MANIFEST).exists():
        found = f"has no {MANIFEST} to check its files by" if directory.is_dir() else "no such directory"
        raise InputError(f"{path}: {found}. Give the directory of a finished run or of prepared data.")
    wrong = [f"{file}: {what}" for file, what in find_damage(directory)]
    for line in wrong:
        print(f"nvib: {line}", file=sys.stderr)
    if wrong:
        raise SystemExit(2)
    print(f"{path}: complete and undamaged")


def reconstruct(
    run: RunDirectory,
    *texts: Texts,
    device: Device = None,
    file: Lines = None,
    sample: bool = False,
    seed: int = 0,
    number: Number,
) -> None:
    """Send texts through the latent and back.

    Args:
        sample: decode a sample of each latent, as in training, instead of its mean
        seed: of --sample
    """
    given = _texts(texts, file)
    opened = text.load_run(run, device=device)
    usable = _usable(opened, given, file)
    for line in opened.reconstruct(usable, seed=seed if sample else None, **vars(number)):
        print(line)


def encode(
    run: RunDirectory, *, file: str, output: str, device: Device = None, overwrite: bool = False, number: Number
) -> None:
    """Write the latent of each line of a file: vectors, σ, weights, α.

    Args:
        file: a file with a text on each line; - reads standard input
        output: the file to write, which ends in .parquet
        overwrite: replace a file at --output that this command did not write
    """
    given = _texts((), file)
    from open_nvib.text.using.latents import check_output, write_latents

    check_output(Path(output).expanduser(), overwrite=overwrite)
    opened = text.load_run(run, device=device)
    _usable(opened, given, file)
    ids, _ = opened.tokenize_usable(given)
    request = opened.request(list(ids.values()), **vars(number))
    print(f"{len(ids):,} texts: {write_latents(opened, ids, given, output, overwrite=overwrite, request=request)}")


def sample(
    run: RunDirectory,
    *,
    device: Device = None,
    count: int = 10,
    seed: int = 0,
    length: int | None = None,
    delta: float | None = None,
    vectors: int | None = None,
    share: float | None = None,
    prior: Literal["unit", "learned"] = "unit",
    noise_scale: float | None = None,
) -> None:
    """Generate texts from the prior.

    Args:
        count: number of texts
        seed: the same seed gives the same texts
        length: length in tokens; drawn from the lengths of the training data if not given
        delta: Δ of an NVAE's prior; the model's if not given
        vectors: how many vectors a latent has, of a model that takes any number; the fewest of a sentence of the
            length if not given
        share: vectors per token of the length instead, above 0 and at most 1
        prior: unit: that of the training loss; learned: that of `nvib fit-prior`
        noise_scale: factor of the noise of the learned prior; 0.3 if not given
    """
    options: dict[str, Any] = {"length": length, "delta": delta, "vectors": vectors, "share": share}
    options |= {"prior": prior, "noise_scale": noise_scale}
    for line in text.load_run(run, device=device).sample(count, seed=seed, **options):
        print(line)


def fit_prior(
    run: RunDirectory,
    *,
    device: Device = None,
    data: str | None = None,
    texts: int = 5_000,
    share: float | None = None,
    seed: int = 0,
) -> None:
    """Fit a prior to the latents of training texts, for `nvib sample --prior learned`.

    Args:
        data: directory of the run's prepared data, if it was moved
        texts: how many training sentences
        share: vectors per token, above 0 and at most 1, of a model that takes any number; 0.25 if not given and the
            model was trained for any, or else the number that it gives a text by itself
        seed: of the choice of sentences
    """
    from open_nvib.evaluation.evaluate import data_of
    from open_nvib.evaluation.references import choose
    from open_nvib.store.settings import check_number

    check_number("texts", texts)
    check_number("seed", seed)
    opened = text.load_run(run, device=device)
    training = data_of(opened, data).split(opened.config.partition, "train")["input_ids"]
    chosen = [ids for ids in choose(list(training), texts, seed) if len(ids) <= opened.longest]
    opened.fit_prior(chosen, share=share)
    print(f"{run}: prior fitted to {len(chosen):,} sentences. To sample it: nvib sample {run} --prior learned")


def interpolate(
    run: RunDirectory, first: str, second: str, *, device: Device = None, steps: int = 7, number: Number
) -> None:
    """Write the texts on the path between two.

    Args:
        first: the text at which the path begins
        second: the text at which it ends
        steps: points on the path, both ends included
    """
    for line in text.load_run(run, device=device).interpolate(first, second, steps=steps, **vars(number)):
        print(line)


def inspect(
    run: RunDirectory,
    *texts: Texts,
    device: Device = None,
    file: Lines = None,
    json: bool = False,
    plot: str | None = None,
    number: Number,
) -> None:
    """Show what the latent kept of each token.

    Args:
        json: print JSON, one object on each line
        plot: also draw a picture to this file (.png, .svg)
    """
    from open_nvib.report.summary import token_table

    given = _texts(texts, file)
    opened = text.load_run(run, device=device)
    reports = opened.inspect(_usable(opened, given, file), **vars(number))
    for report in reports:
        print(dumps(asdict(report), ensure_ascii=False) if json else token_table(report))
    if plot is not None:
        from open_nvib.text.using.inspection import draw_reports

        print(f"picture: {draw_reports(reports, plot)}", file=sys.stderr)


def app(
    runs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    allowed_hosts: Sequence[str] = (),
    open: bool = False,
    device: Device = None,
) -> None:
    """Open a web page on which to look into the latent of one or more runs.

    Args:
        runs: one or more run directories that `nvib train` wrote
        host: address to listen on; 0.0.0.0 is every network
        port: port to listen on
        allowed_hosts: names at which a proxy or a DNS serves the page, other than --host and localhost
        open: open the page in a browser
    """
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise InputError("the page needs gradio. It is the extra app: pip install '.[app]' in a clone.") from error
    from open_nvib.app import make_app, open_runs, serve

    blocks = make_app(open_runs(runs, device=device))
    serve(blocks, host=host, port=port, allowed_hosts=allowed_hosts, open_browser=open)


def evaluate(
    run: RunDirectory,
    config: EvaluateConfig,
    *,
    file: str | None = None,
    data: str | None = None,
    device: Device = None,
) -> None:
    """Measure a trained model: reconstruction, generation, the latent, interpolation.

    Args:
        config: YAML file with any of the options below
        file: score the reconstruction of each line of this file, and nothing else; - is standard input
        data: directory of the run's prepared data, if it was moved
    """
    if file is not None:
        if config != EvaluateConfig() or data is not None:
            raise InputError("--file scores its lines alone: leave out --data and the settings of an evaluation.")
        lines = _texts((), file)
        _score_lines(text.load_run(run, device=device), lines, file)
        return
    from open_nvib import evaluation
    from open_nvib.report.summary import summarise_evaluation

    found = evaluation.evaluate(run, config, data=data, device=device)
    print(summarise_evaluation(replace(found, **{part: None for part in PARTS if part not in config.measure})))


def experiment_run(
    file: ExperimentFile,
    *,
    rows: Rows = (),
    seeds: Seeds = (),
    engine: Literal["serial", "processes", "ray"] = "serial",
    workers: int | None = None,
    address: str = "auto",
    cpus_per_cell: float = 1,
    gpus_per_cell: float = 0,
    overwrite: bool = False,
    retry_failed: bool = True,
) -> None:
    """Run every cell that is not done; interrupted cells continue, failed ones are tried again.

    Args:
        engine: serial: one cell after another; processes: several at once; ray: on a Ray cluster
        workers: of processes: how many; one for each core if not given
        address: of ray: host:port of the head node, ray://host:port, auto, or local to start one here
        cpus_per_cell: of ray: cores that a cell takes
        gpus_per_cell: of ray: GPUs that a cell takes, or a part of one
        overwrite: replace cells that were run with other settings
        retry_failed: whether cells that failed are tried again
    """
    from open_nvib.experiments.engines import Processes, Ray, Serial
    from open_nvib.experiments.experiment import load_experiment
    from open_nvib.experiments.run import run_experiment, summary

    experiment = load_experiment(file)
    cells = experiment.cells(rows, seeds)
    engines = {
        "serial": Serial,
        "processes": lambda: Processes(workers),
        "ray": lambda: Ray(address, cpus=cpus_per_cell, gpus=gpus_per_cell),
    }
    options = {"overwrite": overwrite, "retry_failed": retry_failed, "say": _say}
    outcomes = run_experiment(experiment, cells, engines[engine](), **options)
    print(summary(outcomes))
    if any(outcome.state == "failed" for outcome in outcomes):
        raise SystemExit(1)


def experiment_status(file: ExperimentFile, *, rows: Rows = (), seeds: Seeds = (), json: bool = False) -> None:
    """Show which cells are done, running, interrupted, failed and waiting.

    Args:
        json: print JSON
    """
    from open_nvib.experiments.experiment import load_experiment
    from open_nvib.experiments.run import show_status, status_as_json, status_of

    experiment = load_experiment(file)
    statuses = [status_of(cell) for cell in experiment.cells(rows, seeds)]
    print(dumps(status_as_json(experiment, statuses), indent=1) if json else show_status(experiment, statuses))


def report(path: str, *, output: str | None = None, cells: str | None = None) -> None:
    """Write the tables and figures of an experiment, or of a run.

    Args:
        path: an experiment, such as experiments/table.yaml, or a run directory
        output: the directory to write the report to
        cells: a directory of results to report instead
    """
    from open_nvib.report import report_on

    written = report_on(path, output=output, cells=cells)
    for remark in written.remarks:
        print(f"nvib: {remark}", file=sys.stderr)
    print(written.page)


COMMANDS = (demo, prepare, train, check, reconstruct, sample, fit_prior, interpolate, inspect, encode, app, evaluate)
NVIB = Group(
    "Text autoencoders whose latent is a set of weighted vectors.",
    {
        **{command.__name__.replace("_", "-"): command for command in COMMANDS},
        "experiment": Group(
            "Train and measure rows of configurations × seeds, and show their state.",
            {"run": experiment_run, "status": experiment_status},
        ),
        "report": report,
    },
)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _score_lines(run: "Run", lines: list[str], file: str) -> None:
    """Print a score for each line of a file, and their means."""
    from open_nvib.evaluation.reconstruction import score_lines

    lines = _usable(run, lines, file)
    ids, _ = run.tokenize_usable(lines)
    found = score_lines(run, lines, list(ids.values()))
    print("BLEU\texact\ttext exact\tnats per token\ttext\treconstruction")
    for line, (bleu, exact, text_exact, nats, reconstruction) in zip(lines, found, strict=True):
        flags = "\t".join("yes" if flag else "no" for flag in (exact, text_exact))
        line = " ".join(line.split())  # a tab in it would be a column
        print(f"{bleu:.1f}\t{flags}\t{nats:.3f}\t{line}\t{reconstruction}")
    bleu, exact, text_exact = (fmean(values) for values in list(zip(*found, strict=True))[:3])
    _say(f"{len(found):,} lines: mean BLEU {bleu:.1f}, exact {exact:.1%}, text exact {text_exact:.1%}")


def _texts(given: tuple[str, ...], file: str | None) -> list[str]:
    """The texts of the command line, then the lines of a file or of standard input."""
    texts = list(given)
    if file is not None:
        try:
            content = sys.stdin.buffer.read() if file == "-" and sys.stdin else read_stored(Path(file).expanduser())
            lines = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
            texts += lines.removesuffix("\n").split("\n") if lines else []
        except (OSError, UnicodeDecodeError) as error:  # read_stored refuses pipes and devices, which may not end
            why = in_one_line(error)
            raise InputError(f"--file {file}: cannot be read as text ({why}). Give a UTF-8 text file.") from error
    if not any(line.strip() for line in texts) and (file is not None or not texts):
        raise InputError("no text given. Give one or more in quotes, or --file with a text on each line.")
    return texts


def _usable(run: "Run", texts: list[str], file: str | None) -> list[str]:
    """The texts that the model takes. Lines of a file that it does not take are left out with a warning."""
    if file is None:
        return texts
    ids, unusable = run.tokenize_usable(texts)
    if unusable:
        few = "; ".join(f"{index + 1} ({why})" for index, why in list(unusable.items())[:10])
        more = f"; and {len(unusable) - 10:,} more" if len(unusable) > 10 else ""
        print(f"nvib: {file}: left out lines {few}{more}", file=sys.stderr)
    if not ids:
        raise InputError(f"{file}: has no line that this model takes, expected at least one with a word.")
    return [texts[index] for index in ids]
