"""Training: a configuration and prepared data to a run directory."""

from open_nvib.store.settings import Schedule, TrainConfig
from open_nvib.text.training.train import train

__all__ = ["Schedule", "TrainConfig", "train"]
