"""Warn of old public names, keywords and values, which work until a stated version."""

import warnings

REMOVAL = "0.3"
"""Version that no longer has the names of before 0.2."""


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that `old` is now `new`; `stacklevel` is that of `warnings.warn` in the caller."""
    text = f"{old} is deprecated and will be removed in version {REMOVAL}. Use {new}."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
