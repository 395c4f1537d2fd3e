"""The commands that use a run: `nvib reconstruct`, `sample`, `interpolate` and `inspect`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from open_nvib.store.files import InputError


def describe_reconstruct(parser: ArgumentParser) -> None:
    _add_run(parser)
    _add_texts(parser)


def run_reconstruct(given: Namespace) -> None:
    texts = _texts(given)
    for line in _load(given).reconstruct(texts):
        print(line)


def describe_sample(parser: ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument("--count", type=int, default=10, help="how many texts")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same texts")
    parser.add_argument("--length", type=int | None, default=None, help="tokens; drawn from the data if not given")
    parser.add_argument(
        "--delta", type=float | None, default=None, help="Δ of an NVAE's prior; the model's if not given"
    )


def run_sample(given: Namespace) -> None:
    for line in _load(given).sample(given.count, seed=given.seed, length=given.length, delta=given.delta):
        print(line)


def describe_interpolate(parser: ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument("first", type=str, help="where the path begins")
    parser.add_argument("second", type=str, help="where it ends")
    parser.add_argument("--steps", type=int, default=7, help="points on the path, both ends included")


def run_interpolate(given: Namespace) -> None:
    for line in _load(given).interpolate(given.first, given.second, steps=given.steps):
        print(line)


def describe_inspect(parser: ArgumentParser) -> None:
    _add_run(parser)
    _add_texts(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    parser.add_argument("--plot", type=str | None, default=None, help="also draw a picture to this file (.png, .svg)")


def run_inspect(given: Namespace) -> None:
    texts = _texts(given)
    reports = _load(given).inspect(texts)
    for report in reports:
        if given.json:
            print(json.dumps(asdict(report), ensure_ascii=False))
        else:
            print(_table(report))
    if given.plot:
        from open_nvib.text.using.inspection import draw_reports

        print(f"picture: {draw_reports(reports, given.plot)}", file=sys.stderr)


def _table(report: Any) -> str:
    def show(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        report.text,
        f"  -> {report.reconstruction}",
        f"  {'token':<16}{'alpha':>9}{'weight':>9}{'sigma':>9}{'KL':>9}",
    ]
    for row in report.tokens:
        numbers = (
            show(row.alpha, ".3f"),
            "" if row.shared else f"{row.weight:.1%}",
            show(row.sigma, ".3f"),
            show(row.kl, ".1f"),
        )
        kept = "" if row.kept else "  shares the vector above" if row.shared else "  dropped"
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
    from open_nvib.text.using.run import load_run

    return load_run(given.run, device=given.device)
