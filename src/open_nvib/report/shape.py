"""What a report expects of an evaluation's record: of which kind each value is that it reads."""

import math
from types import NoneType
from typing import Any

NUMBER, NUMBER_OR_NULL, TEXT = (int, float), (int, float, NoneType), (str,)
NAMES = {NUMBER: "a finite number", NUMBER_OR_NULL: "a finite number or null", TEXT: "text"}

RECONSTRUCTION = {
    "signature": TEXT,
    "by_length": [{"length": NUMBER, "sentences": NUMBER, "kept": NUMBER, "sd": NUMBER}],
    "examples": [{"text": TEXT, "reconstruction": TEXT}],
}
RECORD = {
    "config": {
        "model": {"bottleneck": TEXT},
        "loss": {},
        "optimiser": {"steps": NUMBER, "batch_size": NUMBER},
    },
    "recipe": {"source": {}, "config": {}},
    "versions": {},
    "reconstruction": {"*": RECONSTRUCTION},
    "generation": {"lengths": [NUMBER], "real_lengths": [NUMBER], "examples": [TEXT]},
    "latent": {},
    "interpolation": {"perplexity": [NUMBER_OR_NULL], "examples": [[TEXT]]},
}
EVALUATIONS = {"*": RECORD}
"""Evaluations by name. An entry that is missing or null was not measured; one that has no name here may be anything."""


def misfit(value: Any, shape: Any, path: str) -> str | None:
    """The first place where a value is not of its shape, in words; None if there is none."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return _wanted(path, value, "an object")
        there = [name for name, entry in value.items() if entry is not None and (name in shape or "*" in shape)]
        parts = [(value[name], shape.get(name, shape.get("*")), f"{path}/{name}") for name in there]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return _wanted(path, value, "a list")
        parts = [(entry, shape[0], f"{path}/{place}") for place, entry in enumerate(value)]
    else:
        fits = isinstance(value, shape) and not (isinstance(value, float) and not math.isfinite(value))
        return None if fits else _wanted(path, value, NAMES[shape])
    return next((wrong for part in parts if (wrong := misfit(*part)) is not None), None)


def _wanted(path: str, value: Any, what: str) -> str:
    text = repr(value)
    return f"{path} is {text if len(text) <= 40 else f'{text[:40]}…'}, wanted {what}"
