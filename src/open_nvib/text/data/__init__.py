"""From raw text to tokenised sentences, partitioned by length and split for training. `docs/data.md` is the guide."""

from importlib import import_module
from typing import Any

from open_nvib._deprecation import warn_renamed
from open_nvib.store.task_settings import PrepareConfig
from open_nvib.text.data.prepare import prepare
from open_nvib.text.data.prepared import Prepared, load_prepared

__all__ = ["PrepareConfig", "Prepared", "load_prepared", "prepare"]


def __getattr__(name: str) -> Any:
    if name != "draw_lengths":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.draw_lengths", "open_nvib.report.draw_lengths")
    return import_module("open_nvib.report").draw_lengths
