"""Samples from the prior: how likely, how diverse, how new and how long they are."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from open_nvib.evaluation.diversity import diversity
from open_nvib.evaluation.references import References
from open_nvib.evaluation.scorers import Texts, score
from open_nvib.store.files import Steps
from open_nvib.text.using.run import Run

CHUNK = 5000
"""Samples in one step: what an interrupted evaluation loses at most."""
EXAMPLES = 10


@dataclass(frozen=True)
class Perplexities:
    """Both perplexities of samples.

    Args:
        forward: of the samples under a scorer of the training text: low if they are fluent.
        reverse: of held-out text under a scorer of the samples: low if they are fluent and as diverse as real text.
    """

    forward: float
    reverse: float


def draw(run: Run, count: int, *, seed: int, steps: Steps, inputs: Any) -> list[list[int]]:
    """Token ids of samples, a chunk at a time, each with a seed of its own."""
    samples: list[list[int]] = []
    for chunk, first in enumerate(range(0, count, CHUNK)):
        size = min(CHUNK, count - first)
        chunk_seed = seed * 1_000_003 + chunk

        def compute(size: int = size, chunk_seed: int = chunk_seed) -> list[list[int]]:
            return run.sample_ids(size, seed=chunk_seed)

        name = f"samples-{first + size}-of-{count}"
        samples += steps.run(name, {**inputs, "size": size, "seed": chunk_seed}, compute)
    return samples


def perplexities(samples: Texts, references: References, split: str) -> Perplexities:
    """Forward and reverse perplexity."""
    reverse = score(references.train(samples), references.config, references.held_out(split)).perplexity
    return Perplexities(forward=references.perplexity(samples), reverse=reverse)


def describe(samples: list[list[int]], run: Run, training: Texts) -> dict[str, Any]:
    """What can be counted without a scorer."""
    known = {tuple(text) for text in training}
    measured = diversity(samples)
    return {
        "samples": len(samples),
        "distinct": measured.distinct,
        "self_bleu": measured.self_bleu,
        "copied": sum(tuple(text) in known for text in samples) / len(samples),
        "empty": sum(not text for text in samples) / len(samples),
        "lengths": np.bincount([len(text) for text in samples]).tolist(),
        "examples": run.tokenizer.batch_decode(samples[:EXAMPLES]),
    }
