"""Settings from YAML files and options: one strict reader, and one converter to the dataclasses of settings."""

import difflib
import os
import re
import reprlib
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from open_nvib.store.files import InputError, in_one_line

T = TypeVar("T")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
    list: "a list",
    Sequence: "a list",
    dict: "a mapping",
}
"""What messages call a type."""


MOST_VALUES = 100_000
"""Values of a YAML file, with its aliases written out: a few lines of aliases of aliases can be billions."""


class _Loader(yaml.SafeLoader):
    """YAML as PyYAML reads it, but 1e-3 is a number, a date is text and a duplicate key is an error."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > MOST_VALUES:
            raise InputError(f"has more than {MOST_VALUES:,} values, each alias written out. Write fewer.")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in seen:  # of which plain YAML silently keeps the last value
                line = key.start_mark.line + 1
                raise InputError(f"line {line}: duplicate key {key.value!r}. Rename one, or remove it.")
            seen.add((key.tag, str(key.value)))
        return node


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values inside a node, those of an alias each time; `known` has the nodes that were counted."""
    if id(node) not in known:
        known[id(node)] = 1  # also if the node is inside itself
        entries = node.value if isinstance(node, yaml.CollectionNode) else ()
        inside = (each for entry in entries for each in (entry if isinstance(entry, tuple) else (entry,)))
        known[id(node)] += sum(_count_values(each, known) for each in inside)
    return known[id(node)]


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_yaml(text: str) -> Any:
    """Read YAML; a mistake is an InputError, and its place the line."""
    try:
        return yaml.load(text, _Loader)
    except InputError:
        raise
    except RecursionError:
        raise InputError("is nested too deeply, expected settings.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last three: of `!!int abc`
        raise InputError(f"is not YAML ({in_one_line(error)}).") from error


def find_config(name: str, *folders: Path, where: str = "--config") -> Path:
    """Find the file of a configuration: as given, in one of the folders, or among those that come with the package."""
    package = Path(__file__).parents[1]
    packaged = (package, package.parents[1]) if name.startswith("configs/") and ".." not in name else ()
    for folder in (Path(), *folders, *packaged):
        if os.path.isfile(path := folder / Path(name).expanduser()):
            return path
    looked_in = ", ".join(["the working directory", *map(str, folders)])
    raise InputError(f"{where}: no configuration {name!r} in {looked_in}. Give the YAML file of one.")


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file. Give a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({in_one_line(error)}). Give a YAML file.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return as_mapping(content, where=str(path))


def merged(kind: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings of the dataclass `kind`: later ones win, one by one within a group such as `loss`."""
    groups = {field.name for field in fields(kind) if is_dataclass(field.type)}
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            together = name in groups and isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = {**result[name], **value} if together else value
    return result


def as_mapping(value: Any, *, where: str) -> dict[str, Any]:
    """Check that a value is a mapping from names; None is an empty one."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {shown(value)}, expected a mapping from names to values.")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{where}: the key {shown(key)} is not a name. Put it in quotes.")
    return value


def shown(value: Any) -> str:
    """Format a value for a message, as YAML has it; of a long one, the beginning and the end."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else _short.repr(value)


def suggestion(name: Any, known: Collection[str]) -> str:
    """End a message about an unknown name: the known one that is most like it, or all."""
    if close := difflib.get_close_matches(str(name), known, 1):
        return f". Did you mean {close[0]!r}?"
    return f"; available: {', '.join(known)}."


# Conversion


class SettingError(InputError):
    """A value that a setting does not take. `path` leads to the setting: ("model", "heads")."""

    def __init__(self, path: tuple[str, ...], reason: str) -> None:
        super().__init__(f"{'.'.join(path)}: {reason}" if path else reason)
        self.path = path


def settings_of(kind: type[T], values: Any, *, where: str) -> T:
    """Build a dataclass from values as YAML gives them; a setting without a value has its default."""
    try:
        return convert(kind, as_mapping(values, where=where))
    except SettingError as error:
        raise InputError(f"{where}: {error}") from error


def convert(kind: Any, value: Any, path: tuple[str, ...] = ()) -> Any:
    """Convert a value of YAML to a number, text, Literal, list, dict or dataclass, or to one of a union of these."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for choice in choices:
        origin, inner = get_origin(choice) or choice, get_args(choice)
        if is_dataclass(choice) and isinstance(value, dict):
            return _build(choice, value, path)
        if origin is Literal and isinstance(value, str) and value in inner:
            return value
        if origin in (list, Sequence) and isinstance(value, list):
            return [convert(inner[0], each, (*path, str(index))) for index, each in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            return {convert(inner[0], key, path): convert(inner[1], value[key], (*path, str(key))) for key in value}
        if choice is float and type(value) is int and abs(value) < 2**1000:
            return float(value)
        if choice is Any or type(value) is choice:
            return value
    raise SettingError(path, f"got {shown(value)}, expected {' or '.join(map(_describe, choices))}.")


def _build(kind: Any, values: dict[Any, Any], path: tuple[str, ...]) -> Any:
    known = {field.name: field for field in fields(kind)}
    for key in values:
        if key not in known:
            raise SettingError(path, f"unknown key {key!r}{suggestion(key, known)}")
    for name, field in known.items():
        if name not in values and is_required(field):
            raise SettingError(path, f"has no {name}, expected {_describe(kind)}.")
    converted = {name: convert(known[name].type, value, (*path, name)) for name, value in values.items()}
    try:
        return kind(**converted)
    except ValueError as error:  # of its __post_init__
        raise SettingError(path, str(error)) from error


def is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _describe(kind: Any) -> str:
    if is_dataclass(kind):
        required = [f"{field.name}: …" for field in fields(kind) if is_required(field)]
        return f"{{{', '.join(required)}}}" if required else "settings"
    if get_origin(kind) is Literal:
        names = [repr(name) for name in get_args(kind)]
        return f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return NAMES.get(get_origin(kind) or kind, str(kind))
