"""Trees of settings in YAML's own types: defaults filled in, and where two differ."""

from typing import Any


def with_defaults(known: Any, defaults: Any) -> Any:
    """What is known, and the default of every setting that it does not have: one that is newer than it."""
    if not isinstance(known, dict) or not isinstance(defaults, dict):
        return known
    return {**defaults, **{name: with_defaults(value, defaults.get(name)) for name, value in known.items()}}


def differences(a: Any, b: Any, path: str = "") -> set[str]:
    """Where they differ, as paths such as model.kappa."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = a.keys() | b.keys()
        return {d for name in names for d in differences(a.get(name), b.get(name), f"{path}.{name}".strip("."))}
    return set() if a == b else {path}
