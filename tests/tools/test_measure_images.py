"""The page on images has the numbers of its cells."""

from tools import measure_images


def test_the_tables_of_the_page_are_those_of_its_cells():
    page = (measure_images.ROOT / "docs" / "results" / "images.md").read_text().splitlines()
    lines = measure_images.tables()
    assert len(lines) > 10
    for line in lines:
        assert line in page
