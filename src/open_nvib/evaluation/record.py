"""The record of an evaluation in `metrics.json`, and what becomes of an earlier one."""

from collections.abc import Callable
from typing import Any

from open_nvib._files import finite
from open_nvib.evaluation.settings import PARTS, Part

DEPENDS: dict[Part, tuple[str, ...]] = {
    "reconstruction": ("sentences", "generalise", "seed"),
    "generation": ("samples", "scorer_steps", "seed"),
    "latent": ("latent_sentences", "importance_samples", "seed"),
    "interpolation": ("interpolations", "interpolation_steps", "scorer_steps", "seed"),
}
"""Settings that the numbers of each part depend on; split and scorer, which are the name of a record, aside."""
CIRCUMSTANCES = ("model", "config", "recipe", "versions")


def merge(known: dict[str, Any], fresh: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The new record, with the parts of an earlier one that it does not have.

    A record has one value of each setting. That of a setting on which no new part depends is the one that the earlier
    parts were measured with. An earlier part that was measured on something else, or with another value of a setting
    on which a new part depends, too, is left out, and `say` is told.
    """
    used = {name for part in PARTS if part in fresh for name in DEPENDS[part]}
    settings, kept = dict(fresh["settings"]), {}
    for part in PARTS:
        if part not in known or part in fresh:
            continue
        other = differences(part, known, fresh, used)
        if other:
            say(f"{part} of an earlier evaluation is left out: {', '.join(other)}. Measure it again to have it back.")
            continue
        kept[part] = known[part]
        settings |= {name: known["settings"][name] for name in DEPENDS[part]}
    settings["measure"] = [*settings["measure"], *(part for part in kept if part not in settings["measure"])]
    parts = {part: (fresh | kept)[part] for part in PARTS if part in fresh or part in kept}
    return {**fresh, "settings": settings, **parts}


def differences(part: Part, known: dict[str, Any], fresh: dict[str, Any], used: set[str]) -> list[str]:
    """In what an earlier part does not fit in with the new ones."""
    found = [f"another {name}" for name in CIRCUMSTANCES if name in known and known[name] != finite(fresh[name])]
    settings = known.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    for name in DEPENDS[part]:
        if name not in settings:
            found.append(f"no {name} is known")
        elif name in used and settings[name] != fresh["settings"][name]:
            found.append(f"{name} was {settings[name]}, now {fresh['settings'][name]}")
    return found
