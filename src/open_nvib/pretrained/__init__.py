"""NVIB in pretrained models of transformers: exact at the start, then a dial.

Importing this package registers the conversion with transformers, so `from_pretrained` opens converted models. Without
transformers (the extra `text`) only the layer, `IdentityNVIB`, can be imported.
"""

from importlib.util import find_spec

from open_nvib.pretrained.identity import EmpiricalPrior, IdentityNVIB

if find_spec("transformers") is not None:
    from open_nvib.pretrained.convert import NVIBConfig, convert, open_model, set_tau
    from open_nvib.pretrained.measures import NVIBTrainer, kept, layer_kl, nvib_kl

__all__ = [
    "EmpiricalPrior",
    "IdentityNVIB",
    "NVIBConfig",
    "NVIBTrainer",
    "convert",
    "kept",
    "layer_kl",
    "nvib_kl",
    "open_model",
    "set_tau",
]
