"""Run a measurement."""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import tools.measure_pretrained as package
from open_nvib.store.files import write_json
from tools.measure_pretrained.conversion import cost, identity, translations
from tools.measure_pretrained.material import Material
from tools.measure_pretrained.noise import curve, noise
from tools.measure_pretrained.retrieval import retrieval
from tools.measure_pretrained.sentiment import sentiment
from tools.measure_pretrained.tables import tables


def main() -> None:
    sentences = {function.__name__: function for function in (identity, translations, cost, curve, noise)}
    measurements: dict[str, Any] = sentences | {"sentiment": sentiment, "retrieval": retrieval}
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*measurements, "tables"])
    parser.add_argument("--count", type=int, default=100, help="sentences of identity, translations")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1], help="shares of labels for sentiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds of sentiment")
    for name in ("minilm", "opus", "t5", "smollm2", "pairs", "reviews", "snli"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    if arguments.what == "tables":
        print("\n".join(tables(Path(arguments.output)).values()))
        return
    needed = {
        "identity": ("minilm", "opus", "t5", "smollm2", "pairs"),
        "sentiment": ("minilm", "reviews"),
        "retrieval": ("minilm", "snli"),
    }
    for name in needed.get(arguments.what, ("minilm", "opus", "pairs")):
        if getattr(arguments, name) is None:
            parser.error(f"{arguments.what} needs --{name}")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    Path(arguments.output).mkdir(parents=True, exist_ok=True)
    result = measurements[arguments.what](Material(arguments) if arguments.what in sentences else arguments)
    write_json(Path(arguments.output) / f"{arguments.what}.json", result, indent=1)


if __name__ == "__main__":
    main()
