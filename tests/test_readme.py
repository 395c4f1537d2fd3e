"""The Python of the README and of the docs runs, block after block, as a reader would type it."""

import random
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "```python" in page.read_text())


WORDS = ["river", "house", "green", "old", "stone", "walked", "under", "bright", "winter", "morning", "quiet", "city"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """What the pages speak of, in miniature: a text of one's own, prepared data and a run."""
    from open_nvib.text.data import PrepareConfig, prepare
    from open_nvib.text.train import train
    from open_nvib.text.train_config import ModelSettings, OptimiserSettings, TrainConfig, WatchSettings

    directory = tmp_path_factory.mktemp("workspace")
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(6, 40))).capitalize() + "." for _ in range(600)]
    (directory / "novels.txt").write_text("\n".join(sentences) + "\n")
    prepare(PrepareConfig(source=str(directory / "novels.txt"), output=str(directory / "data/enwik8"), vocab_size=200))
    config = TrainConfig(
        data=str(directory / "data/enwik8"),
        model=ModelSettings(d_model=16, ffn_size=16),
        optimiser=OptimiserSettings(steps=2, batch_size=8),
        watch=WatchSettings(evaluate_every=2, bleu_sentences=4, evaluate_sentences=8),
    )
    train(config, directory / "runs/nvae")
    return directory


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_the_page_runs(page, capsys, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
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
