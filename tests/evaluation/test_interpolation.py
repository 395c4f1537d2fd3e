"""Paths between texts: decoded together as one by one, edit distances and smoothness by hand."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from open_nvib.evaluation.interpolation import edit_distance, interpolate_pairs, measure_interpolation, smoothness
from open_nvib.store.settings import TrainConfig
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.using.run import Run

EVERYTHING = "[PAD] [CLS] [SEP] [UNK] a river saw the old city and nobody crossed it again in may"
WORDS: Sequence[str] = EVERYTHING.split()
PAIRS = [
    ("the old river", "nobody saw the city again"),
    ("it crossed a city and nobody saw it in may", "may"),
    ("a a a", "the the the"),
    ("nobody crossed the river", "nobody crossed the city"),
]


def ids(pair: tuple[str, str]) -> tuple[list[int], list[int]]:
    first, second = ([WORDS.index(word) for word in text.split()] for text in pair)
    return first, second


IDS = [ids(pair) for pair in PAIRS]


def make_run(bottleneck: Any) -> Run:
    """An untrained model, its output far enough from ties."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    torch.manual_seed(1)
    config = TextAutoencoderConfig(
        vocab_size=len(WORDS),
        d_model=16,
        ffn_size=16,
        max_positions=32,
        bottleneck=bottleneck,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = TextAutoencoder(config).eval()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    return Run(Path("nowhere"), TrainConfig(), model, wrapped, torch.ones(12, dtype=torch.long))


@pytest.mark.parametrize("bottleneck", ["t", "vt", "vtp", "vts", "nvae"])
def test_paths_decoded_together_are_those_decoded_one_by_one(bottleneck, monkeypatch):
    run = make_run(bottleneck)
    expected = [run.interpolate(*pair, steps=5) for pair in PAIRS]

    def together() -> list[list[str]]:
        return [run.tokenizer.batch_decode(path) for path in interpolate_pairs(run, IDS, 5)]

    assert together() == expected
    assert len({text for path in expected for text in path}) > 4
    monkeypatch.setattr("open_nvib.evaluation.interpolation.BATCH", 12)  # two pairs at once
    assert together() == expected


def test_metrics_are_of_every_path():
    run = make_run("nvae")
    asked: list[list[list[int]]] = []

    def score(texts: list[list[int]]) -> float:
        asked.append(texts)
        return 10.0 + len(asked)

    found = measure_interpolation(run, IDS, steps=3, perplexity=score)
    paths = interpolate_pairs(run, IDS, 3)
    assert found.perplexity == (11.0, 12.0, 13.0)
    assert asked == [[path[step] for path in paths] for step in range(3)]
    values = [smoothness(path) for path in paths]
    mean = sum(values) / 4
    assert found.smoothness == pytest.approx(mean)
    assert found.smoothness_sd == pytest.approx((sum((value - mean) ** 2 for value in values) / 3) ** 0.5)
    assert (found.pairs, found.steps) == (4, 3)
    assert found.examples == tuple(tuple(run.interpolate(*pair, steps=3)) for pair in PAIRS[:3])


def test_texts_are_the_tokens_that_were_emitted_not_their_text_tokenised_again():
    """With a tokenizer that takes every letter for a word, text is more tokens than the model emits, or takes."""
    run = make_run("nvae")
    letters = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="[PAD]", unk_token="[UNK]")
    asked: list[list[list[int]]] = []

    def score(texts: list[list[int]]) -> float:
        asked.append(texts)
        return 1.0

    measure_interpolation(replace(run, tokenizer=tokenizer), IDS, steps=3, perplexity=score)
    assert asked == [[path[step] for path in interpolate_pairs(run, IDS, 3)] for step in range(3)]


def test_one_path_has_no_deviation():
    found = measure_interpolation(make_run("vt"), IDS[:1], steps=2, perplexity=lambda texts: float(len(texts)))
    assert found.perplexity == (1.0, 1.0)
    assert found.smoothness_sd == 0.0


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [([], [], 0), ([1, 2], [], 2), ([], [4], 1), ([1, 2, 3], [1, 3], 1), ([1, 2, 3], [3, 1, 2], 2), ([1], [2], 1)],
)
def test_edit_distance_by_hand(a, b, distance):
    assert edit_distance(a, b) == edit_distance(b, a) == distance


def test_edit_distance_is_the_recursive_definition():
    @cache
    def recursive(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        if a[0] == b[0]:
            return recursive(a[1:], b[1:])
        return 1 + min(recursive(a[1:], b), recursive(a, b[1:]), recursive(a[1:], b[1:]))

    generator = random.Random(0)
    for _ in range(200):
        a, b = (tuple(generator.choices(range(4), k=generator.randrange(8))) for _ in range(2))
        assert edit_distance(a, b) == recursive(a, b)


OLD, NEW = [1, 1, 1, 1], [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([OLD, [2, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1], NEW], 1.0),  # one edit each
        ([OLD, [2, 2, 1, 1], NEW], 1.0),  # two each
        ([OLD, OLD, [2, 1, 1, 1], [2, 1, 1, 1]], 1.0),  # one edit cannot be spread
        ([OLD, OLD, OLD, OLD, NEW], 0.25),  # all four at once: E/D = 1, ⌈4/4⌉/4
        ([OLD, [2, 1, 1, 1], NEW], 2 / 3),  # 1 then 3: ⌈4/2⌉/3
        ([OLD, [9, 1, 1, 1], [2, 1, 1, 1]], 0.5),  # by way of another word: E = 1, D = 2
        ([OLD, [9, 9, 9, 9], [2, 2, 9, 9], NEW], 4 / 8 * 3 / 4),  # D = 4 + 2 + 2, ⌈8/3⌉ = 3
        ([OLD, NEW, OLD], 0.0),  # and back
        ([OLD, OLD, OLD], 0.0),  # nothing changes
        ([[], [], []], 0.0),
        ([[], [1], [1, 1]], 1.0),
    ],
)
def test_smoothness_by_hand(path, expected):
    assert smoothness(path) == pytest.approx(expected)


def test_smoothness_is_between_0_and_1():
    generator = random.Random(1)
    for _ in range(300):
        length = generator.randrange(2, 8)
        path = [generator.choices(range(3), k=generator.randrange(5)) for _ in range(length)]
        assert 0 <= smoothness(path) <= 1
