"""A trained model in use: encode, decode, reconstruct, sample, interpolate, inspect."""

from open_nvib.text.using.run import Run, TextReport, TokenReport, load_run

__all__ = ["Run", "TextReport", "TokenReport", "load_run"]
