"""`nvib`: the text toolkit on the command line.

A mistake of the user is one line and exit code 2. Heavy imports wait until a command needs them, so that `--help` is
quick.
"""

import errno
import signal
import sys
from collections.abc import Callable

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli import app, demo, evaluating, experiment, report, training, using
from open_nvib.cli.tools import OneLineParser, stop, with_packaged_configs
from open_nvib.store.files import InputError


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the exit code is 2 for a mistake in what was given."""
    try:
        _main(arguments)
    except InputError as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("nvib: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except Exception as error:
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and "No space left" not in str(error):
            raise
        where = getattr(error, "filename", None) or "the disk"
        stop(f"{where}: no space left on the disk. Free some, and run the same command again.")


def _main(arguments: list[str] | None) -> None:
    parser = OneLineParser(
        prog="nvib", description="Text autoencoders whose latent is a set of vectors of learned size."
    )
    commands = parser.add_subcommands(dest="command")
    arguments = with_packaged_configs(sys.argv[1:] if arguments is None else arguments)
    for name, (describe, _, summary) in COMMANDS.items():
        command = OneLineParser(prog=f"nvib {name}", description=summary)
        commands.add_subcommand(name, command, help=summary)
        if name in arguments[:1]:  # to describe a command is to import what it needs
            describe(command)
    try:
        given = parser.parse_args(arguments)
    except UnicodeDecodeError as error:
        raise InputError(f"--config: not a text file ({error}). Give a YAML file.") from error
    _, action, _ = COMMANDS[given.command]
    action(given[given.command])


COMMANDS: dict[str, tuple[Callable[[ArgumentParser], None], Callable[[Namespace], None], str]] = {
    "demo": (demo.describe_demo, demo.run_demo, "See it all in minutes: prepare, train, measure, show."),
    "prepare": (
        training.describe_prepare,
        training.run_prepare,
        "Turn text into tokenised, split sentences to train on.",
    ),
    "train": (
        training.describe_train,
        training.run_train,
        "Train a text autoencoder, or go on where a run was stopped.",
    ),
    "reconstruct": (using.describe_reconstruct, using.run_reconstruct, "Send texts through the latent and back."),
    "sample": (using.describe_sample, using.run_sample, "Generate texts from the prior."),
    "interpolate": (using.describe_interpolate, using.run_interpolate, "Write the texts on the path between two."),
    "inspect": (using.describe_inspect, using.run_inspect, "Show what the latent kept of each token."),
    "app": (app.describe_app, app.run_app, "Open a web page on which to look into the latent of one or more runs."),
    "evaluate": (
        evaluating.describe_evaluate,
        evaluating.run_evaluate,
        "Measure a trained model: reconstruction, generation, the latent, interpolation.",
    ),
    "experiment": (
        experiment.describe_experiment,
        experiment.run_experiment,
        "Train and measure rows of configurations × seeds, and see how far that is.",
    ),
    "report": (
        report.describe_report,
        report.run_report,
        "Write the tables and figures of an experiment, or of a run.",
    ),
}
