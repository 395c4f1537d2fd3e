"""What all commands share: a parser that says in one line what is wrong, and settings from its options."""

import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from open_nvib.store.files import InputError
from open_nvib.store.settings import packaged_config

LONGEST = 800
"""Letters of a message that still count as one line."""


class OneLineParser(ArgumentParser):
    """A parser that says in one line what is wrong, and exits with 2."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        stop(_shortened(" ".join(str(message).split())))


def _shortened(message: str) -> str:
    """Without all of a long file or value that jsonargparse quotes."""
    wanted = "--config: wanted a YAML file with settings, got text that begins"
    message = re.sub(r"^Unexpected config: (.{,60}).*", rf"{wanted} '\1'.", message)
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"


def stop(message: str) -> NoReturn:
    print(f"nvib: {message}", file=sys.stderr)
    raise SystemExit(2)


def with_packaged_configs(arguments: list[str]) -> list[str]:
    """`--config configs/small/nvae.yaml` means the one that comes with the package, where there is no such file."""
    found, before = [], ""
    for argument in arguments:
        name = argument.removeprefix("--config=")
        if before == "--config" or name != argument:
            packaged = packaged_config(name)
            if packaged is not None and not Path(name).exists():
                argument = argument.removesuffix(name) + str(packaged)
        found.append(argument)
        before = argument
    return found


def without(given: Namespace, *names: str) -> Namespace:
    options = given.clone()
    for name in names:
        options.pop(name, None)
    return options


def build(kind: type, options: Namespace) -> Any:
    """The dataclass of parsed options; what it refuses is a mistake of the user."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "config")
    try:
        built: Any = parser.instantiate(Namespace(config=options))
        return built.config
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error
