"""What all commands share: a parser that says in one line what is wrong, and settings from its options."""

import sys
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from open_nvib.errors import InputError


class OneLineParser(ArgumentParser):
    """A parser that says in one line what is wrong, and exits with 2."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        stop(" ".join(str(message).split()))


def stop(message: str) -> NoReturn:
    print(f"nvib: {message}", file=sys.stderr)
    raise SystemExit(2)


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
