import numpy as np
import pytest
import torch

from open_nvib.text.model.decoding import POOL, Collator, LengthGroupedSampler

BATCH = 7


@pytest.fixture(scope="module")
def lengths():
    return np.random.default_rng(0).integers(5, 51, size=BATCH * POOL * 3 + 4)


def order(lengths, *, seed: int = 0, epoch: int = 0) -> list[int]:
    sampler = LengthGroupedSampler(lengths, BATCH, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, BATCH * POOL, BATCH * POOL * 3 + 4])
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


def test_collator_pads_texts_and_ends_labels():
    batch = Collator(pad_token_id=0, eos_token_id=2)([{"input_ids": [5, 6, 7]}, {"input_ids": np.array([8])}])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, 2], [8, 2, -100, -100]]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_collator_keeps_a_token_that_looks_like_padding():
    """What is real is told by the length, not by the id."""
    batch = Collator(pad_token_id=0, eos_token_id=2)([{"input_ids": [5, 0]}])
    assert batch["attention_mask"].tolist() == [[1, 1]]
    assert batch["labels"].tolist() == [[5, 0, 2]]
