"""From raw text to tokenised sentences, partitioned by length and split for training. `docs/data.md` is the guide."""

from typing import Any

from open_nvib._deprecation import deprecated_name
from open_nvib.store.task_settings import PrepareConfig
from open_nvib.text.data.prepare import prepare
from open_nvib.text.data.prepared import Prepared, load_prepared

__all__ = ["PrepareConfig", "Prepared", "load_prepared", "prepare"]


def __getattr__(name: str) -> Any:
    return deprecated_name(__name__, name, {"draw_lengths": "open_nvib.report.draw_lengths"}, removal="0.3")
