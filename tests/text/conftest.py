"""Small text made on the spot, and the larger corpora where they are found."""

import os
import random
from pathlib import Path

import pytest

SUBJECTS = [
    "The old river",
    "A young painter",
    "Her sister",
    "The council",
    "Nobody",
    "This machine",
    "Every winter, he",
]
VERBS = ["crossed", "described", "sold", "remembered", "measured", "opposed", "rebuilt", "admired"]
OBJECTS = ["the northern border", "a large collection of maps", "three small villages", "the first electric railway"]
ENDS = ["in 1984", "without any help", "near the coast", "for many years", "after the war", "against all advice"]


def make_sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct sentences of some 8 to 20 tokens."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        words = [generator.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDS)]
        extra = f" and {generator.choice(VERBS)} {generator.choice(OBJECTS)}" if generator.random() < 0.7 else ""
        found[f"{words[0]} {words[1]} {words[2]}{extra} {words[3]}."] = None
    return list(found)


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
        pytest.skip("the larger corpora are not here")
    return folder
