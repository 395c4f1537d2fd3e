"""`nvib` and `python -m open_nvib`; `torchrun -m open_nvib train …` trains in several processes."""

import sys


def main() -> None:
    """Run the command line, or say what to install if only the core library is there."""
    try:
        from open_nvib.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("open_nvib"):
            raise
        print(
            f"nvib: {error.name} is not installed. The command needs the extra text: pip install '.[text]' in a clone",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
