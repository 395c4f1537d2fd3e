"""A trained model in use: encode, decode, reconstruct, sample, interpolate, inspect."""

from open_nvib.text.using.inspection import TextReport, TokenReport
from open_nvib.text.using.run import Run, load_run

__all__ = ["Run", "TextReport", "TokenReport", "load_run"]
