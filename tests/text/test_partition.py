import numpy as np
import pytest

from open_nvib.text.data.partition import assign_splits, sample, split_sizes, within


def test_the_paper_gets_its_sizes():
    assert split_sizes(500_000) == (405_000, 45_000, 50_000)


@pytest.mark.parametrize("total", [1, 7, 99, 1001])
def test_every_sentence_has_a_split_and_the_seed_decides(total):
    splits = assign_splits(total, seed=3)
    assert tuple(np.bincount(splits, minlength=3)) == split_sizes(total)
    assert np.array_equal(splits, assign_splits(total, seed=3))
    assert total < 50 or not np.array_equal(splits, assign_splits(total, seed=4))


def test_bounds_are_included():
    assert within(np.array([4, 5, 20, 21]), (5, 20)).tolist() == [False, True, True, False]


@pytest.mark.parametrize("size", [200, 10_000])
def test_a_sample_keeps_the_splits_and_has_no_repetition(size):
    splits = assign_splits(3000, seed=0)
    candidates = np.random.default_rng(0).random(3000) < 0.5
    chosen = sample(candidates, splits, size=size, seed=0)
    together = np.concatenate(chosen)
    assert len(together) == len(set(together.tolist())) == min(size, candidates.sum())
    assert candidates[together].all()
    for index, rows in enumerate(chosen):
        assert (splits[rows] == index).all()
    if size == 200:
        assert tuple(map(len, chosen)) == split_sizes(200)
