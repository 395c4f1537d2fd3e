"""The documentation as a site: it builds without a warning, every link leads somewhere, all of it is local."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from html_links import problems, read_page

import open_nvib

ROOT = Path(__file__).parents[2]
ANOTHER_HOST = re.compile(r"""(?:url\(|@import )["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built from a copy: a site has to lie inside its project."""
    project = tmp_path_factory.mktemp("project")
    for name in ("docs", "src", "tools"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", project)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "griffe:" not in built.stderr, built.stderr  # a docstring that does not say what its function takes
    return project / "site"


def test_every_link_anchor_and_file_is_there_and_none_is_loaded_from_elsewhere(site):
    assert problems(site) == []


def test_style_sheets_load_nothing_from_elsewhere(site):
    sheets = list(site.rglob("*.css"))
    assert sheets
    assert [sheet.name for sheet in sheets if ANOTHER_HOST.search(sheet.read_text())] == []


def test_every_public_name_is_in_the_reference(site):
    anchors = read_page(site / "reference/library/index.html").anchors
    assert [name for name in open_nvib.__all__ if f"open_nvib.{name}" not in anchors] == []


def test_every_page_of_the_docs_is_in_the_navigation(site):
    navigation = (ROOT / "zensical.toml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f'"{page}"' not in navigation] == []


def test_equations_are_mathml_and_none_is_left_as_latex(site):
    theory = (site / "theory/index.html").read_text()
    assert theory.count('display="block"') >= 5
    for page in site.rglob("index.html"):
        article = re.sub(r"<(code|pre|script|math).*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert "$$" not in article, page
        assert not re.search(r"\\(frac|alpha|sum|text|left)\b", article), page


def test_what_is_wrong_is_found(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/index.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other/#here">good</a> <a href="other/#there">no anchor</a> <a href="gone/">no page</a>'
        '<img src="gone.svg"> <script src="https://cdn.example/x.js"></script> <a href="https://example.org">a link</a>'
        '<link rel="stylesheet" href="//fonts.example/css">'
    )
    assert problems(tmp_path) == [
        "index.html: gone.svg is not there",
        "index.html: gone/ is not there",
        "index.html: loads //fonts.example/css from another host",
        "index.html: loads https://cdn.example/x.js from another host",
        "index.html: other/#there has no such anchor",
    ]
