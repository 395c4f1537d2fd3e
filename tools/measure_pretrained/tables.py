"""Tables of docs/results/pretrained.md, made of the JSON files beside it: a test compares the page with them."""

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from tools.measure_pretrained.noise import BEST_OF_CURVE, NOISES, ORIGINAL, SETTINGS
from tools.measure_pretrained.noise import name as name_of
from tools.measure_pretrained.retrieval import NUMBERS
from tools.measure_pretrained.sentiment import GRIDS, TESTS

Rows = list[list[str]]


def tables(folder: Path) -> dict[str, str]:
    """Make every table whose measurement is in the folder, by its name."""
    found = {}
    for make in (identity, cost, sentiment, retrieval, choice, noise):
        file = folder / f"{'noise' if make is choice else make.__name__}.json"
        if file.exists():
            found[make.__name__] = markdown(make(json.loads(file.read_text())))
    return found


def markdown(rows: Rows) -> str:
    lines = ["|" + "|".join(f" {entry} " if entry else " " for entry in row) + "|" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def infinite(number: float | str) -> str:
    return "∞" if float(number) == math.inf else f"{float(number):g}".replace("-", "−")


def identity(found: dict[str, Any]) -> Rows:
    taus = ("inf", "10", "5")
    titles = {
        "minilm": "MiniLM",
        "opus": "OPUS-MT, all 18 attentions",
        "t5": "flan-T5, all 24 attentions",
        "smollm2": "SmolLM2, all 30 attentions",
    }
    return [["", *(f"τ_α = {infinite(tau)}" for tau in taus)]] + [
        [titles[name], *(f"{cell[f'tau_alpha={tau}']:.0e}".replace("e-0", "e-").replace("0e+00", "0") for tau in taus)]
        for name, cell in found.items()
    ]


def cost(found: dict[str, Any]) -> Rows:
    settings = (("inf", "0"), ("10", "0"), ("10", "0.1"))
    keys = [f"tau_alpha={alpha}, tau_sigma={sigma}" for alpha, sigma in settings]
    header = ["", *(f"τ_α = {infinite(alpha)}, τ_σ = {sigma}" for alpha, sigma in settings)]
    return [header] + [
        [name.replace("minilm", "MiniLM").replace("opus-mt", "OPUS-MT")]
        + [f"{cell[key]:.2f}" if key in cell else "" for key in keys]
        for name, cell in found.items()
    ]


def sentiment(found: dict[str, Any]) -> Rows:
    """Accuracy of the chosen setting of each method, and its difference from plain fine-tuning on other texts."""
    cells = [cell for cell in found.values() if cell["seed"] > 0 or is_chosen(found, cell)]
    groups: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: cell["seed"]):
        groups[cell["share"], cell["method"]].append(cell)
    rows = [["labels", "method", "seeds", "films", "Amazon", "NYT", "tweets", "the other three", "less plain's"]]
    for share in (0.1, 1.0):
        plain = groups[share, "plain"]
        for method in GRIDS:
            some = groups[share, method]
            if not some:
                continue
            away = [elsewhere(cell) for cell in some]
            less = [x - elsewhere(cell) for x, cell in zip(away, plain, strict=False)]
            numbers = [spread([cell[part] for cell in some]) for part in TESTS]
            last = "" if method == "plain" else spread(less, sign=True)
            rows.append([f"{100 * share:g} %", method, str(len(some)), *numbers, spread(away), last])
    return rows


def is_chosen(found: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Whether the setting of a cell is the first with the best validation of its method at seed 0 and 10 %."""
    rivals = [
        each
        for each in found.values()
        if (each["method"], each["share"], each["seed"]) == (cell["method"], 0.1, 0) and "validation" in each
    ]
    return max(rivals, key=lambda each: each["validation"])["setting"] == cell["setting"]


def elsewhere(cell: dict[str, Any]) -> float:
    return statistics.fmean(cell[part] for part in TESTS if part != "film")


def spread(values: list[float], sign: bool = False) -> str:
    mean = f"{round(statistics.fmean(values), 1) + 0.0:{'+' if sign else ''}.1f}".replace("-", "−")  # no −0.0
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def retrieval(found: dict[str, Any]) -> Rows:
    """Recall at 10 over the mean number of vectors."""
    data = found["data"]
    numbers = (1.0, *NUMBERS, round(data["vectors"], 1))
    methods = dict.fromkeys(cell["method"] for cell in found.values() if "method" in cell)
    rows = [["vectors of a text", *(f"{number:g}" for number in numbers)]]
    rows.append(["KiB", *(f"{number * data['size'] * 4 / 1024:.1f}" for number in numbers)])
    for method in methods:
        cells = [found.get(f"{method}, {number:g}") for number in numbers]
        rows.append([method, *(f"{cell['recall at 10']:.1f}" if cell else "" for cell in cells)])
    return rows


def choice(found: dict[str, Any]) -> Rows:
    """BLEU of every setting on the sentences to choose with."""
    rows = [["section", "τ_α", "τ_σ", "BLEU, clean", "BLEU, noisy"]]
    for setting in [ORIGINAL, *SETTINGS]:
        cell = found["choice"].get(name_of(setting))
        if cell:
            section = "none: the original" if setting == ORIGINAL else setting[0]
            marked = "**" if name_of(setting) in found.get("chosen", ()) else ""
            numbers = [f"{marked}{cell[part]['bleu']:.2f}{marked}" for part in ("clean", "noisy")]
            rows.append([section, infinite(setting[1]), f"{setting[2]:g}", *numbers])
    return rows


def noise(found: dict[str, Any]) -> Rows:
    """BLEU of the chosen settings on the sentences of the test, with the difference from the original's."""
    settings = [each for each in (*SETTINGS, BEST_OF_CURVE) if name_of(each) in found["test"]]
    titles = [f"{section}, τ_α = {infinite(alpha)}, τ_σ = {sigma:g}" for section, alpha, sigma in settings]
    rows = [["noise", "original", *(x for title in titles for x in (title, "difference (95 %)"))]]
    for level in (0.0, *NOISES):
        key = f"noise={level:g}"
        row = [f"{100 * level:g} %", f"{found['test'][name_of(ORIGINAL)][key]['bleu']:.2f}"]
        for setting in settings:
            cell = found["test"][name_of(setting)]
            row += [f"{cell[key]['bleu']:.2f}", interval(cell["against the original"][key])]
        rows.append(row)
    last = ["mean of the noisy", f"{mean_noisy(found['test'][name_of(ORIGINAL)]):.2f}"]
    for setting in settings:
        cell = found["test"][name_of(setting)]
        last += [f"{mean_noisy(cell):.2f}", interval(cell["against the original"]["mean of the noisy"])]
    return [*rows, last]


def mean_noisy(cell: dict[str, Any]) -> float:
    return statistics.fmean(cell[f"noise={level:g}"]["bleu"] for level in NOISES)


def interval(cell: dict[str, float]) -> str:
    difference, low, high = (f"{round(cell[key], 2) + 0.0:+.2f}" for key in ("difference", "low", "high"))  # no −0.00
    return f"{difference} ({low} to {high})".replace("-", "−")
