"""Functions as commands: typed arguments and docstrings become options; a mistake in them is one line."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser, Namespace

from open_nvib.store.files import InputError, from_builtins
from open_nvib.store.settings import packaged_config
from open_nvib.store.yaml_file import STRICT_YAML, reworded

MAX_ARGUMENT_LENGTH = 10_000
"""In characters: the YAML reader of jsonargparse ends the process at tens of thousands of brackets."""
COMMAND = "command"
"""The entry of parsed arguments that names the command of a group."""


@dataclass(frozen=True)
class Group:
    """Commands by name, and one line about them."""

    summary: str
    commands: "Mapping[str, Command]"


Command = Group | Callable[..., None]


class OneLineParser(ArgumentParser):
    """A parser that says in one line what is wrong, and exits with 2."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        message = reworded(str(message))
        expected = "--config: expected a YAML file with settings, got text that begins"
        message = re.sub(r"^Unexpected config: (.{,60}).*", rf"{expected} '\1'.", message)
        stop(message)


def stop(message: str) -> NoReturn:
    """Print one line on standard error, and exit with 2; under torchrun, the first process alone prints."""
    if os.environ.get("RANK", "0") == "0":
        line = " ".join(message.split()).encode(errors="backslashreplace").decode()
        print(f"nvib: {line}", file=sys.stderr)
    raise SystemExit(2)


def make_parser(name: str, command: Command) -> OneLineParser:
    """The parser of a command, or of a group with all its commands."""
    parser = OneLineParser(prog=name, description=summary_of(command), parser_mode=STRICT_YAML)
    _fill(parser, command)
    return parser


def summary_of(command: Command) -> str:
    """One line about a command: for a function, the first line of its docstring."""
    if isinstance(command, Group):
        return command.summary
    return parse_docstring(inspect.getdoc(command) or "").short_description or ""


def _fill(parser: ArgumentParser, command: Command) -> None:
    if not isinstance(command, Group):
        _add_arguments(parser, command)
        return
    subcommands = parser.add_subcommands(dest=COMMAND)
    for name, inner in command.commands.items():
        subparser = OneLineParser(description=summary_of(inner))
        subcommands.add_subcommand(name, subparser, help=summary_of(inner))
        _fill(subparser, inner)


def _add_arguments(parser: ArgumentParser, function: Callable[..., None]) -> None:
    """Add the parameters of a function, each with the help that the docstring has for it.

    Positional parameters are positional arguments, keyword-only ones are options: a bool that is False is a flag, a
    sequence takes several values. The fields of a dataclass are options of their own, and if the parameter is called
    `config`, a YAML file can hold them, too.
    """
    explained = {entry.arg_name: entry.description for entry in parse_docstring(inspect.getdoc(function) or "").params}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = parameter.annotation, parameter.default
        options: dict[str, Any] = {"help": explained[name]}
        if is_dataclass(kind):
            if name == "config":
                parser.add_argument("--config", action="config", **options)
            parser.add_class_arguments(kind)  # pyright: ignore[reportArgumentType]
            continue
        if kind is bool and default is False:
            options |= {"action": "store_true"}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            options |= {"type": kind, "nargs": "*", "default": []}
        elif get_origin(kind) is Sequence:
            options |= {"type": get_args(kind)[0], "nargs": "+"}
        elif get_origin(kind) is Literal:
            options |= {"choices": list(get_args(kind))}
        else:
            options |= {"type": kind}
        if parameter.kind is parameter.KEYWORD_ONLY:
            name = f"--{name.replace('_', '-')}"
            options |= (
                {"required": True} if default is parameter.empty else {"default": [] if default == () else default}
            )
        parser.add_argument(name, **options)


def parse(command: Command, arguments: list[str]) -> Namespace:
    """Parse the arguments of `nvib`. What is wrong with them is one line and exit code 2."""
    for argument in arguments:
        if len(argument) > MAX_ARGUMENT_LENGTH:
            raise InputError(
                f"an argument that begins with {argument[:20]!r} has {len(argument):,} characters, expected at most "
                f"{MAX_ARGUMENT_LENGTH:,}. Long texts can be given with --file."
            )
    try:
        return make_parser("nvib", command).parse_args(with_packaged_configs(arguments))
    except UnicodeDecodeError as error:
        raise InputError(f"--config: not a text file ({error}). Give a YAML file.") from error


def call(command: Command, given: Namespace) -> None:
    """Call the function that the parsed arguments name."""
    while isinstance(command, Group):
        name = given[COMMAND]
        command, given = command.commands[name], given[name]
    positional, named = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        value = _settings(parameter.annotation, given) if is_dataclass(parameter.annotation) else given[name]
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
    command(*positional, **named)


def _settings(kind: Any, given: Namespace) -> Any:
    """The dataclass of parsed options; what it refuses is a mistake of the user."""
    try:
        return from_builtins(given.as_dict(), kind)
    except ValueError as error:
        message = re.sub(r"(.*) - at `\$\.(.*)`", r"\2: \1", " ".join(str(error).split()))
        raise InputError(message) from error


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
