"""The runs that a page shows, each under a name, and texts to try them on."""

from collections.abc import Sequence
from pathlib import Path

from open_nvib.store.files import InputError
from open_nvib.store.runs import EVALUATIONS, read_metrics
from open_nvib.text.model.bottlenecks import PlainBottleneck
from open_nvib.text.using.run import Run, load_run

EXAMPLES = (
    "The museum was opened in 1923.",
    "He was born in London and studied at the university.",
    "It is one of the largest cities in the country.",
    "The river flows into the sea.",
)


def open_runs(paths: Sequence[str | Path], *, device: str | None = None) -> dict[str, Run]:
    """Load each run, named by as much of its path as tells it from the others."""
    if not paths:
        raise InputError("no run given. Give one or more directories that `nvib train` wrote.")
    resolved = list(dict.fromkeys(Path(path).expanduser().resolve() for path in paths))
    return {name: load_run(path, device=device) for name, path in zip(_names(resolved), resolved, strict=True)}


def example_texts(run: Run, count: int = 4) -> list[str]:
    """Short texts of the kind the model knows: from its evaluation, else from its prior, else plain English."""
    known = [text for text in _evaluated_texts(run.path) if len(text) < 120]
    if len(known) >= 2:
        return known[:count]
    if isinstance(run.model.encoder.bottleneck, PlainBottleneck):
        return list(EXAMPLES[:count])
    texts = [text for text in run.sample(2 * count) if text.strip()]
    return texts[:count] if len(texts) >= 2 else list(EXAMPLES[:count])


def _names(paths: Sequence[Path]) -> list[str]:
    """The end of each path, as long as it must be; what all ends have in common (seed-0/run) says nothing."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    ends = [path.parts[-depth:] for path in paths]
    while len(paths) > 1 and len(ends[0]) > 1 and len({end[-1] for end in ends}) == 1:
        ends = [end[:-1] for end in ends]
    return ["/".join(end) for end in ends]


def _evaluated_texts(run: Path) -> list[str]:
    """What `nvib evaluate` kept as examples."""
    try:
        evaluations = read_metrics(run)[EVALUATIONS]
        record = evaluations.get("validation-causal") or next(iter(evaluations.values()))
        partition = next(iter(record["reconstruction"].values()))
        return [str(example["text"]) for example in partition["examples"]]
    except (InputError, LookupError, TypeError, AttributeError, StopIteration):
        return []  # not evaluated, or not by us: the page has other texts to show
