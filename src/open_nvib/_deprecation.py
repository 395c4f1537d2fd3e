"""Old public names: they work until a stated version, with a warning."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def deprecated_name(module: str, name: str, renamed: Mapping[str, str], *, removal: str) -> Any:
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
    place, _, attribute = new.rpartition(".")
    return getattr(import_module(place), attribute)
