"""What the measurements of pretrained models count and choose."""

import pytest
import torch
from scipy.cluster.hierarchy import linkage

from tools.measure_pretrained.material import add_noise
from tools.measure_pretrained.noise import ORIGINAL, SETTINGS, choose, name
from tools.measure_pretrained.retrieval import above_prior, counts, largest, recall, ward


@pytest.fixture
def texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5 + i % 7, 11, generator=generator) for i in range(60)]


def test_every_way_to_keep_vectors_keeps_as_many(texts):
    heights = [x.square().sum(-1) for x in texts]
    trees = [linkage(x.numpy(), "ward") for x in texts]
    assert sum(counts(texts, 3.0)) / 60 == pytest.approx(3.0, abs=0.2)
    for kept in (largest(texts, heights, 3.0), above_prior(texts, heights, 3.0)[0], ward(texts, trees, 3.0)):
        assert min(len(x) for x in kept) >= 1
        assert sum(len(x) for x in kept) / 60 == pytest.approx(3.0, abs=0.2)


def test_largest_are_those_with_the_largest_counts(texts):
    heights = [torch.arange(len(x), dtype=torch.float32) for x in texts]
    for x, kept in zip(texts, largest(texts, heights, 2.0), strict=True):
        torch.testing.assert_close(kept, x.flip(0)[: len(kept)])


def test_recall_of_texts_that_are_their_queries(texts):
    places = list(range(60))
    assert recall(texts, texts, places, at=1) == 100
    assert recall(texts, texts[1:] + texts[:1], places, at=1) == 0


def test_a_setting_that_loses_on_clean_sources_is_not_chosen():
    cells = {name(each): {"clean": {"bleu": 40.0}, "noisy": {"bleu": 20.0}} for each in (ORIGINAL, *SETTINGS)}
    cells[name(SETTINGS[1])] = {"clean": {"bleu": 39.0}, "noisy": {"bleu": 30.0}}
    cells[name(SETTINGS[2])] = {"clean": {"bleu": 39.8}, "noisy": {"bleu": 21.0}}
    assert choose(cells) == [name(SETTINGS[2])]


def test_noise_deletes_and_swaps():
    assert add_noise("abcdefgh", 0.0, seed=0) == "abcdefgh"
    changed = [add_noise("abcdefgh", 0.3, seed) for seed in range(50)]
    assert all(set(text) <= set("abcdefgh") for text in changed)
    assert any(len(text) < 8 for text in changed)
    assert any(sorted(text) == list("abcdefgh") != list(text) for text in changed)
