"""The page on images has the numbers of its cells."""

from tools import measure_images


def test_the_tables_of_the_page_are_those_of_its_cells():
    page = (measure_images.ROOT / "docs" / "results" / "images.md").read_text().splitlines()
    lines = [line for table in measure_images.tables() for line in table]
    assert len(lines) > 10
    for line in lines:
        assert line in page


def test_the_tables_of_a_page_are_written_anew(tmp_path):
    page, separator = tmp_path / "page.md", "| --- | --: |"
    tables = measure_images.tables()
    texts = ["# Page", "", "| row | what |", "|---|---|", "| any | kept as it is |", "", "words"]
    for number, table in enumerate(tables):
        texts += ["", f"| table {number} | head |", separator, "| old | 1 |", *table[:1], "", "| words, no table"]
    page.write_text("\n".join(texts))
    measure_images.write_tables(page)
    written = page.read_text().splitlines()
    assert written[:7] == texts[:7]
    assert "| old | 1 |" not in written
    assert written.count("| words, no table") == len(tables)
    for number, table in enumerate(tables):
        start = written.index(f"| table {number} | head |") + 2
        assert written[start : start + len(table) + 1] == [*table, ""]
    once = page.read_text()
    measure_images.write_tables(page)
    assert page.read_text() == once
