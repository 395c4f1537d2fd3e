"""Compare converted models with their originals: outputs, translations and time."""

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from open_nvib.store.files import write_json
from tools.measure_pretrained.material import Material, translate


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / a.abs().max()).item()


@torch.no_grad()
def identity(material: Material) -> dict[str, Any]:
    """Compare logits, or hidden states, of converted models with the original's."""
    found: dict[str, Any] = {}
    rows = material.rest[: material.arguments.count]
    for name in ("minilm", "opus", "t5", "smollm2"):
        model, converted, tokenizer = getattr(material, name)()
        batch = dict(tokenizer([pair[name != "opus"] for pair in rows], return_tensors="pt", padding=True))
        real = batch["attention_mask"].bool()
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = model.generate(**batch, num_beams=1, max_length=32)
            real = torch.ones_like(batch["decoder_input_ids"], dtype=torch.bool)
        units = [module.tau_unit.item() for module in converted.modules() if hasattr(module, "tau_unit")]
        found[name] = {"sentences": len(rows), "tau_units": units}
        for tau in (math.inf, 10.0, 5.0):
            converted.set_tau(alpha=tau, sigma=0.0)
            a, b = (
                each(**batch)["last_hidden_state" if name == "minilm" else "logits"][real]
                for each in (model, converted)
            )
            found[name][f"tau_alpha={tau:g}"] = distance(a, b)
    return found


def translations(material: Material) -> dict[str, Any]:
    """Count the translations that are the same, word for word, with beams."""
    file = Path(material.arguments.output) / "translations.json"
    model, converted, tokenizer = material.opus()
    sources = sorted((source for source, _ in material.rest[: material.arguments.count]), key=len)
    found: dict[str, Any] = {"sentences": 0, "of": len(sources), "beams": 4, "different": []}
    if file.exists() and json.loads(file.read_text()).get("of") == len(sources):
        found = json.loads(file.read_text())
    for first in range(found["sentences"], len(sources), 20):
        some = sources[first : first + 20]
        expected = translate(model, tokenizer, some, beams=4, size=20)
        found["sentences"] += len(some)
        for tau in (math.inf, 10.0):
            converted.set_tau(alpha=tau)
            translated = translate(converted, tokenizer, some, beams=4, size=20)
            key = f"same at tau_alpha={tau:g}"
            found[key] = found.get(key, 0) + sum(a == b for a, b in zip(translated, expected, strict=True))
            found["different"] += [
                {"tau_alpha": f"{tau:g}", "source": source, "original": a, "converted": b}
                for source, a, b in zip(some, expected, translated, strict=True)
                if a != b
            ]
        write_json(file, found, indent=1)
    return found


def cost(material: Material) -> dict[str, Any]:
    """Time the converted model and the original in turn."""
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


def median_ratio(first: Any, second: Any, turns: int = 25) -> float:
    """Time two functions in turn, and divide the medians."""

    def seconds(run: Any) -> float:
        start = time.process_time()  # of this process: others may be running
        run()
        return time.process_time() - start

    first()
    second()
    times = [(seconds(first), seconds(second)) for _ in range(turns)]
    return statistics.median(b for _, b in times) / statistics.median(a for a, _ in times)
