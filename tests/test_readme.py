"""The Python of the README and of the docs runs, block after block, as a reader would type it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "```python" in page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_the_page_runs(page, capsys):
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    if page.name == "README.md":
        assert "of the vectors kept" in capsys.readouterr().out


def test_every_public_name_is_on_the_notation_page_or_in_the_readme():
    import open_nvib

    text = "".join((ROOT / page).read_text() for page in ("README.md", "docs/notation.md", "CONTRIBUTING.md"))
    helpers = {"KL", "ProjectedGaussians", "ProjectedImpulses"}
    assert [name for name in open_nvib.__all__ if name not in text and name not in helpers] == []


def test_links_of_the_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
