"""Every code block of the README and of the docs runs, in order, as a reader would type it."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from small_text import make_sentences

from open_nvib.cli import main
from tools.blocks import Block, blocks, commands, run_python

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WITH_CODE = [page for page in PAGES if any(block.is_run for block in blocks(page))]

MODEL = ["--model.d_model=16", "--model.ffn_size=16", "--model.dropout=0"]
STEPS = ["--optimiser.steps=4", "--optimiser.batch_size=8", "--watch.evaluate_every=2", "--watch.bleu_sentences=4"]
SMALL = {
    "prepare": ["--source=my.txt", "--workers=1"],
    "train": [*MODEL, *STEPS, "--watch.evaluate_sentences=8"],
    "evaluate": ["--sentences=6", "--samples=6", "--scorer_steps=2", "--latent_sentences=4", "--interpolations=2"],
}
"""What is added to a command on a page, so that it takes moments."""


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What the pages speak of, in miniature: a text of one's own, prepared data and a run."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    sentences = make_sentences(300)
    sentences += [f"{first[:-1]}, and {second}" for first, second in zip(sentences, sentences[1:], strict=False)]
    (folder / "my.txt").write_text("\n".join(sentences) + "\n")
    (folder / "sentences.txt").write_text("\n".join(sentences[:3]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_command(["nvib", "prepare"])
        run_command(["nvib", "train", "--config", "configs/small/nvae.yaml", "--output", "runs/nvae"])
    return folder


@pytest.fixture
def workspace(built, tmp_path, monkeypatch):
    """A copy of it to work in: what one page writes, another does not see."""
    folder = tmp_path / "workspace"
    shutil.copytree(built, folder)
    monkeypatch.chdir(folder)
    return folder


def run_command(words: list[str]) -> None:
    if words[0] != "nvib":
        raise ValueError(f"{' '.join(words)}: only nvib is run here. Mark the block with why it is not run.")
    arguments = words[1:]
    try:
        main(arguments + SMALL.get(arguments[0], []))
    except SystemExit as stopped:  # as --help and --print_config do
        assert not stopped.code, f"{' '.join(words)}: exit code {stopped.code}"


def run_block(page: Path, block: Block, names: dict[str, object]) -> None:
    if block.language == "python":
        run_python(page, block, names)
    elif block.language == "sh":
        for words in commands(block):
            run_command(words)
    else:
        yaml.safe_load(block.text)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_on_the_page_runs(page, workspace):
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.is_run:
            run_block(page, block, names)


def test_readme_prints_what_it_says(workspace, capsys):
    first, *_ = (block for block in blocks(ROOT / "README.md") if block.language == "python")
    run_block(ROOT / "README.md", first, {})
    assert re.search(r"\d+% of the vectors kept, α₀ = ", capsys.readouterr().out)


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
