"""NVIB in pretrained models of transformers: exact at the start, then a dial.

Importing this package registers the conversion with transformers, so that `from_pretrained` opens converted models.
"""

from open_nvib.pretrained.convert import NVIBConfig, convert, kept, layer_kl, nvib_kl, set_tau
from open_nvib.pretrained.training import NVIBTrainer

__all__ = ["NVIBConfig", "NVIBTrainer", "convert", "kept", "layer_kl", "nvib_kl", "set_tau"]
