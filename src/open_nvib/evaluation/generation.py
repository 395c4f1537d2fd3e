"""Samples from the prior: how likely, how diverse, how new and how long they are."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from open_nvib.evaluation.references import References, choose
from open_nvib.store.evaluations import Generation, RealText
from open_nvib.store.files import ResultCache
from open_nvib.text.model.decoding import Texts
from open_nvib.text.using.run import Prior, Run

SAMPLES_IN_A_STEP = 5000  # an interrupted evaluation loses at most this many samples
EXAMPLES = 10
ORDERS = (1, 2, 3, 4)  # lengths n of the n-grams that are counted
SELF_BLEU_TEXTS = 1000
"""Self-BLEU grows with the number of texts, so it is always of this many, or of all if there are fewer."""


def draw_samples(
    run: Run, count: int, *, seed: int, cache: ResultCache, inputs: dict[str, Any], prior: Prior = "unit"
) -> list[list[int]]:
    """Draw texts from the prior, as token ids: in several steps, each with a seed of its own."""
    samples: list[list[int]] = []
    for step, first in enumerate(range(0, count, SAMPLES_IN_A_STEP)):
        size, step_seed = min(SAMPLES_IN_A_STEP, count - first), seed * 1_000_003 + step
        draw = partial(run.sample_ids, size, seed=step_seed, prior=prior, progress="sample")
        name = f"samples-{first + size}-of-{count}"
        samples += cache.run(name, {**inputs, "size": size, "seed": step_seed}, draw, list[list[int]])
    return samples


def measure_generation(run: Run, samples: list[list[int]], references: References) -> Generation:
    """Measure samples of a model; how real text compares is left to `measure_real_text`."""
    training = {tuple(text) for text in references.training}
    return Generation(
        samples=len(samples),
        reverse_perplexity=references.reverse_perplexity(samples),
        forward_perplexity=references.perplexity(samples),
        word_perplexity=references.word_perplexity(samples),
        distinct=distinct_shares(samples),
        self_bleu=self_bleu(samples),
        copied=sum(tuple(text) in training for text in samples) / len(samples),
        empty=sum(not text for text in samples) / len(samples),
        lengths=count_lengths(samples),
        examples=tuple(run.tokenizer.batch_decode(samples[:EXAMPLES])),
    )


def measure_real_text(references: References) -> RealText:
    """Measure real sentences as the samples of a model are measured: what a perfect generator would reach.

    There are as many training sentences as samples, or all, if they are fewer.
    """
    settings = references.settings

    def compute() -> RealText:
        chosen = choose(references.training, settings.samples, settings.seed)
        return RealText(
            forward_perplexity=references.perplexity(references.held_out),
            word_perplexity=references.word_perplexity(choose(references.held_out, settings.samples, settings.seed)),
            reverse_perplexity=references.reverse_perplexity(chosen),
            distinct=distinct_shares(chosen),
            self_bleu=self_bleu(chosen),
            lengths=count_lengths(references.training),
        )

    inputs = {**references.judged_inputs, "split": settings.split, "samples": settings.samples}
    return references.cache.run("real", inputs, compute, RealText)


def count_lengths(texts: Texts) -> tuple[int, ...]:
    """Count texts by their number of tokens: entry k is the number of texts of k tokens."""
    return tuple(np.bincount([len(text) for text in texts]).tolist())


def ngrams(text: Sequence[Any], n: int) -> list[tuple[Any, ...]]:
    return [tuple(text[first : first + n]) for first in range(len(text) - n + 1)]


def distinct_shares(texts: Sequence[Sequence[Any]]) -> dict[int, float | None]:
    """Divide the number of distinct n-grams by that of all, for each n of ORDERS; None where there are no n-grams.

    The share falls with the number of texts.
    """
    found: dict[int, float | None] = {}
    for n in ORDERS:
        counts = Counter(gram for text in texts for gram in ngrams(text, n))
        found[n] = len(counts) / counts.total() if counts else None
    return found


def self_bleu(texts: Texts) -> float | None:
    """Compute corpus BLEU-4, in percent, of the first SELF_BLEU_TEXTS texts, each with all others as its references.

    A count is clipped at the largest count in another text, so all counts of an n-gram match in full but for the
    largest, which is clipped at the second largest. None for fewer than two texts that are not empty.
    """
    texts = [text for text in texts[:SELF_BLEU_TEXTS] if text]
    if len(texts) < 2:
        return None
    log_precision = 0.0
    for n in ORDERS:
        counts: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # in each text that has the n-gram
        for text in texts:
            for gram, count in Counter(ngrams(text, n)).items():
                counts[gram].append(count)
        matches = total = 0
        for found in counts.values():
            *_, second, largest = sorted([0, *found])
            matches += sum(found) - largest + second
            total += sum(found)
        if not matches:
            return 0.0
        log_precision += math.log(matches / total) / len(ORDERS)
    hypotheses, references = sum(len(text) for text in texts), _closest_lengths(texts)
    brevity = 0.0 if hypotheses >= references else 1 - references / hypotheses
    return 100 * math.exp(log_precision + brevity)


def _closest_lengths(texts: Texts) -> int:
    """Sum, over texts, the length of the other text closest in length; of two as close, the shorter."""
    counts = Counter(len(text) for text in texts)
    total = 0
    for length, count in counts.items():
        others = [other for other in counts if other != length or count > 1]
        total += count * min(others, key=lambda other: (abs(other - length), other))
    return total
