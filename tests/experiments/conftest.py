"""Small prepared data, and an experiment on it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import write_experiment
from small_text import make_sentences, prepare_in


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_in(tmp_path_factory.mktemp("prepared"), make_sentences(200))


@pytest.fixture
def experiment(tmp_path: Path, data: Path) -> Callable[..., Path]:
    """Writes an experiment of two rows and two seeds, with changes. Returns its file."""
    return lambda **changes: write_experiment(tmp_path, data, **changes)
