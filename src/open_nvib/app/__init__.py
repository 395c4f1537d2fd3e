"""The web page: see what the latent kept, change it, sample, interpolate, compare."""

from open_nvib.app.page import make_app, serve
from open_nvib.app.runs import open_runs

__all__ = ["make_app", "open_runs", "serve"]
