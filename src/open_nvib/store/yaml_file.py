"""Read YAML files strictly: every mistake is one line that names the file and the place in it."""

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser, get_loader, set_loader

from open_nvib.store.files import InputError

T = TypeVar("T")

MAX_VALUES = 100_000
"""In a file, aliases expanded: a few lines of aliases can expand to billions of values."""
MAX_VALUE_LENGTH, MAX_MESSAGE_LENGTH = 80, 400
"""Characters that a message shows of a value, and of an error of jsonargparse."""
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


class _Loader(yaml.SafeLoader):
    """Constructs values; one that cannot be constructed is an InputError with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # of `!!int abc`, or of 2024-13-45
            kind = node.tag.rpartition(":")[2]
            raise InputError(f"{_line(node)}: {shown(node.value)} cannot be read as {kind}.") from error
        return _text(value, node) if isinstance(value, str) else value


def _text(value: str, node: yaml.Node) -> str:
    """Join surrogate pairs, as JSON escapes an emoji, so that UTF-8 can write the text."""
    try:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{_line(node)}: {shown(value)} has half of a surrogate pair. Write the whole character."
        ) from error
    if found := CONTROL_CHARACTER.search(value):
        raise InputError(f"{_line(node)}: {shown(value)} has the control character {found[0]!r}. Remove it.")
    return value


def _check(node: yaml.Node, above: frozenset[yaml.Node], sizes: dict[yaml.Node, int]) -> int:
    """Count the values of a node, aliases expanded; a duplicate key, an endless or a huge alias is an InputError."""
    if node in above:
        raise InputError(f"{_line(node)}: this alias contains itself. Write it out.")
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in sizes:
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            seen: set[tuple[str, str]] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in seen:  # of which plain YAML silently keeps the last value
                    raise InputError(f"{_line(key)}: duplicate key {key.value!r}. Rename one, or remove it.")
                seen.add((key.tag, key.value))
            parts = [part for pair in node.value for part in pair]
        sizes[node] = 1 + sum(_check(part, above | {node}, sizes) for part in parts)
    if sizes[node] > MAX_VALUES:
        raise InputError(f"{_line(node)}: expands to more than {MAX_VALUES:,} values. Use fewer aliases.")
    return sizes[node]


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def load_yaml(text: str) -> Any:
    """Read YAML; a mistake is an InputError, and its place the line."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, frozenset(), {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML ({' '.join(str(error).split())}).") from error
    except RecursionError:
        raise InputError("is nested too deeply, expected settings.") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        value = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file. Give a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}). Give a YAML file.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return as_mapping(value, where=str(path))


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
    """Format a value for a message; of a long one, the beginning."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def check_keys(values: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    unknown = [key for key in values if key not in known]
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}; available: {', '.join(known)}.")


def settings_of(kind: type[T], values: Any, *, where: str) -> T:
    """Build a dataclass from values as the command line reads them; a setting without a value has its default."""
    parser, values = _parser(kind), as_mapping(values, where=where)
    try:
        built: Any = parser.instantiate(parser.parse_object({"it": dict(values)}))
        return built.it
    except (ArgumentError, ValueError, TypeError) as error:
        raise InputError(f"{where}: {reworded(str(error))}") from error


STRICT_YAML = "strict_yaml"
"""The mode of a jsonargparse parser that reads YAML as `load_yaml` does."""


def _load_strictly(text: str) -> Any:
    """Read YAML for jsonargparse, which has its own rules for numbers, after `load_yaml` has found no mistake."""
    load_yaml(text)
    return get_loader("yaml")(text)


set_loader(STRICT_YAML, _load_strictly, exceptions=(InputError, yaml.YAMLError))


@cache
def _parser(kind: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "it")
    return parser


_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
    "Schedule": "a schedule {start: …, end: …}",
    "object": "settings",
    **dict.fromkeys(("array", "list", "Sequence"), "a list"),
    "null": "null",
}
"""What messages call the types of Python and of msgspec."""


def reworded(message: str) -> str:
    """Put a message of jsonargparse or msgspec in one sentence, without the name that `_parser` gives to settings."""
    message = " ".join(message.split())
    message = message.replace("Problems parsing config", "--config")
    message = re.sub(
        r"Does not validate against .*? Subtypes: \[(.*?)\] Errors: .* Given value: (.*)", _expected, message
    )
    message = re.sub(r"Expected an? (<class '[\w.]+'>)(?:\. Got value: (.*))?", _expected, message)
    message = re.sub(r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)", r"got '\2', expected one of \1.", message)
    message = re.sub(r"Unable to load config '(.*?)' - .*", r"got '\1', expected a YAML file with settings.", message)
    message = re.sub(r"(.*) - at `\$\.(.*)`", r"\2: \1", message)  # msgspec's
    message = re.sub(r"Expected `(.*)`, got `(.*)`", _expected_by_msgspec, message)
    message = re.sub(r"Group 'it' does not accept option '(.*)'", r"unknown setting '\1'", message)
    message = re.sub(r"Parser key \"(?:it\.)?([^\"]*)\"", r"\1", message)
    return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}…"


def _expected(found: re.Match[str]) -> str:
    kinds = [name.rpartition(".")[2] for name in re.findall(r"<class '([\w.]+)'>", found[1])]
    names = " or ".join(dict.fromkeys(str(_KINDS.get(name, name)) for name in kinds)) or found[1]
    return f"got {shown(found[2])}, expected {names}." if found[2] is not None else f"expected {names}."


def _expected_by_msgspec(found: re.Match[str]) -> str:
    names = " or ".join(_KINDS.get(name, name) for name in found[1].split(" | "))
    return f"got {_KINDS.get(found[2], found[2])}, expected {names}."
