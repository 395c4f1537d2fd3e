"""From raw text to tokenised sentences, partitioned by length and split for training. `docs/data.md` is the guide."""

from open_nvib.store.settings import PrepareConfig
from open_nvib.text.data.prepare import prepare
from open_nvib.text.data.prepared import Prepared, draw_lengths, load_prepared

__all__ = ["PrepareConfig", "Prepared", "draw_lengths", "load_prepared", "prepare"]
