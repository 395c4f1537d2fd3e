"""`nvib`: the text toolkit on the command line.

A mistake of the user is one line and exit code 2. What a command needs is imported when it runs, so that `--help` and
wrong options are answered in a fraction of a second.
"""

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run a command, or say what to install if only the core library is there."""
    try:
        from open_nvib.cli.commands import NVIB
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("open_nvib"):
            raise
        print(
            f"nvib: {error.name} is not installed. The command needs the extra text: pip install '.[text]' in a clone",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    from open_nvib.cli.parser import run

    run(NVIB, sys.argv[1:] if arguments is None else arguments)
