"""Draw the figures of docs/results/recipe.md: a dial against a stride, and the vectors kept at one share.

python -m tools.dial experiments/recipe.yaml --row keep-0.5 --output docs/results/recipe
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from open_nvib.experiments.experiment import Experiment, load_experiment
from open_nvib.report import read_results
from open_nvib.report.figures.models import draw_vectors
from open_nvib.store.files import InputError, write_text
from tools.figures_of_docs.dial import draw_dial


def draw(experiment: Experiment, row: str, output: Path, *, without: Sequence[str] = ()) -> list[Path]:
    """Write dial.svg, and lengths.svg of one row."""
    results = read_results(experiment, experiment.output, evaluation=experiment.evaluate.name)
    chosen = next((member for member in results.measured if member.name == row), None)
    if chosen is None:
        names = ", ".join(member.name for member in results.measured)
        raise InputError(f"{experiment.path}: no cell of the row {row!r} is measured; available: {names}.")
    texts = {
        "dial.svg": draw_dial(results, without=without),
        "lengths.svg": draw_vectors(chosen.evaluations, family=chosen.family, name=chosen.title),
    }
    output.mkdir(parents=True, exist_ok=True)
    written = {output / name: text for name, text in texts.items() if text is not None}
    for path, text in written.items():
        write_text(path, text)
    return list(written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--row", required=True)
    parser.add_argument("--without", nargs="*", default=[], help="rows that differ in more than the dial")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    for path in draw(load_experiment(given.experiment), given.row, given.output, without=given.without):
        print(path)


if __name__ == "__main__":
    main()
