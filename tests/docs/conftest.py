"""What the pages speak of, in miniature."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from running import run_command
from small_text import make_sentences

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What the pages speak of, in miniature: a text of one's own, prepared data and a run."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    sentences = make_sentences(300)
    sentences += [f"{first[:-1]}, and {second}" for first, second in pairwise(sentences)]
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
