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
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import yaml
from docstring_parser import parse as parse_docstring

from open_nvib._deprecation import REMOVAL
from open_nvib.store.files import InputError, OutsideTraining, as_builtins, disk_trouble, in_one_line
from open_nvib.store.yaml_file import (
    SettingError,
    convert,
    load_yaml,
    merged,
    packaged_config,
    read_mapping,
    suggestion,
)

MAX_ARGUMENT_LENGTH = 10_000
"""In characters: the YAML reader ends the process at tens of thousands of brackets."""
RENAMED_OPTIONS = {"--needed": "--vectors fewest", "--decided": "--vectors auto"}
"""Old options that still work, and what replaces each."""
SHOW_WARNING = warnings.showwarning
"""Python's own way, with the place in the code."""
COMMAND, PARSER, PRINT_CONFIG = "command", "parser", "--print_config"


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

    def refuse(self, rest: Sequence[str]) -> NoReturn:
        """Say which argument is unknown, and which option was meant."""
        name = rest[0].partition("=")[0]
        known = [text for action in self._actions for text in action.option_strings if action.help != argparse.SUPPRESS]
        stop(f"unknown argument {name!r}{suggestion(name, known)}")


def stop(message: str) -> NoReturn:
    """Print one line on standard error, and exit with 2; under torchrun, the first process alone prints."""
    if os.environ.get("RANK", "0") == "0":
        line = " ".join(message.split()).encode(errors="backslashreplace").decode()
        print(f"nvib: {line if len(line) <= 1000 else line[:1000] + '…'}", file=sys.stderr)
    raise SystemExit(2)


def run(command: "Command", arguments: list[str]) -> None:
    """Parse the arguments of `nvib` and run the command; the exit code is 2 for a mistake in what was given."""
    _open_streams()
    warnings.showwarning = _show_warning
    try:
        call(parse(command, arguments))
    except InputError as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("nvib: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        stop(f"not enough memory ({in_one_line(error)}). Give smaller sizes, or fewer texts at a time.")
    except Exception as error:
        reason = disk_trouble(error)
        if reason is None:
            raise
        fix = "Free some, and run" if reason.startswith("no space") else "Change that, and run"
        stop(f"{getattr(error, 'filename', None) or 'the disk'}: {reason}. {fix} the same command again.")


def _show_warning(message: Warning | str, category: type[Warning], *where: object, **options: object) -> None:
    """Print a warning of ours in one line, and any other with its place."""
    if issubclass(category, OutsideTraining):
        print(f"nvib: warning: {message}", file=sys.stderr)
    else:
        SHOW_WARNING(message, category, *where, **options)  # pyright: ignore[reportArgumentType]


def _open_streams() -> None:
    """Open the standard streams that the caller closed, and let those of another encoding than UTF-8 take any text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def make_parser(name: str, command: Command, *, required: bool = True) -> OneLineParser:
    """Make the parser of a command, or of a group with all its commands.

    Args:
        name: of the program.
        command: the command.
        required: whether arguments without a default must be given.
    """
    parser = OneLineParser(prog=name, description=summary_of(command))
    _fill(parser, command, required)
    return parser


def summary_of(command: Command) -> str:
    """One line about a command: for a function, the first line of its docstring."""
    if isinstance(command, Group):
        return command.summary
    return parse_docstring(inspect.getdoc(command) or "").short_description or ""


def _fill(parser: argparse.ArgumentParser, command: Command, required: bool) -> None:
    if not isinstance(command, Group):
        _add_arguments(parser, command, required)
        parser.set_defaults(**{COMMAND: command, PARSER: parser})
        return
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name, inner in command.commands.items():
        _fill(subcommands.add_parser(name, description=summary_of(inner), help=summary_of(inner)), inner, required)


def _add_arguments(parser: argparse.ArgumentParser, function: Callable[..., None], required: bool) -> None:
    """Add the parameters of a function, each with the help that the docstring has for it.

    Positional parameters are positional arguments, keyword-only ones are options: a bool that is False is a flag, a
    sequence takes several values. The fields of a dataclass are options of their own. If the parameter is called
    `config`, a YAML file can hold them, too.
    """
    explained = _explanations(function)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = parameter.annotation, parameter.default
        options: dict[str, Any] = {"help": _escaped(explained[name])}
        if is_dataclass(kind):
            if name == "config":
                parser.add_argument("--config", action="append", default=[], metavar="FILE", **options)
                parser.add_argument(PRINT_CONFIG, action="store_true", help="print all settings as YAML, and exit")
            _add_settings(parser, kind, parser)  # pyright: ignore[reportArgumentType]
            continue
        if kind is bool and default is False:
            options |= {"action": "store_true"}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            options |= {"nargs": "*"}
        elif get_origin(kind) is Sequence:
            options |= {"type": _reader(get_args(kind)[0]), "nargs": "+"}
        elif get_origin(kind) is Literal:
            options |= {"choices": list(get_args(kind))}
        else:
            options |= {"type": _reader(kind)}
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
        name = f"{path}{field.name}"
        inner = next((choice for choice in (field.type, *get_args(field.type)) if is_dataclass(choice)), None)
        nested = inner is field.type
        text = argparse.SUPPRESS if hidden or nested else _escaped(_help(field, explained[field.name]))
        options: dict[str, Any] = {"dest": name, "action": _Setting, "metavar": field.name.upper(), "help": text}
        if field.kw_only and field.type is bool:
            options |= {"nargs": 0, "const": True}
        group.add_argument(f"--{name}", default=default_of(field), type=_reader(field.type), **options)
        if inner is not None:
            title = explained[field.name].rstrip(".")
            inside = parser.add_argument_group(title) if nested else group
            _add_settings(parser, inner, inside, f"{name}.", hidden or not nested)


class _Setting(argparse.Action):
    """Collects the settings in the order of the line, as paths and values: what is not given is not there."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = vars(namespace).setdefault("settings", [])
        given.append((tuple(self.dest.split(".")), self.const if self.nargs == 0 else values))


def default_of(field: Field[Any]) -> Any:
    """Return the default of a setting; None for one that is required."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _explanations(kind: Any) -> dict[str, str]:
    parsed = parse_docstring(inspect.getdoc(kind) or "").params
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in parsed}


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _help(field: Field[Any], explained: str) -> str:
    default = as_builtins(default_of(field))
    if default in (None, False, []):
        return explained
    shown = yaml.safe_dump(default, default_flow_style=True, sort_keys=False, width=1000).splitlines()[0]
    return f"{explained} (default: {shown})"


def _reader(kind: Any) -> Callable[[str], Any]:
    """Return what turns the text of an option into a value of YAML, which is text where the type is text."""

    def read(text: str) -> Any:
        optional_text = kind == str | None and text not in ("null", "~")
        if kind is str or optional_text:
            return text
        try:
            return load_yaml(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} {error}") from error

    return read


def parse(command: Command, arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments of `nvib`. What is wrong with them is one line and exit code 2."""
    for argument in arguments:
        if len(argument) > MAX_ARGUMENT_LENGTH:
            raise InputError(
                f"an argument that begins with {argument[:20]!r} has {len(argument):,} characters, expected at most "
                f"{MAX_ARGUMENT_LENGTH:,}. Long texts can be given with --file."
            )
        if "\0" in argument or argument != argument.encode(errors="ignore").decode():  # names that no file can have
            raise InputError(f"the argument {argument[:40]!r} is not UTF-8 text. Correct it.")
    name, arguments = "nvib", _renamed(arguments)
    while isinstance(command, Group) and arguments and arguments[0] in command.commands:  # its parser is enough
        name, command, arguments = f"{name} {arguments[0]}", command.commands[arguments[0]], arguments[1:]
    parser = make_parser(name, command, required=PRINT_CONFIG not in arguments)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        getattr(given, PARSER).refuse(unknown)
    return given


def _renamed(arguments: list[str]) -> list[str]:
    """Replace old options by their new words, and say so in one line on standard error."""
    for old in RENAMED_OPTIONS.keys() & arguments:
        new = RENAMED_OPTIONS[old]
        print(f"nvib: {old} is deprecated and will be removed in version {REMOVAL}. Use {new}.", file=sys.stderr)
    return [
        word
        for given in arguments
        for word in (RENAMED_OPTIONS[given].split() if given in RENAMED_OPTIONS else [given])
    ]


def call(given: argparse.Namespace) -> None:
    """Call the function that the parsed arguments name."""
    command = getattr(given, COMMAND)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = parameter.annotation
        if is_dataclass(kind):
            value = _settings(kind, given, given.config if name == "config" else [])
            if getattr(given, "print_config", False):
                print(yaml.safe_dump(as_builtins(value), sort_keys=False), end="")
                raise SystemExit(0)
        else:
            value = _argument(kind, name, getattr(given, name))
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
    command(*positional, **named)


def _argument(kind: Any, name: str, value: Any) -> Any:
    if get_origin(kind) is Sequence:
        return [convert(get_args(kind)[0], each, (f"--{name}",)) for each in value]
    return value if kind in (str, bool) or value is None else convert(kind, value, (f"--{name}",))


def _settings(kind: Any, given: argparse.Namespace, files: Sequence[str]) -> Any:
    """Build a dataclass from files and from the options that are its own."""
    own = {field.name for field in fields(kind)}
    options = [(path, value) for path, value in getattr(given, "settings", ()) if path[0] in own]
    values = merged(kind, *(read_mapping(find_config(file)) for file in files))
    for path, value in options:
        inside = values
        for name in path[:-1]:
            if not isinstance(inside.get(name), dict):
                inside[name] = {}
            inside = inside[name]
        inside[path[-1]] = value
    try:
        return convert(kind, values)
    except SettingError as error:
        below = [path for path, _ in options if path[: len(error.path)] == error.path]
        from_options = any(error.path[: len(path)] == path for path, _ in options)
        if not files or from_options:
            raise
        if below:
            raise InputError(f"{error} (in {files[-1]} or on the command line)") from error
        raise InputError(f"{files[-1]}: {error}") from error


def find_config(name: str) -> Path:
    """Find the file of --config: `configs/small/nvae.yaml` comes with the package, if there is no such file."""
    path = Path(name).expanduser()
    packaged = None if os.path.exists(path) else packaged_config(name)
    if packaged is None and not os.path.isfile(path):
        raise InputError(f"--config: {name!r} is not a file. Give a YAML file.")
    return packaged or path
