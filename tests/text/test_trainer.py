"""The order of the data, and what a training run prints and warns of."""

import numpy as np
import pytest
import torch

from open_nvib.text.model.decoding import BATCHES_IN_POOL, LengthGroupedSampler
from open_nvib.text.training.trainer import find_troubles, log_line

# The order of the data

BATCH = 7


@pytest.fixture(scope="module")
def lengths():
    return np.random.default_rng(0).integers(5, 51, size=BATCH * BATCHES_IN_POOL * 3 + 4)


def order(lengths, *, seed: int = 0, epoch: int = 0) -> list[int]:
    sampler = LengthGroupedSampler(lengths, BATCH, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, BATCH * BATCHES_IN_POOL, BATCH * BATCHES_IN_POOL * 3 + 4])
def test_sampler_gives_each_index_once(lengths, count):
    sampler = LengthGroupedSampler(lengths[:count], BATCH, seed=3)
    assert len(sampler) == count
    assert sorted(sampler) == list(range(count))


def test_sampler_order_is_decided_by_seed_and_epoch_alone(lengths):
    first = order(lengths, seed=1, epoch=2)
    torch.manual_seed(99)
    assert order(lengths, seed=1, epoch=2) == first
    assert order(lengths, seed=1, epoch=3) != first
    assert order(lengths, seed=2, epoch=2) != first


def test_sampler_puts_similar_lengths_together(lengths):
    """Within a pool a batch spans little more than 1/50 of the sorted lengths; random ones span nearly all."""
    indices = order(lengths)
    full = len(lengths) // BATCH
    spans = [np.ptp(lengths[indices[first : first + BATCH]]) for first in range(0, full * BATCH, BATCH)]
    assert np.mean(spans) < 2
    assert np.ptp(lengths) == 45


def test_sampler_mixes_short_and_long_batches(lengths):
    """The batches do not come sorted, which would make the end of an epoch unlike its beginning."""
    indices = order(lengths)
    means = [lengths[indices[first : first + BATCH]].mean() for first in range(0, len(lengths) - BATCH, BATCH)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.4


# What it prints

HEALTHY = {"loss": 0.3, "kl_gaussian": 0.6, "kl_dirichlet": 0.01, "bleu": 60.0, "kept": 0.5}


@pytest.mark.parametrize(
    ("changes", "bare", "found"),
    [
        ({}, 2.0, set()),
        ({"kl_gaussian": 0.01, "bleu": 2.3}, 2.0, {"collapse"}),
        ({"kl_gaussian": 0.01}, 2.0, set()),  # little information, and well used
        ({"bleu": 2.3}, 2.0, set()),  # much information, not used yet
        ({"kl_gaussian": 0.01, "bleu": 2.3}, None, set()),
        ({"kept": 1.0}, None, {"all kept"}),
        ({"kept": 0.0}, None, {"all dropped"}),
        ({"points_loss": 0.25}, None, set()),
        ({"points_loss": 0.01}, None, {"mean"}),
        ({"kl_gaussian": 0.0, "bleu": 1.0, "kept": 0.0}, 1.0, {"collapse", "all dropped"}),
    ],
)
def test_troubles_are_noticed(changes, bare, found):
    assert set(find_troubles(HEALTHY | changes, bare, drops=True)) == found


def test_a_model_that_cannot_drop_is_not_told_to():
    assert find_troubles(HEALTHY | {"kept": 1.0}, None, drops=False) == {}


def test_line_shows_training_and_validation():
    assert log_line(5, 100, {"loss": 1.23456, "grad_norm": 3.0}) == "  5/100 training   loss 1.235"
    assert log_line(100, 100, {"eval_loss": 1.0, "eval_bleu": 50.0}) == "100/100 validation loss 1  BLEU 50"
    assert log_line(100, 100, {"train_runtime": 3.0, "train_loss": 1.0}) is None
    assert log_line(100, 100, {"learning_rate": 1.0}) is None
