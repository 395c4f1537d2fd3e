"""Small text made on the spot, and the larger corpora where they are found."""

import os
from pathlib import Path

import pytest
from small_text import make_sentences, prepare_in


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return make_sentences(1200)


@pytest.fixture
def corpus(tmp_path: Path, sentences: list[str]) -> Path:
    """One sentence a line."""
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def corpora() -> Path:
    """The folder of larger corpora: $OPEN_NVIB_CORPORA, or `shared/corpora` beside the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "corpora"
    folder = Path(os.environ.get("OPEN_NVIB_CORPORA", beside))
    if not folder.is_dir():
        pytest.skip(f"the larger corpora are not at {folder}: set OPEN_NVIB_CORPORA to where they are")
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data: 243 sentences to train on."""
    folder = tmp_path_factory.mktemp("prepared")
    return prepare_in(folder, make_sentences(300))
