"""`nvib`: the text toolkit on the command line.

A mistake of the user is one line and exit code 2. Heavy imports wait until a command needs them, so that `--help` is
quick.
"""

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from open_nvib.errors import InputError


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the exit code is 2 for a mistake in what was given."""
    try:
        _main(arguments)
    except InputError as error:
        _stop(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except Exception as error:
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and "No space left" not in str(error):
            raise
        where = getattr(error, "filename", None) or "the disk"
        _stop(f"{where}: no space left on the disk. Free some, and run the same command again.")


def _main(arguments: list[str] | None) -> None:
    parser = OneLineParser(
        prog="nvib", description="Text autoencoders whose latent is a set of vectors of learned size."
    )
    commands = parser.add_subcommands(dest="command")
    arguments = sys.argv[1:] if arguments is None else arguments
    for name, (describe, _, summary) in COMMANDS.items():
        command = OneLineParser(prog=f"nvib {name}", description=summary)
        if name in arguments[:1]:  # to describe a command is to import what it needs
            describe(command)
        commands.add_subcommand(name, command, help=summary)
    try:
        given = parser.parse_args(arguments)
    except UnicodeDecodeError as error:
        raise InputError(f"--config: not a text file ({error}). Give a YAML file.") from error
    _, action, _ = COMMANDS[given.command]
    action(given[given.command])


class OneLineParser(ArgumentParser):
    """A parser that says in one line what is wrong, and exits with 2."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        _stop(" ".join(str(message).split()))


def _stop(message: str) -> None:
    print(f"nvib: {message}", file=sys.stderr)
    raise SystemExit(2)


# prepare


def _describe_prepare(parser: ArgumentParser) -> None:
    from open_nvib.text.data import PrepareConfig

    parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    parser.add_class_arguments(PrepareConfig)
    parser.add_argument("--overwrite", action="store_true", help="replace data of another recipe at --output")
    parser.add_argument(
        "--plot", type=str | None, default=None, help="where to draw the length distributions, instead of --output"
    )


def _prepare(given: Namespace) -> None:
    from open_nvib.text.data import PrepareConfig, prepare
    from open_nvib.text.data.figure import draw_lengths

    options = _without(given, "config", "overwrite", "plot")
    prepared = prepare(_build(PrepareConfig, options), overwrite=given.overwrite)
    print(prepared.summary())
    picture = Path(given.plot) if given.plot else prepared.path / "lengths.svg"
    if given.plot or not picture.exists():
        draw_lengths(prepared, picture)
    print(f"length distributions: {picture}")


# train


def _describe_train(parser: ArgumentParser) -> None:
    from open_nvib.text.train_config import TrainConfig

    parser.add_argument("--config", action="config", help="YAML file, such as configs/small/nvae.yaml")
    parser.add_class_arguments(TrainConfig)
    parser.add_argument("--output", type=str, required=True, help="the run directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a run with other settings at --output")


def _train(given: Namespace) -> None:
    from open_nvib.text.train import train
    from open_nvib.text.train_config import TrainConfig

    config = _build(TrainConfig, _without(given, "config", "output", "overwrite"))
    metrics = train(config, given.output, overwrite=given.overwrite)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(" ".join(f"{name}={value:.4g}" for name, value in sorted(metrics.items())))


# The use of a run


def _describe_reconstruct(parser: ArgumentParser) -> None:
    _add_run(parser)
    _add_texts(parser)


def _reconstruct(given: Namespace) -> None:
    texts = _texts(given)
    for line in _load(given).reconstruct(texts):
        print(line)


def _describe_sample(parser: ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument("--count", type=int, default=10, help="how many texts")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same texts")
    parser.add_argument("--length", type=int | None, default=None, help="tokens; drawn from the data if not given")


def _sample(given: Namespace) -> None:
    for line in _load(given).sample(given.count, seed=given.seed, length=given.length):
        print(line)


def _describe_interpolate(parser: ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument("first", type=str, help="where the path begins")
    parser.add_argument("second", type=str, help="where it ends")
    parser.add_argument("--steps", type=int, default=7, help="points on the path, both ends included")


def _interpolate(given: Namespace) -> None:
    for line in _load(given).interpolate(given.first, given.second, steps=given.steps):
        print(line)


def _describe_inspect(parser: ArgumentParser) -> None:
    _add_run(parser)
    _add_texts(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    parser.add_argument("--plot", type=str | None, default=None, help="also draw a picture to this file (.png, .svg)")


def _inspect(given: Namespace) -> None:
    texts = _texts(given)
    reports = _load(given).inspect(texts)
    for report in reports:
        if given.json:
            print(json.dumps(asdict(report), ensure_ascii=False))
        else:
            print(_table(report))
    if given.plot:
        from open_nvib.text.picture import draw_reports

        print(f"picture: {draw_reports(reports, given.plot)}", file=sys.stderr)


def _describe_report(parser: ArgumentParser) -> None:
    parser.add_argument("path", type=str, help="an experiment's YAML file, or a run directory")
    parser.add_argument("--output", type=str | None, default=None, help="the directory to write the report to")
    parser.add_argument("--cells", type=str | None, default=None, help="a directory of results to report instead")


def _report(given: Namespace) -> None:
    from open_nvib.report.command import report

    written = report(given.path, output=given.output, cells=given.cells)
    for remark in written.remarks:
        print(f"nvib: {remark}", file=sys.stderr)
    print(written.page)


def _table(report: Any) -> str:
    def show(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        report.text,
        f"  -> {report.reconstruction}",
        f"  {'token':<16}{'alpha':>9}{'weight':>9}{'sigma':>9}{'KL':>9}",
    ]
    for row in report.tokens:
        numbers = (show(row.alpha, ".3f"), f"{row.weight:.1%}", show(row.sigma, ".3f"), show(row.kl, ".1f"))
        kept = "" if row.kept else "  dropped"
        lines.append(f"  {row.token:<16}" + "".join(f"{number:>9}" for number in numbers) + kept)
    if report.prior_weight:
        lines.append(f"  {'(prior)':<16}{'':>9}{report.prior_weight:>9.1%}")
    return "\n".join(lines)


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=str, help="a run directory that `nvib train` wrote")
    parser.add_argument("--device", type=str | None, default=None, help="such as cuda; the CPU if not given")


def _add_texts(parser: ArgumentParser) -> None:
    parser.add_argument("texts", type=str, nargs="*", default=[], help="one or more texts, quoted")
    parser.add_argument("--file", type=str | None, default=None, help="a file with a text on each line; - reads them")


def _texts(given: Namespace) -> list[str]:
    texts = list(given.texts)
    if given.file == "-":
        texts += sys.stdin.read().splitlines()
    elif given.file:
        try:
            texts += Path(given.file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{given.file}: cannot be read as text ({error}). Give a UTF-8 text file.") from error
    texts = [text for text in texts if text.strip()] if given.file else texts
    if not texts:
        raise InputError("no text given. Give one or more in quotes, or --file with a text on each line.")
    return texts


def _load(given: Namespace) -> Any:
    from open_nvib.text.run import load_run

    return load_run(given.run, device=given.device)


def _without(given: Namespace, *names: str) -> Namespace:
    options = given.clone()
    for name in names:
        options.pop(name, None)
    return options


def _build(kind: type, options: Namespace) -> Any:
    """The dataclass of parsed options; what it refuses is a mistake of the user."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "config")
    try:
        built: Any = parser.instantiate(Namespace(config=options))
        return built.config
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error


COMMANDS: dict[str, tuple[Callable[[ArgumentParser], None], Callable[[Namespace], None], str]] = {
    "prepare": (_describe_prepare, _prepare, "Turn text into tokenised, split sentences to train on."),
    "train": (_describe_train, _train, "Train a text autoencoder, or go on where a run was stopped."),
    "reconstruct": (_describe_reconstruct, _reconstruct, "Send texts through the latent and back."),
    "sample": (_describe_sample, _sample, "Generate texts from the prior."),
    "interpolate": (_describe_interpolate, _interpolate, "Write the texts on the path between two."),
    "inspect": (_describe_inspect, _inspect, "Show what the latent kept of each token."),
    "report": (_describe_report, _report, "Write the tables and figures of an experiment, or of a run."),
}
