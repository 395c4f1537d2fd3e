"""Turn the dials of OPUS-MT for noisy sources: the curve; and a setting, chosen on some sentences, tested on others."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from open_nvib.store.files import write_json
from tools.bootstrap import differences_of_bleu, interval
from tools.measure_pretrained.material import Material, add_noise, translate

NOISES = (0.05, 0.1, 0.2, 0.3)
TAUS = ((1.0, 0.0), (0.0, 0.0), (math.inf, 0.2))
ORIGINAL = ("none", math.inf, 0.0)
SETTINGS = [(section, *taus) for section in ("encoder", "cross", "decoder") for taus in TAUS]
CURVE = {"tau_alpha": (10.0, 5.0, 3.0, 2.0, 1.0, 0.0, -1.0), "tau_sigma": (0.1, 0.2, 0.4)}
"""Values of each dial on the curve of each section; the other dial is off."""

BEST_OF_CURVE = ("cross", -1.0, 0.0)
"""The setting of the curve that `choose` would take, which is tested like those of the choice."""

CHOICE, TEST, CURVE_ROWS = slice(-60, None), slice(2000, 2300), slice(-160, -60)
"""Sentences to choose with, to test, and of the curve; none is of the calibration."""

CHOICE_NOISE = 0.2
"""Noise of the sentences to choose with."""

MAX_LOSS = 0.3
"""BLEU that a setting may lose on clean sources."""


Setting = tuple[str, float, float]
Translator = Callable[[Setting, list[str]], list[str]]


def noise(material: Material) -> dict[str, Any]:
    """Choose the setting with the best BLEU on noisy sources of those that lose little on clean ones, and test it."""
    file = Path(material.arguments.output) / "noise.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"choice": {}, "test": {}}
    outputs = translator(material)
    save = partial(write_json, file, found, indent=1)

    score_settings(outputs, material.rest[CHOICE], [ORIGINAL, *SETTINGS], found["choice"], save)
    found["chosen"] = choose(found["choice"])

    rows = material.rest[TEST]
    targets = [target for _, target in rows]
    kept = file.with_name("noise-translations.json")  # large, and of use only for the comparison
    translated: dict[str, dict[str, list[str]]] = json.loads(kept.read_text()) if kept.exists() else {}
    for setting in (ORIGINAL, *(each for each in SETTINGS if name(each) in found["chosen"]), BEST_OF_CURVE):
        cells = translated.setdefault(name(setting), {})
        for level in (0.0, *NOISES):
            if f"noise={level:g}" not in cells:
                sources = [add_noise(source, level, 10_000 + i) for i, (source, _) in enumerate(rows)]
                cells[f"noise={level:g}"] = outputs(setting, sources)
                write_json(kept, translated)
        found["test"][name(setting)] = {"sentences": len(rows)}
        found["test"][name(setting)] |= {key: scores(texts, targets) for key, texts in cells.items()}
        if setting != ORIGINAL:
            against = compare(cells, translated[name(ORIGINAL)], targets)
            found["test"][name(setting)]["against the original"] = against
        save()
    return found


def curve(material: Material) -> dict[str, Any]:
    """Score each section over the values of one dial, on clean and on noisy sources."""
    file = Path(material.arguments.output) / "curve.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    save = partial(write_json, file, found, indent=1)

    settings = [ORIGINAL]
    for section in ("encoder", "cross", "decoder"):
        settings += [(section, alpha, 0.0) for alpha in CURVE["tau_alpha"]]
        settings += [(section, math.inf, sigma) for sigma in CURVE["tau_sigma"]]
    score_settings(translator(material), material.rest[CURVE_ROWS], settings, found, save)
    return found


def translator(material: Material) -> Translator:
    """Return a function that translates sources greedily with a setting of the dials."""
    model, converted, tokenizer = material.opus()

    def outputs(setting: Setting, sources: list[str]) -> list[str]:
        section, alpha, sigma = setting
        if section == "none":
            return translate(model, tokenizer, sources, beams=1, size=32)
        converted.set_tau(alpha=math.inf, sigma=0.0)
        converted.set_tau(alpha=alpha, sigma=sigma, where=(section,))
        return translate(converted, tokenizer, sources, beams=1, size=32)

    return outputs


def score_settings(
    outputs: Translator, rows: list[tuple[str, str]], settings: list[Setting], found: dict[str, Any], save: Any
) -> None:
    """Score the settings that are not in `found` yet, on the sentences and with noise."""
    sources, targets = [source for source, _ in rows], [target for _, target in rows]
    noisy = [add_noise(source, CHOICE_NOISE, seed) for seed, source in enumerate(sources)]
    for setting in settings:
        if name(setting) not in found:
            found[name(setting)] = {
                "sentences": len(rows),
                "clean": scores(outputs(setting, sources), targets),
                "noisy": scores(outputs(setting, noisy), targets),
            }
            save()


def name(setting: Setting) -> str:
    section, alpha, sigma = setting
    return f"{section} tau_alpha={alpha:g} tau_sigma={sigma:g}"


def scores(translated: list[str], targets: list[str]) -> dict[str, float]:
    return {
        "bleu": BLEU().corpus_score(translated, [targets]).score,
        "chrf": CHRF().corpus_score(translated, [targets]).score,
    }


def choose(cells: dict[str, Any]) -> list[str]:
    """Choose the settings with the best BLEU on noisy sources, of those that lose little on clean ones."""
    least = cells[name(ORIGINAL)]["clean"]["bleu"] - MAX_LOSS
    noisy = {
        each: cells[each]["noisy"]["bleu"] for each in map(name, SETTINGS) if cells[each]["clean"]["bleu"] >= least
    }
    return [each for each, bleu in noisy.items() if bleu == max(noisy.values())]


def compare(cells: dict[str, list[str]], original: dict[str, list[str]], targets: list[str]) -> dict[str, Any]:
    """Compute the difference of BLEU from the original's, and its interval by a paired bootstrap over sentences."""
    keys = list(cells)
    found = differences_of_bleu([(cells[key], original[key]) for key in keys], targets)
    differences = dict(zip(keys, found.T, strict=True))
    differences["mean of the noisy"] = np.mean([x for key, x in differences.items() if key != "noise=0"], axis=0)
    return {key: interval(x) for key, x in differences.items()}
