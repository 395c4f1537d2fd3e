"""The pages on the pretrained VAE have the numbers and the examples of its cells."""

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
