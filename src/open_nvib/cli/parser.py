"""Functions as commands: typed arguments and docstrings become options; a mistake in them is one line."""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, get_args, get_origin

from docstring_parser import parse as parse_docstring
from jsonargparse import (
    ActionConfigFile,  # pyright: ignore[reportPrivateImportUsage]
    ArgumentParser,
    Namespace,
)

from open_nvib.store.files import InputError, from_builtins
from open_nvib.store.settings import packaged_config
from open_nvib.store.yaml_file import STRICT_YAML, as_mapping, check_keys, read_mapping, reworded

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

    config_file: ClassVar[str | None] = None
    """The file of --config while it is read, also for the parsers that jsonargparse makes for parts of it."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        message = reworded(str(message))
        stop(message if self.config_file is None else f"{self.config_file}: {message}")


class ConfigFile(ActionConfigFile):
    """Reads settings from a YAML file. A mistake in the file is one line that names the file."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        path = Path(values).expanduser()
        if not path.is_file():
            stop(f"--config: {values!r} is not a file. Give a YAML file.")
        try:
            settings = read_mapping(path)
            _check_settings(settings, {action.dest for action in parser._actions}, where=str(values))
        except InputError as error:
            stop(str(error))
        if settings:
            OneLineParser.config_file = values
            try:
                super().__call__(parser, cfg, values, option_string)
            finally:
                OneLineParser.config_file = None


def _check_settings(values: Mapping[str, Any], options: Collection[str], *, where: str, group: str = "") -> None:
    """Check that each key of a file names an option, such as model.kappa, or a group of them, such as model."""
    inside = [option.removeprefix(group).split(".") for option in options if option.startswith(group)]
    inside = [names for names in inside if names[-1] not in ("config", "help", "print_config")]
    check_keys(values, sorted({names[0] for names in inside}), where=where)
    for name in {names[0] for names in inside if len(names) > 1} & values.keys():
        place = f"{where}: {group}{name}"
        if values[name] is None:
            raise InputError(f"{place} is null, expected settings. Remove it to have their defaults.")
        _check_settings(as_mapping(values[name], where=place), options, where=place, group=f"{group}{name}.")


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
    sequence takes several values. The fields of a dataclass are options of their own, as parameters are if they are
    keyword-only. If the parameter is called `config`, a YAML file can hold them, too.
    """
    explained = {entry.arg_name: entry.description for entry in parse_docstring(inspect.getdoc(function) or "").params}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = parameter.annotation, parameter.default
        options: dict[str, Any] = {"help": explained[name]}
        if is_dataclass(kind):
            if name == "config":
                parser.add_argument("--config", action=ConfigFile, **options)
            if all(field.kw_only for field in fields(kind)):
                _add_arguments(parser, kind)  # pyright: ignore[reportArgumentType]
            else:
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
            argument.encode()
            unusable = argument.find("\0")
        except UnicodeEncodeError as error:
            unusable = error.start
        if unusable >= 0:  # several libraries cannot open a file of such a name
            raise InputError(
                f"the argument {argument[:40]!r} is not UTF-8 text at character {unusable + 1}. Correct it; a file of "
                f"such a name can be renamed."
            )
    try:
        return make_parser("nvib", command).parse_args(with_packaged_configs(arguments))
    except FileNotFoundError as error:
        raise InputError("the current directory was removed. Change to one that exists.") from error


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
        files = given.get("config")
        where = f" (in {files[-1]} or on the command line)" if files else ""
        raise InputError(f"{reworded(str(error))}{where}") from error


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
