"""Typed settings of `nvib prepare`, `nvib evaluate` and `nvib demo`, and the recipe of prepared data."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from open_nvib.store.files import InputError
from open_nvib.store.settings import check_numbers

Layout = Literal["running", "sentences"]
TRAINED_TOKENIZER = "train"
TokenizerKind = Literal["wordpiece", "bytes"]
CORPORA = ("enwik8", "wikitext-103", "wikitext-2")
"""Sources with a name of their own."""


def paper_partitions() -> dict[str, Sequence[int]]:
    """Return the bounds of the paper's partitions, in tokens."""
    return {"short": [5, 20], "long": [21, 50]}


@dataclass(frozen=True)
class PrepareConfig:
    """Settings of `prepare`, which turns raw text into training data. The defaults prepare enwik8, as in the docs.

    Args:
        source: The text: `enwik8`, `wikitext-103`, `wikitext-2`, a file or folder (.txt, .jsonl, .csv, .parquet,
            WikiText .tokens/.raw, MediaWiki .xml; .gz and .bz2 of the text formats), or the id of a dataset on the
            Hugging Face hub.
        output: The directory to write: a new or empty one, or data that was prepared before.
        column: The column (or JSON key) that holds the text, in .jsonl, .csv, .parquet and hub datasets.
        dataset_config: The configuration of a hub dataset, where it has several.
        dataset_split: The split of a hub dataset to read. It is split again, by `seed`.
        dataset_revision: The branch, tag or commit of a hub dataset; without it, the newest.
        layout: `running` for running text, which is split into sentences, or `sentences` for one sentence a line
            (or a row), which is not split.
        language: The language of the text for the sentence splitter, such as `en`.
        drop_residue: Drop text that does not look like a sentence: no capital or digit at the start, no final
            punctuation, or markup left in it. If not given, only text that comes with markup (enwik8, WikiText and
            MediaWiki dumps) is judged so; text of your own is kept as it is.
        tokenizer: `train` for one trained on the training split, `bert-base-uncased` or any other tokenizer on
            the hub, or a local vocab.txt (read as uncased BERT's), tokenizer.json or folder of a saved tokenizer.
        tokenizer_kind: What `train` trains: `bytes`, a byte-level BPE, which knows every character, keeps case and
            spaces, and gives every text back exactly, or `wordpiece`, BERT's kind. If not given, `wordpiece` for
            enwik8 and WikiText, as in the results of the docs, and `bytes` for any other text.
        vocab_size: Entries of a trained tokenizer, with the five special tokens.
        lowercase: Whether a trained WordPiece or a local vocab.txt lowers case and strips accents, as uncased BERT.
        partitions: Smallest and largest number of tokens of each partition, both included, without special tokens.
        per_partition: Sentences to sample into each partition, its three splits together; all if there are fewer.
        limit: Stop reading after about this many sentences; without it, read all.
        seed: The seed of the split and of the sample.
        workers: Processes that clean and split text; 0 for one per core. The result does not depend on it.
    """

    source: str = "enwik8"
    output: str = "data/enwik8"
    column: str = "text"
    dataset_config: str | None = None
    dataset_split: str = "train"
    dataset_revision: str | None = None
    layout: Layout = "running"
    language: str = "en"
    drop_residue: bool | None = None
    tokenizer: str = TRAINED_TOKENIZER
    tokenizer_kind: TokenizerKind | None = None
    vocab_size: int = 3000
    lowercase: bool = True
    partitions: dict[str, Sequence[int]] = field(default_factory=paper_partitions)
    per_partition: int = 500_000
    limit: int | None = None
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("source", "output", "column", "tokenizer"):
            if not getattr(self, name):
                raise InputError(f"prepare: {name} is empty, expected a name or a path. Give --{name}.")
        if self.layout not in ("running", "sentences"):
            raise InputError(f"prepare: layout is {self.layout!r}, expected 'running' or 'sentences'.")
        if self.tokenizer_kind not in ("wordpiece", "bytes", None):
            raise InputError(f"prepare: tokenizer_kind is {self.tokenizer_kind!r}, expected 'wordpiece' or 'bytes'.")
        check_numbers(self, where="prepare: ")
        if not self.partitions:
            raise InputError("prepare: partitions is empty, expected at least one, such as {short: [5, 20]}.")
        for name, bounds in self.partitions.items():
            _check_partition(name, bounds)


def _check_partition(name: str, bounds: Sequence[int]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name == "tokenizer":
        raise InputError(
            f"prepare: partitions has the name {name!r}, expected letters, digits, - and _, and not 'tokenizer': it "
            f"names a folder. Choose another name."
        )
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise InputError(
            f"prepare: partitions has {name!r}: {list(bounds)}, expected [smallest, largest] number of tokens "
            f"with 1 <= smallest <= largest, such as [5, 20]."
        )


Part = Literal["reconstruction", "generation", "latent", "interpolation", "number"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class EvaluateConfig:
    """What to measure, and on how much.

    Args:
        split: validation or test.
        measure: which of reconstruction, generation, latent, interpolation and number: the number of vectors of a model
            that takes any.
        sentences: sentences of the split to reconstruct, chosen by the seed; 0 for all.
        generalise: partitions the model was not trained on to reconstruct, too; by default long, where the data has it.
        samples: texts to generate from the prior.
        scorer: causal, a language model, or autoencoder, which copies the sentence it scores: its numbers can be held
            against the published ones and say nothing about a language.
        scorer_steps: training steps of every scorer.
        judge: a causal language model of transformers, such as SmolLM2, a folder or an id on the hub, that was not
            trained on this data: it scores samples, interpolations and real text, too, by word.
        latent_sentences: sentences for the diagnosis of the latent; 0 for all.
        importance_samples: samples of the latent for each of them.
        interpolations: pairs of sentences to interpolate between.
        interpolation_steps: points on each path, both ends included.
        seed: of the choice of sentences, the samples and the scorers.
    """

    split: Literal["validation", "test"] = "validation"
    measure: list[Part] = field(default_factory=lambda: list(PARTS))
    sentences: int = 2000
    generalise: list[str] = field(default_factory=lambda: ["long"])
    samples: int = 20_000
    scorer: Literal["causal", "autoencoder"] = "causal"
    scorer_steps: int = 600
    judge: str | None = None
    latent_sentences: int = 200
    importance_samples: int = 64
    interpolations: int = 50
    interpolation_steps: int = 7
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [part for part in self.measure if part not in PARTS]
        if unknown or not self.measure:
            raise ValueError(f"measure is {self.measure}, expected some of {', '.join(PARTS)}.")
        check_numbers(self)

    @property
    def name(self) -> str:
        """Name under which the evaluation is kept, such as "validation-causal"."""
        return f"{self.split}-{self.scorer}"


_NOT_IN_RECIPE = ("source", "output", "workers", "column", "dataset_config", "dataset_split", "dataset_revision")
"""Settings that do not change the data, and those that the identity of the source contains."""
LEFT_OPEN = ("drop_residue", "tokenizer_kind")
"""Settings that the kind of the text decides if they are None."""


def recipe_settings(config: PrepareConfig) -> dict[str, Any]:
    """Select the settings that decide the prepared data, in JSON's own types."""
    settings = {name: value for name, value in asdict(config).items() if name not in _NOT_IN_RECIPE}
    settings["partitions"] = {name: list(bounds) for name, bounds in config.partitions.items()}
    settings["tokenizer_kind"] = config.tokenizer_kind or ("wordpiece" if config.source in CORPORA else None)
    if config.tokenizer != TRAINED_TOKENIZER:
        del settings["vocab_size"], settings["tokenizer_kind"]
    return settings


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo.

    Args:
        data: a text file or folder of your own, or enwik8, real Wikipedia, which pip can fetch.
        layout: of a text of your own: `running` text, or `sentences`, one on each line.
        output: where everything is written; `demo`, or `demo-NAME` for a text of your own, if not given.
        steps: training steps; 3,000 if not given.
        samples: texts to generate for the perplexities.
        scorer_steps: training steps of the language models that score them.
        seed: of the training.
    """

    data: str = "enwik8"
    layout: Layout = "running"
    output: str | None = None
    steps: int | None = None
    samples: int = 2_000
    scorer_steps: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, where="demo: ")

    @property
    def directory(self) -> Path:
        if self.output is not None:
            return Path(self.output).expanduser()
        return Path("demo" if self.data == "enwik8" else f"demo-{Path(self.data).stem or 'text'}")


@dataclass(frozen=True)
class Recipe:
    """What prepared data was made from and how: equal recipes make equal data."""

    source: dict[str, Any]  # what identifies the text: its name, and digests of its files
    config: dict[str, Any]  # the settings that decide the result, and digests of a local tokenizer's files

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, with the default of each that is newer than the recipe."""
        tokenizer = self.config.get("tokenizer", TRAINED_TOKENIZER)
        defaults = PrepareConfig(tokenizer=tokenizer, tokenizer_kind="wordpiece", drop_residue=True)
        return {**recipe_settings(defaults), **self.config}

    def differences(self, other: "Recipe") -> list[str]:
        """Name what differs in another recipe, as in "seed was 0, now 5"; empty if the two make equal data.

        Where the other one leaves a setting to the kind of the text (LEFT_OPEN), what this one did is right.
        """
        old, new = ({**recipe.source, **recipe.settings} for recipe in (self, other))
        return [
            f"{name} differ" if name.endswith("files") else f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
            for name in {**old, **new}
            if old.get(name) != new.get(name) and not (name in LEFT_OPEN and new.get(name, "") is None)
        ]
