"""YAML files that a person wrote, read strictly: every mistake is one line that names the file and the place in it."""

import re
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from open_nvib.errors import InputError

T = TypeVar("T")


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice: of two rows with one name, plain YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                line = key_node.start_mark.line + 1
                raise InputError(f"line {line}: {key!r} stands twice. Rename one, or remove it.")
            seen.add(key if isinstance(key, Hashable) else id(key))
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file. Give a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}). Give a YAML file.") from error
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: is not YAML ({' '.join(str(error).split())}).") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return as_mapping(value, where=str(path))


def as_mapping(value: Any, *, where: str) -> dict[str, Any]:
    """`value` if it is a mapping from names; nothing at all is an empty one."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {value!r}, wanted a mapping from names to values.")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{where}: the key {key!r} is not a name. Put it in quotes.")
    return value


def check_keys(values: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    unknown = [key for key in values if key not in known]
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}, there is {', '.join(known)}.")


def settings_of(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """The dataclass that these values describe, as the command line would read them; the rest has its defaults."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "it")
    try:
        built: Any = parser.instantiate(parser.parse_object({"it": dict(values)}))
        return built.it
    except (ArgumentError, ValueError, TypeError) as error:
        raise InputError(f"{where}: {_in_words(str(error))}") from error


def _in_words(message: str) -> str:
    """What jsonargparse says, in one line and without our own name for the settings."""
    message = " ".join(message.split())
    message = re.sub(r"Group 'it' does not accept option '(.*)'", r"unknown setting '\1'", message)
    return re.sub(r"Parser key \"it\.([^\"]*)\"", r"\1", message)
