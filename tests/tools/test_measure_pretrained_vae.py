"""The pages on the pretrained VAE have the numbers and the examples of its cells."""

import json

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


def test_marks_leave_the_text_as_it_is():
    cell = json.loads((measure_pretrained_vae.CELLS / "gates-5.json").read_text())["gates"]
    for marked, (text, _) in zip(cell["marked"], cell["examples"], strict=True):
        assert "[" in marked
        assert marked.replace("[", "").replace("]", "") == text
