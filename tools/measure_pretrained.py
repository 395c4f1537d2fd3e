"""Measure converted models with real weights, each measurement to a JSON file.

usage: python -m tools.measure_pretrained WHAT --minilm DIR --opus DIR --pairs TSV [--count N] --output DIRECTORY

WHAT is `identity`, `translations`, `cost` or `curve`; `tools.pretrained_weights` fetches the weights. The pairs are
lines of English, tab, Chinese, compressed with gzip. Sentences for the calibration, for `translations` and for `curve`
are different ones. Results of `curve` are kept after each setting, and a new start goes on from there.
"""

import argparse
import gzip
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from transformers import AutoModel, AutoTokenizer, MarianMTModel, MarianTokenizer

from open_nvib.pretrained import convert

CALIBRATION = 64
OFF = math.inf
SETTINGS: list[tuple[str, float, float]] = [
    (section, alpha, sigma)
    for section in ("encoder", "cross", "decoder")
    for alpha, sigma in ((1.0, 0.0), (0.0, 0.0), (OFF, 0.2))
]
NOISES = (0.0, 0.2)


class Material:
    """Models, tokenizers and sentences of a measurement."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        with gzip.open(arguments.pairs, "rt", encoding="utf-8") as file:
            pairs = dict(reversed([line.rstrip("\n").split("\t")[:2][::-1] for line in file]))  # one for each source
        self.pairs = list(pairs.items())
        random.Random(0).shuffle(self.pairs)
        self.calibration, self.rest = self.pairs[:CALIBRATION], self.pairs[CALIBRATION:]
        self.arguments = arguments

    def opus(self) -> tuple[Any, Any, Any]:
        tokenizer = MarianTokenizer.from_pretrained(self.arguments.opus)
        model = MarianMTModel.from_pretrained(self.arguments.opus)
        kept = Path(self.arguments.output) / "opus-mt-converted"
        if not kept.exists():
            convert(model, [source for source, _ in self.calibration], tokenizer=tokenizer).save_pretrained(kept)
        return model, MarianMTModel.from_pretrained(kept), tokenizer

    def minilm(self) -> tuple[Any, Any, Any]:
        tokenizer = AutoTokenizer.from_pretrained(self.arguments.minilm)
        model = AutoModel.from_pretrained(self.arguments.minilm)
        return model, convert(model, [text for _, text in self.calibration], tokenizer=tokenizer), tokenizer


def translate(model: Any, tokenizer: Any, sources: list[str], beams: int, size: int = 16) -> list[str]:
    """Translate sentences, in batches of similar length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found = {}
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        batch = tokenizer([sources[i] for i in rows], return_tensors="pt", padding=True)
        ids = model.generate(**batch, num_beams=beams, max_length=64)
        found |= dict(zip(rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
    return [found[i] for i in range(len(sources))]


def add_noise(text: str, share: float, seed: int) -> str:
    """Delete each character, or swap it with the next, with probability `share`, one as likely as the other."""
    generator, characters, result = random.Random(seed), list(text), []
    while characters:
        first = characters.pop(0)
        if generator.random() >= share:
            result.append(first)
        elif generator.random() < 0.5 and characters:
            result.append(characters.pop(0))
            characters.insert(0, first)
    return "".join(result) or text


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / a.abs().max()).item()


@torch.no_grad()
def identity(material: Material) -> dict[str, Any]:
    """Compare logits, or hidden states, of converted models with the original's."""
    found: dict[str, Any] = {}
    rows = material.rest[: material.arguments.count]
    for name, (model, converted, tokenizer) in (("minilm", material.minilm()), ("opus-mt", material.opus())):
        column = 1 if name == "minilm" else 0
        batch = dict(tokenizer([pair[column] for pair in rows], return_tensors="pt", padding=True))
        if name == "opus-mt":
            batch["decoder_input_ids"] = model.generate(**batch, num_beams=1, max_length=32)
        units = [module.tau_unit.item() for module in converted.modules() if hasattr(module, "tau_unit")]
        found[name] = {"sentences": len(rows), "tau_units": units}
        for tau in (math.inf, 10.0, 5.0):
            converted.set_tau(alpha=tau, sigma=0.0)
            a, b = (each(**batch) for each in (model, converted))
            key = "last_hidden_state" if name == "minilm" else "logits"
            a, b = a[key], b[key]
            if name == "minilm":
                a, b = (x[batch["attention_mask"].bool()] for x in (a, b))
            found[name][f"tau_alpha={tau:g}"] = distance(a, b)
    return found


def translations(material: Material) -> dict[str, Any]:
    """Count the translations that are the same, word for word, with beams."""
    model, converted, tokenizer = material.opus()
    sources = [source for source, _ in material.rest[: material.arguments.count]]
    found: dict[str, Any] = {"sentences": 0, "beams": 4}
    for first in range(0, len(sources), 20):  # some at a time: what is done is on disk
        some = sources[first : first + 20]
        expected = translate(model, tokenizer, some, beams=4)
        found["sentences"] += len(some)
        for tau in (math.inf, 10.0):
            converted.set_tau(alpha=tau)
            same = [a == b for a, b in zip(translate(converted, tokenizer, some, beams=4), expected, strict=True)]
            key = f"same at tau_alpha={tau:g}"
            found[key] = found.get(key, 0) + sum(same)
        (Path(material.arguments.output) / "translations.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def cost(material: Material) -> dict[str, Any]:
    """Time the converted model and the original in turn; the ratio is the median of those of each turn."""
    found: dict[str, Any] = {}
    model, converted, tokenizer = material.minilm()
    texts = [text for _, text in material.rest]
    long = [" ".join(texts[first : first + 20]) for first in range(0, 80, 20)]
    for name, some in (("minilm, 32 sentences", texts[:32]), ("minilm, 4 texts of 128 tokens", long)):
        batch = tokenizer(some, return_tensors="pt", padding=True, truncation=True, max_length=128)
        found[name] = ratios(model, converted, lambda each, batch=batch: each(**batch))
    with torch.enable_grad():
        found["minilm, training step, 4 texts of 128 tokens"] = training_ratio(model, converted, batch)
    model, converted, tokenizer = material.opus()
    batch = tokenizer([source for source, _ in material.rest[:4]], return_tensors="pt", padding=True)
    settings = {"num_beams": 4, "min_new_tokens": 10, "max_new_tokens": 10, "max_length": None}
    found["opus-mt, 4 sentences, 4 beams, 10 tokens"] = ratios(
        model, converted, lambda each: each.generate(**batch, **settings)
    )
    return found


def ratios(model: Any, converted: Any, run: Any) -> dict[str, float]:
    found = {}
    for tau, sigma in ((math.inf, 0.0), (10.0, 0.0), (10.0, 0.1)):
        converted.set_tau(alpha=tau, sigma=sigma)
        with torch.inference_mode():
            found[f"tau_alpha={tau:g}, tau_sigma={sigma:g}"] = median_ratio(lambda: run(model), lambda: run(converted))
    return found


def training_ratio(model: Any, converted: Any, batch: Any) -> dict[str, float]:
    """A step with samples and the KL, against a step of the original."""
    converted.set_tau(alpha=10.0, sigma=0.1)
    model.train()
    converted.train()

    def step(each: Any, kl: bool) -> None:
        loss = each(**batch).last_hidden_state.square().mean()
        (loss + each.nvib_kl() if kl else loss).backward()
        each.zero_grad()

    found = {"tau_alpha=10, tau_sigma=0.1": median_ratio(lambda: step(model, False), lambda: step(converted, True))}
    model.eval()
    converted.eval()
    return found


def median_ratio(first: Any, second: Any, turns: int = 3) -> float:
    def seconds(run: Any) -> float:
        start = time.process_time()  # of this process: others may be running
        run()
        return time.process_time() - start

    first()
    second()
    return statistics.median([seconds(second) / seconds(first) for _ in range(turns)])


def curve(material: Material) -> dict[str, Any]:
    """BLEU and chrF of greedy translations over τ of each section, of clean and of noisy sources."""
    file = Path(material.arguments.output) / "curve.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    model, converted, tokenizer = material.opus()
    rows = material.rest[-material.arguments.count :]
    references = [[target for _, target in rows]]
    for section, alpha, sigma in [("none", OFF, 0.0), *SETTINGS]:
        for noise in NOISES:
            key = f"{section} tau_alpha={alpha:g} tau_sigma={sigma:g} noise={noise:g}"
            if key in found:
                continue
            converted.set_tau(alpha=OFF, sigma=0.0)
            if section != "none":
                converted.set_tau(alpha=alpha, sigma=sigma, where=(section,))
            sources = [add_noise(source, noise, seed) for seed, (source, _) in enumerate(rows)]
            translated = translate(model if section == "none" else converted, tokenizer, sources, beams=1, size=32)
            found[key] = {
                "section": section,
                "tau_alpha": f"{alpha:g}",
                "tau_sigma": sigma,
                "noise": noise,
                "sentences": len(rows),
                "bleu": sacrebleu.corpus_bleu(translated, references).score,
                "chrf": sacrebleu.corpus_chrf(translated, references).score,
            }
            file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurements = {function.__name__: function for function in (identity, translations, cost, curve)}
    parser.add_argument("what", choices=measurements)
    parser.add_argument("--count", type=int, default=100)
    for name in ("minilm", "opus", "pairs", "output"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    Path(arguments.output).mkdir(parents=True, exist_ok=True)
    result = measurements[arguments.what](Material(arguments))
    (Path(arguments.output) / f"{arguments.what}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
