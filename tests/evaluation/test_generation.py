"""Distinct n-grams by hand, self-BLEU against sacrebleu."""

import numpy as np
import pytest
import sacrebleu

from open_nvib.evaluation.generation import count_lengths, distinct_shares, self_bleu


def test_distinct_n_grams_counted_by_hand():
    texts = [[5, 6, 5, 6], [5, 6, 7]]
    assert distinct_shares(texts) == {1: 3 / 7, 2: 3 / 5, 3: 3 / 3, 4: 1 / 1}  # 2: 56 65 67 of 56 65 56 56 67
    assert distinct_shares([[5], [6]]) == {1: 1.0, 2: None, 3: None, 4: None}


@pytest.mark.parametrize(
    ("texts", "share"),
    [(["a b c d e"], 1.0), (["a b c d", "a b c d"], 0.5), (["a a a a a a"], 1 / 3), (["a b c"], None)],
    ids=str,
)
def test_distinct_4_grams_of_words(texts, share):
    found = distinct_shares([text.split() for text in texts])[4]
    assert found == (None if share is None else pytest.approx(share))


def test_lengths_are_counted_from_zero():
    assert count_lengths([[5, 6], [], [7, 8], [9]]) == (1, 1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_self_bleu_is_sacrebleu_against_all_other_texts(seed):
    """Texts of tokens 1-4, so that there are matches of all orders, as words for sacrebleu."""
    generator = np.random.default_rng(seed)
    texts = [generator.integers(1, 5, length).tolist() for length in generator.integers(4, 15, 12)]
    words = [" ".join(f"w{token}" for token in text) for text in texts]
    others = [[words[(index + shift) % len(words)] for index in range(len(words))] for shift in range(1, len(words))]
    expected = sacrebleu.corpus_bleu(words, others, tokenize="none", smooth_method="none").score
    assert self_bleu(texts) == pytest.approx(expected, rel=1e-6)


def test_texts_that_are_all_the_same_are_not_diverse():
    texts = [[5, 6, 7, 8, 9]] * 20
    assert self_bleu(texts) == pytest.approx(100)
    assert distinct_shares(texts)[1] == 5 / 100


def test_one_text_has_nothing_to_differ_from():
    assert self_bleu([[5, 6, 7], []]) is None
    assert self_bleu([[5, 6, 7, 8, 9], [1, 2, 3, 4, 10]]) == 0.0
