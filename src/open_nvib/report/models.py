"""What a row is: the family of its model, and its settings in the paper's symbols."""

from collections.abc import Sequence
from typing import Any

from open_nvib.report.cells import find
from open_nvib.report.document import one_line
from open_nvib.report.paper import PaperRow

FAMILIES = ("T", "VT", "VTP", "VTS", "NVAE")


def family_of(name: str, label: str | None, paper: PaperRow | None, config: Any) -> str:
    """T, VT, VTP, VTS or NVAE: from the configuration, else the label, the paper's row, or the name itself."""
    bottleneck = find(config, "model/bottleneck")
    guesses = (bottleneck, (label or "").split(" ")[0], paper.model if paper else None, name.split("-")[0])
    for guess in guesses:
        if isinstance(guess, str) and guess.upper() in FAMILIES:
            return guess.upper()
    return one_line(name)


def settings_of(name: str, label: str | None, paper: PaperRow | None, config: Any) -> str:
    """As the label says, else from the configuration, else as the paper prints them."""
    family = family_of(name, label, paper, config)
    if label and label != name:
        return one_line(label).strip().removeprefix(family).strip()
    if find(config, "model/bottleneck"):
        return _from_config(family, config)
    return paper.settings if paper else "" if name.upper() == family else one_line(name)


def short_settings(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Of rows (family, settings), what labels in a figure say: the settings in which rows of a family differ.

    λ′_G=0.01 is G=0.01 there, which the caption explains.
    """
    result = []
    for family, settings in rows:
        others = [set(other.split()) for name, other in rows if name == family]
        shared = set.intersection(*others)
        words = [word for word in settings.split() if word not in shared]
        result.append(" ".join(words).replace("λ′_", ""))
    return result


def _from_config(family: str, config: Any) -> str:
    parts = []
    if family != "T":
        parts.append(f"λ′_G={_show(find(config, 'loss/lambda_g'))}")
    if family == "NVAE":
        parts += [f"λ′_D={_show(find(config, 'loss/lambda_d'))}", f"Δ={_show(find(config, 'loss/delta'))}"]
    if family == "VTP":
        parts.append(str(find(config, "model/pooling")))
    if family == "VTS":
        parts.append(f"S={_show(find(config, 'model/stride'))}")
    return " ".join(parts)


def _show(value: Any) -> str:
    """A number, or where a schedule begins and ends."""
    if isinstance(value, dict):
        return f"{_show(value.get('start'))}→{_show(value.get('end'))}"
    return f"{value:g}" if isinstance(value, (int, float)) else "?"
