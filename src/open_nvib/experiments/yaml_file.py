"""YAML files that a person wrote, read strictly: every mistake is one line that names the file and the place in it."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from open_nvib.store.files import InputError

T = TypeVar("T")


MOST_VALUES = 100_000
"""Values of a file, with each alias counted as what it stands for: a few lines of aliases can stand for billions."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
LONGEST_SHOWN, LONGEST_SAID = 80, 400


class _Loader(yaml.SafeLoader):
    """YAML whose mistakes have a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # what `!!int abc` and the 45th of May come to
            kind = node.tag.rpartition(":")[2]
            raise InputError(f"{_line(node)}: {shown(node.value)} cannot be read as {kind}.") from error
        return _text(value, node) if isinstance(value, str) else value


def _text(value: str, node: yaml.Node) -> str:
    """As UTF-8 can write it: the two halves in which JSON escapes an emoji are one character."""
    try:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise InputError(f"{_line(node)}: {shown(value)} has half of a character. Write the whole of it.") from error
    if found := _CONTROL.search(value):
        raise InputError(f"{_line(node)}: {shown(value)} has the control character {found[0]!r}. Remove it.")
    return value


def _check(node: yaml.Node, above: frozenset[yaml.Node], sizes: dict[yaml.Node, int]) -> int:
    """How many values a node stands for. No key may stand twice, of which plain YAML would silently keep the last."""
    if node in above:
        raise InputError(f"{_line(node)}: what the alias stands for has the alias in it. Write it out.")
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in sizes:
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            _check_keys_once(node)
            parts = [part for pair in node.value for part in pair]
        sizes[node] = 1 + sum(_check(part, above | {node}, sizes) for part in parts)
    if sizes[node] > MOST_VALUES:
        raise InputError(f"{_line(node)}: stands for more than {MOST_VALUES:,} values. Use fewer aliases.")
    return sizes[node]


def _check_keys_once(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise InputError(f"{_line(key)}: {key.value!r} stands twice. Rename one, or remove it.")
            seen.add((key.tag, key.value))


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, frozenset(), {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file. Give a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}). Give a YAML file.") from error
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: is not YAML ({' '.join(str(error).split())}).") from error
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply. Give the YAML file of an experiment.") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return as_mapping(value, where=str(path))


def as_mapping(value: Any, *, where: str) -> dict[str, Any]:
    """`value` if it is a mapping from names; nothing at all is an empty one."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {shown(value)}, wanted a mapping from names to values.")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{where}: the key {shown(key)} is not a name. Put it in quotes.")
    return value


def shown(value: Any) -> str:
    """A value in a message: the beginning of it, where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


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
    message = re.sub(r"Parser key \"it\.([^\"]*)\"", r"\1", message)
    return message if len(message) <= LONGEST_SAID else f"{message[:LONGEST_SAID]}…"
