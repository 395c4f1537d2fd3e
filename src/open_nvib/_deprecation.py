"""Old public names and keywords: they work until a stated version, with a warning."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

REMOVAL = "0.3"
"""Version that no longer has the names of before 0.2."""


def deprecated_name(module: str, name: str, renamed: Mapping[str, str], *, removal: str = REMOVAL) -> Any:
    """Return what an old name of a module now stands for, with a DeprecationWarning. For a module's `__getattr__`:

    def __getattr__(name: str) -> Any:
        return deprecated_name(__name__, name, {"Old": "open_nvib.layer.New"}, removal="0.3")

    Any other name is an AttributeError. `removal` is the version that will no longer have the old names.
    """
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new = renamed[name]
    text = f"{module}.{name} is deprecated and will be removed in version {removal}. Use {new}."
    warnings.warn(text, DeprecationWarning, stacklevel=3)  # at the line that uses the name, behind `__getattr__`
    module, _, attribute = new.rpartition(".")
    return getattr(import_module(module), attribute)


def renamed_keywords(
    where: str, given: Mapping[str, Any], renamed: Mapping[str, str], *, use: str | None = None, removal: str = REMOVAL
) -> dict[str, Any]:
    """Return old keywords under their new names, with a DeprecationWarning; any other keyword is a TypeError."""
    for name in given:
        if name not in renamed:
            raise TypeError(f"{where} has no argument {name!r}.")
        text = f"{where}: {name}= is deprecated and will be removed in version {removal}."
        warnings.warn(f"{text} Use {use or renamed[name]}.", DeprecationWarning, stacklevel=4)
    return {renamed[name]: value for name, value in given.items()}


def renamed_method(old: str, new: str, *, removal: str = REMOVAL) -> Any:
    """Make a method that calls the one with the new name, with a DeprecationWarning."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        text = f"{old} is deprecated and will be removed in version {removal}. Use {new}."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **kwargs)

    return method


def renamed_value(argument: str, value: str, renamed: Mapping[str, str], *, removal: str = REMOVAL) -> str:
    """Return the new word for an old value of an argument, with a DeprecationWarning; any other value as it is."""
    if value in renamed:
        text = f"{argument}={value!r} is deprecated and will be removed in version {removal}. Use {renamed[value]!r}."
        warnings.warn(text, DeprecationWarning, stacklevel=4)
    return renamed.get(value, value)
