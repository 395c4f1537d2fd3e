"""The pages on the pretrained VAE have the numbers and the examples of its cells."""

import pytest

from tools import measure_pretrained_vae


def test_the_tables_of_the_page_are_those_of_its_cells():
    page = measure_pretrained_vae.PAGE.read_text().splitlines()
    lines = [line for line in measure_pretrained_vae.tables() if line]
    assert len(lines) > 20
    for line in lines:
        assert line in page


def test_the_page_of_examples_is_that_of_the_cells():
    page = measure_pretrained_vae.PAGE.with_stem("pretrained-vae-examples").read_text()
    assert page.splitlines() == measure_pretrained_vae.examples()


@pytest.mark.parametrize(
    ("texts", "share"),
    [(["a b c d e"], 1.0), (["a b c d", "a b c d"], 0.5), (["a a a a a a"], 1 / 3), (["a b c"], None)],
    ids=str,
)
def test_distinct_4_grams(texts, share):
    assert measure_pretrained_vae.distinct_words(texts) == (None if share is None else pytest.approx(share))
