"""The runs that a page shows, each under a name, and texts to try them on."""

from collections.abc import Sequence
from pathlib import Path

from open_nvib.store.files import InputError
from open_nvib.store.runs import read_metrics
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import Run, load_run

EXAMPLES = (
    "The museum was opened in 1923.",
    "He was born in London and studied at the university.",
    "It is one of the largest cities in the country.",
    "The river flows into the sea.",
)
MAX_EXAMPLE_LETTERS = 120


def open_runs(paths: Sequence[str | Path], *, device: str | None = None) -> dict[str, Run]:
    """Load each run, named by as much of its path as tells it from the others."""
    if not paths:
        raise InputError("no run given. Give one or more directories that `nvib train` wrote.")
    resolved = list(dict.fromkeys(Path(path).expanduser().resolve() for path in paths))
    return {name: load_run(path, device=device) for name, path in zip(_names(resolved), resolved, strict=True)}


def example_texts(run: Run) -> list[str]:
    """Short real sentences: of the run's evaluation, else of its data, else plain English."""
    for texts in (_evaluated_texts(run), _validation_texts(run)):
        short = [text for text in texts if 0 < len(text.strip()) < MAX_EXAMPLE_LETTERS]
        if len(short) >= 2:
            return short[: len(EXAMPLES)]
    return list(EXAMPLES)


def _evaluated_texts(run: Run) -> list[str]:
    """What `nvib evaluate` kept as examples."""
    try:
        evaluations = read_metrics(run.path).evaluations
    except InputError:
        return []  # damaged: there are other texts to show
    partitions = [found.reconstruction for found in evaluations.values() if found.reconstruction]
    return [example.text for example in next(iter(partitions[0].values())).examples] if partitions else []


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
