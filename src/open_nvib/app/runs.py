"""The runs that a page shows, each under a name, and texts to try them on."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import InputError
from open_nvib.store.runs import read_metrics
from open_nvib.text.data import load_prepared
from open_nvib.text.model.vector_count import pairs_of_one_length
from open_nvib.text.using.run import Run, load_run

EXAMPLES = (
    "The museum was opened in 1923.",
    "He was born in London and studied at the university.",
    "It is one of the largest cities in the country.",
    "The river flows into the sea.",
)
MAX_EXAMPLE_LETTERS = 120
PAIRS = 3


def open_runs(paths: Sequence[str | Path], *, device: str | None = None) -> dict[str, Run]:
    """Load each run, named by as much of its path as tells it from the others."""
    if not paths:
        raise InputError("no run given. Give one or more directories that `nvib train` wrote.")
    resolved = list(dict.fromkeys(Path(path).expanduser().resolve() for path in paths))
    return {name: load_run(path, device=device) for name, path in zip(_names(resolved), resolved, strict=True)}


def example_texts(run: Run) -> list[str]:
    """Short real sentences: of the run's evaluation, else of its data, else plain English."""
    evaluated = [
        example.text for found in _evaluations(run) if found.trained_on for example in found.trained_on.examples
    ]
    for texts in (list(dict.fromkeys(evaluated)), _validation_texts(run)):
        short = [text for text in texts if 0 < len(text.strip()) < MAX_EXAMPLE_LETTERS]
        if len(short) >= 2:
            return short[: len(EXAMPLES)]
    return list(EXAMPLES)


def example_pairs(runs: Mapping[str, Run]) -> list[tuple[str, str]]:
    """Pairs of sentences of one length, the first easy and the second hard for a run trained for any number of vectors.

    Of the run's evaluation, else found among the texts to try; neighbours of these if no run was trained so.
    """
    for run in filter(takes_any_number, runs.values()):
        parts = [found.number_trained_on for found in _evaluations(run)]
        if texts := [example.text for part in parts if part for example in part.examples]:
            return list(zip(texts[::2], texts[1::2], strict=True))[:PAIRS]
        texts = [text for text in _validation_texts(run) or EXAMPLES if len(text) < MAX_EXAMPLE_LETTERS]
        chosen = list(run.tokenize_usable(texts)[0].values())
        pairs = pairs_of_one_length(chosen, run.find_fewest(chosen), PAIRS) if chosen else []
        texts = run.tokenizer.batch_decode(chosen)
        if found := [(texts[easy], texts[hard]) for easy, hard in pairs if easy != hard]:
            return found
    return list(pairwise(example_texts(next(iter(runs.values())))))


def takes_any_number(run: Run) -> bool:
    """Whether the run was trained for any number of vectors, so that a search for the fewest makes sense."""
    return run.model.encoder.bottleneck.any_number and run.model.config.shares is not None


def trained_share(run: Run) -> float:
    """Vectors for each token that a run gives a text if nobody asks for a number, for a run that can be asked."""
    values = run.model.encoder.bottleneck.scheduled()
    return values["keep_share"] if "keep_share" in values else 1 - run.model.config.stride


def unseen_length(run: Run, ids: Sequence[int]) -> str:
    """A warning if no training sentence is as short or as long as this text; nothing if there are such."""
    if run.trained_lengths is None or run.trained_lengths[0] <= len(ids) <= run.trained_lengths[1]:
        return ""
    low, high = run.trained_lengths
    return f"{len(ids)} tokens: this run was trained with {low} to {high}, so expect it to do worse."


def _evaluations(run: Run) -> list[Evaluation]:
    try:
        return list(read_metrics(run.path).evaluations.values())
    except InputError:
        return []  # damaged: there are other texts to show


def _validation_texts(run: Run) -> list[str]:
    """The first sentences of the run's data that it was not trained on, where the data still is."""
    try:
        split = load_prepared(run.config.data).split(run.config.partition, "validation")
    except InputError:
        return []
    return split[:100]["text"]


def _names(paths: Sequence[Path]) -> list[str]:
    """The end of each path, as long as it must be; what all ends have in common (seed-0/run) is left out."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    ends = [path.parts[-depth:] for path in paths]
    while len(paths) > 1 and len(ends[0]) > 1 and len({end[-1] for end in ends}) == 1:
        ends = [end[:-1] for end in ends]
    return ["/".join(end) for end in ends]
