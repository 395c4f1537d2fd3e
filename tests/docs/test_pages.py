"""Every code block of the README and of the docs runs, in order, as a reader would type it."""

import re
from pathlib import Path

import pytest
import torch
from running import run_block, run_command

from tools.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WITH_CODE = [page for page in PAGES if any(block.is_run for block in blocks(page))]
LONGEST = ROOT / "docs" / "evaluation.md"
"""It trains scorers: most of a minute."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page == LONGEST else ()) for page in WITH_CODE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_the_page_runs(page, workspace):
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.is_run:
            run_block(page, block, names)


def test_the_first_page_is_short_and_ends_in_a_loss(workspace):
    text = (ROOT / "README.md").read_text().splitlines()
    assert len(text) <= 110
    assert text.index("## Install") < 25
    names: dict[str, object] = {}
    first, *_ = (block for block in blocks(ROOT / "README.md") if block.language == "python")
    run_block(ROOT / "README.md", first, names)
    assert torch.isfinite(names["loss"])  # pyright: ignore[reportArgumentType]


def test_a_block_is_run_or_says_why_not(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\n\n<!-- not run: too long -->\n```sh\nmake test\n```\n\n```text\nhi\n```\n")
    assert [(block.language, block.not_run) for block in blocks(page)] == [
        ("python", None),
        ("sh", "too long"),
        ("text", None),
    ]
    for wrong in ("<!-- not run -->\n```sh\nx\n```\n", "<!-- not run: why -->\n\n```sh\nx\n```\n", "```bash\nx\n```\n"):
        page.write_text(wrong)
        with pytest.raises(ValueError, match=re.escape(page.name)):
            blocks(page)
    with pytest.raises(ValueError, match="only nvib is run here"):
        run_command(["make", "test"])


def test_links_of_the_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
