"""Small text made on the spot, for every test that trains."""

import random
from pathlib import Path

from open_nvib.text.data import PrepareConfig, prepare
from open_nvib.text.model.autoencoder import AutoencoderOutput

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


def prepare_in(folder: Path, sentences: list[str]) -> Path:
    """Prepare sentences of 5 to 24 tokens in `folder`. Returns the directory of the data."""
    (folder / "corpus.txt").write_text("\n".join(sentences))
    config = PrepareConfig(
        source=str(folder / "corpus.txt"),
        output=str(folder / "data"),
        layout="sentences",
        partitions={"short": [5, 24]},
        tokenizer_kind="wordpiece",
        vocab_size=250,
        workers=1,
    )
    return prepare(config).path


# The run-time check of constructors knows a dataclass by its fields, and so refuses that Hugging Face builds an output
# from a dictionary.
AutoencoderOutput.__init__ = AutoencoderOutput.__init__.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
