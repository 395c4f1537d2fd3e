"""Functions as commands: typed arguments and docstrings become options; a mistake in them is one line.

An option's value is read as YAML, as in a file of settings, unless its type is text. Settings come from the files of
`--config` first, then from the options, wherever they stand on the line.
"""

import argparse
import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import parse as parse_docstring

from open_nvib._deprecation import REMOVAL
from open_nvib.store import files
from open_nvib.store.files import InputError, in_one_line
from open_nvib.store.settings import convert, merged, settings_of

RENAMED_OPTIONS = {"--needed": "--vectors fewest", "--decided": "--vectors auto"}
"""Old options that still work, and what replaces each."""
SHOW_WARNING = warnings.showwarning  # Python's own way, with the place in the code
PRINT_CONFIG = "--print_config"


@dataclass(frozen=True)
class Group:
    """Commands by name, and one line about them."""

    summary: str
    commands: "Mapping[str, Command]"


Command = Group | Callable[..., None]


class OneLineParser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and exits with 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        stop(message)


def stop(message: str) -> NoReturn:
    """Print one line on standard error, and exit with 2; under torchrun, the first process alone prints."""
    if os.environ.get("RANK", "0") == "0":
        print(f"nvib: {in_one_line(message, longest=1000)}", file=sys.stderr)
    raise SystemExit(2)


def run(command: "Command", arguments: list[str]) -> None:
    """Parse the arguments of `nvib` and run the command; the exit code is 2 for a mistake in what was given."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that is not UTF-8 takes any text
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    warnings.showwarning = _show_warning
    try:
        call(*parse(command, arguments))
    except InputError as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("nvib: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error)):
            stop(f"not enough memory ({in_one_line(error)}). Give smaller sizes, or fewer texts at a time.")
        if (reason := files.disk_trouble(error)) is None:
            raise
        where = getattr(error, "filename", None) or "the disk"
        stop(f"{where}: {reason}. Change that, and run the same command again.")


def _show_warning(message: Warning | str, category: type[Warning], *where: object, **options: object) -> None:
    """Print a warning of ours in one line, and any other with its place."""
    if issubclass(category, files.InputWarning):
        print(f"nvib: warning: {message}", file=sys.stderr)
    else:
        SHOW_WARNING(message, category, *where, **options)  # pyright: ignore[reportArgumentType]


# The parser of a command


def make_parser(name: str, command: Command, *, required: bool = True) -> OneLineParser:
    """Make the parser of a command, or of a group, which lists its commands; `required` arguments must be given."""
    parser = OneLineParser(prog=name, description=summary_of(command))
    if isinstance(command, Group):
        subcommands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
        for inner, what in command.commands.items():
            subcommands.add_parser(inner, help=summary_of(what))
    else:
        _add_arguments(parser, command, required)
    return parser


def summary_of(command: Command) -> str:
    """One line about a command: for a function, the first line of its docstring."""
    if isinstance(command, Group):
        return command.summary
    return parse_docstring(inspect.getdoc(command) or "").short_description or ""


def _add_arguments(parser: argparse.ArgumentParser, function: Callable[..., None], required: bool) -> None:
    """Add the parameters of a function, each with the help of its docstring, or of its type if that is Annotated.

    Positional parameters are positional arguments, keyword-only ones are options: a bool that is False is a flag, a
    sequence takes several values. The fields of a dataclass are options of their own. If the parameter is called
    `config`, a YAML file can hold them, too.
    """
    explained, kinds = _explanations(function), get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = kinds[name], parameter.default
        if get_origin(parameter.annotation) is Annotated:
            explained[name] = get_args(parameter.annotation)[1]
        if is_dataclass(kind):
            if name == "config":
                parser.add_argument("--config", action="append", default=[], metavar="FILE", help=explained[name])
                parser.add_argument(PRINT_CONFIG, action="store_true", help="print all settings as YAML, and exit")
            _add_settings(parser, kind, parser)  # pyright: ignore[reportArgumentType]
            continue
        options: dict[str, Any] = {"help": explained[name]}
        if kind is bool and default is False:
            options |= {"action": "store_true"}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            options |= {"nargs": "*", "default": []}
        elif get_origin(kind) is Sequence:
            options |= {"type": partial(_read, get_args(kind)[0]), "nargs": "+"}
        elif get_origin(kind) is Literal:
            options |= {"choices": list(get_args(kind))}
        else:
            options |= {"type": partial(_read, kind)}
        if parameter.kind is parameter.KEYWORD_ONLY:
            options |= {"required": required} if default is parameter.empty else {"default": default}
            name = f"--{name.replace('_', '-')}"
        elif not required:
            options |= {"nargs": "*" if "nargs" in options else "?"}
        parser.add_argument(name, **options)


def _add_settings(
    parser: argparse.ArgumentParser, kind: Any, group: argparse._ActionsContainer, path: str = "", hidden: bool = False
) -> None:
    """Add an option for each field of a dataclass, and of dataclasses inside it; help hides the parts of schedules."""
    explained = _explanations(kind)
    for field in fields(kind):
        name, text = f"{path}{field.name}", explained[field.name]
        inner = next((choice for choice in (field.type, *get_args(field.type)) if is_dataclass(choice)), None)
        nested = inner is field.type
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        plain = None if default is MISSING else files.as_builtins(default)
        if plain not in (None, False, []):
            shown = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1000).splitlines()[0]
            text = f"{text} (default: {shown})"
        group.add_argument(
            f"--{name}",
            dest=name,
            action=_Setting,
            type=partial(_read, field.type),
            default=default,
            metavar=field.name.upper(),
            help=argparse.SUPPRESS if hidden or nested else text,
        )
        if inner is not None:
            inside = parser.add_argument_group(explained[field.name].rstrip(".")) if nested else group
            _add_settings(parser, inner, inside, f"{name}.", hidden or not nested)


class _Setting(argparse.Action):
    """Collects the settings in the order of the line, as paths and values: what is not given is not there."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        vars(namespace).setdefault("settings", []).append((tuple(self.dest.split(".")), values))


def _explanations(kind: Any) -> dict[str, str]:
    """What the docstring says of each parameter, as argparse takes it."""
    parsed = parse_docstring(inspect.getdoc(kind) or "").params
    return {entry.arg_name: " ".join((entry.description or "").split()).replace("%", "%%") for entry in parsed}


def _read(kind: Any, text: str) -> Any:
    """Turn the text of an option into a value of YAML, which is text where the type is text."""
    if kind is str or (kind == str | None and text not in ("null", "~")):
        return text
    try:
        return files.load_yaml(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} {error}") from error


# From the arguments to the call


def parse(command: Command, arguments: list[str]) -> tuple[Callable[..., None], argparse.Namespace]:
    """Find the command that the arguments of `nvib` name, and parse the rest. A mistake is one line and exit code 2."""
    for argument in arguments:
        if "\0" in argument or argument != argument.encode(errors="ignore").decode():  # names that no file can have
            raise InputError(f"the argument {argument[:40]!r} is not UTF-8 text. Correct it.")
    for old in RENAMED_OPTIONS.keys() & arguments:
        new = RENAMED_OPTIONS[old]
        print(f"nvib: {old} is deprecated and will be removed in version {REMOVAL}. Use {new}.", file=sys.stderr)
    arguments = [word for given in arguments for word in RENAMED_OPTIONS.get(given, "").split() or [given]]
    name = "nvib"
    while isinstance(command, Group) and arguments and arguments[0] in command.commands:
        name, command, arguments = f"{name} {arguments[0]}", command.commands[arguments[0]], arguments[1:]
    parser = make_parser(name, command, required=PRINT_CONFIG not in arguments)
    # Texts may follow options; with commands still to choose from, argparse does not offer that.
    read = parser.parse_known_args if isinstance(command, Group) else parser.parse_known_intermixed_args
    given, unknown = read(arguments)
    if unknown:
        option = unknown[0].partition("=")[0]
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        known = [text for action in shown for text in action.option_strings]
        stop(f"unknown argument {option!r}{files.suggestion(option, known)}")
    assert not isinstance(command, Group)
    return command, given


def call(command: Callable[..., None], given: argparse.Namespace) -> None:
    kinds, signature = get_type_hints(command), inspect.signature(command)
    values: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        kind, value = kinds[name], vars(given).get(name, parameter.default)
        if is_dataclass(kind):
            value = _settings(kind, given, given.config if name == "config" else [])
            if getattr(given, "print_config", False):
                print(yaml.safe_dump(files.as_builtins(value), sort_keys=False), end="")
                raise SystemExit(0)
        elif value is None and parameter.default is parameter.empty:
            pass  # a positional argument that --print_config does without
        elif parameter.kind is not parameter.VAR_POSITIONAL and value is not parameter.default:
            value = convert(kind, value, (f"--{name}",))
        values[name] = value
    bound = inspect.BoundArguments(signature, values)  # pyright: ignore[reportArgumentType]
    command(*bound.args, **bound.kwargs)


def _settings(kind: Any, given: argparse.Namespace, named: Sequence[str]) -> Any:
    """Build a dataclass from files and from the options that are its own."""
    own = {field.name for field in fields(kind)}
    from_files = merged(kind, *(files.read_mapping(files.find_config(file)) for file in named))
    values = dict(from_files)
    for path, value in getattr(given, "settings", ()):
        if path[0] in own:
            inside = values
            for name in path[:-1]:
                inside[name] = dict(inside[name]) if isinstance(inside.get(name), dict) else {}
                inside = inside[name]
            inside[path[-1]] = value
    try:
        return convert(kind, values)
    except InputError:
        if named:  # name the last one, if the mistake is in a file
            settings_of(kind, from_files, where=named[-1])
        raise
