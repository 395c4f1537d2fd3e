"""`nvib prepare` and `nvib train`."""

import os
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli.tools import build, without


def describe_prepare(parser: ArgumentParser) -> None:
    from open_nvib.store.settings import PrepareConfig

    parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    parser.add_class_arguments(PrepareConfig)
    parser.add_argument("--overwrite", action="store_true", help="replace data of another recipe at --output")
    parser.add_argument(
        "--plot", type=str | None, default=None, help="where to draw the length distributions, instead of --output"
    )


def run_prepare(given: Namespace) -> None:
    from open_nvib.text.data import PrepareConfig, draw_lengths, prepare

    options = without(given, "config", "overwrite", "plot")
    prepared = prepare(build(PrepareConfig, options), overwrite=given.overwrite)
    print(prepared.summary())
    picture = Path(given.plot) if given.plot else prepared.path / "lengths.svg"
    if given.plot or not picture.exists():
        draw_lengths(prepared, picture)
    print(f"length distributions: {picture}")


def describe_train(parser: ArgumentParser) -> None:
    from open_nvib.store.settings import TrainConfig

    parser.add_argument("--config", action="config", help="YAML file, such as configs/small/nvae.yaml")
    parser.add_class_arguments(TrainConfig)
    parser.add_argument("--output", type=str, required=True, help="the run directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a run with other settings at --output")


def run_train(given: Namespace) -> None:
    from open_nvib.store.settings import TrainConfig
    from open_nvib.text.training.train import train

    config = build(TrainConfig, without(given, "config", "output", "overwrite"))
    metrics = train(config, given.output, overwrite=given.overwrite)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(" ".join(f"{name}={_show(value)}" for name, value in sorted(metrics.items())))


def _show(value: float | None) -> str:
    """A number; a dash where it was not finite, and so could not be written down."""
    return "-" if value is None else f"{value:.4g}"
