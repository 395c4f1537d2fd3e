"""Models, tokenizers and sentences of the measurements."""

import argparse
import gzip
import random
from pathlib import Path
from typing import Any

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianMTModel,
    MarianTokenizer,
)

from open_nvib.pretrained import convert
from open_nvib.text.opening import open_saved, open_weights

CALIBRATION = 64


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
        tokenizer = open_saved(MarianTokenizer, self.arguments.opus)
        model = open_weights(MarianMTModel, self.arguments.opus)
        kept = Path(self.arguments.output) / "opus-mt-converted"
        if not kept.exists():
            convert(model, [source for source, _ in self.calibration], tokenizer=tokenizer).save_pretrained(kept)
        return model, open_weights(MarianMTModel, kept), tokenizer

    def minilm(self) -> tuple[Any, Any, Any]:
        return self.of_english(AutoModel, self.arguments.minilm)

    def smollm2(self) -> tuple[Any, Any, Any]:
        return self.of_english(AutoModelForCausalLM, self.arguments.smollm2)

    def t5(self) -> tuple[Any, Any, Any]:
        return self.of_english(AutoModelForSeq2SeqLM, self.arguments.t5)

    def of_english(self, kind: Any, path: str) -> tuple[Any, Any, Any]:
        tokenizer, model = open_saved(AutoTokenizer, path), open_weights(kind, path)
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
