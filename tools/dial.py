"""Draw the figures of docs/results/recipe.md: a dial against a stride, and what one of its positions keeps.

python -m tools.dial experiments/recipe.yaml --row keep-0.5 --output docs/results/recipe
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from open_nvib.evaluation.reconstruction import tokens_kept
from open_nvib.evaluation.references import choose
from open_nvib.experiments.experiment import Experiment, load_experiment
from open_nvib.report import Plan, read_results
from open_nvib.report.figures.models import draw_vectors
from open_nvib.store.files import InputError, write_text
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import load_run
from tools.figures_of_docs.dial import draw_dial, draw_tokens


def draw(experiment: Experiment, row: str, output: Path, *, without: Sequence[str] = ()) -> list[Path]:
    """Write dial.svg, and of one row lengths.svg, tokens.svg and the numbers behind it, tokens.json."""
    kind = f"{experiment.evaluate.split}-{experiment.evaluate.scorer}"
    results = read_results(Plan.of(experiment), experiment.output, evaluation=kind)
    chosen = next((member for member in results.measured if member.name == row), None)
    if chosen is None:
        names = ", ".join(member.name for member in results.measured)
        raise InputError(f"{experiment.path}: no cell of the row {row!r} is measured; available: {names}.")
    seeds = []
    for cell in experiment.cells([row]):
        if cell.run.is_dir():
            prepared = load_prepared(cell.train.data)
            held_out = list(prepared.split(cell.train.partition, experiment.evaluate.split)["input_ids"])
            texts = choose(held_out, experiment.evaluate.sentences, experiment.evaluate.seed)
            training = prepared.split(cell.train.partition, "train")["input_ids"]
            seeds.append(tokens_kept(load_run(cell.run), texts, training))
    texts = {
        "dial.svg": draw_dial(results, without=without),
        "lengths.svg": draw_vectors(chosen.evaluations, family=chosen.family, name=chosen.title),
        "tokens.svg": draw_tokens(seeds, family=chosen.family),
        "tokens.json": json.dumps([[asdict(group) for group in groups] for groups in seeds], indent=1) + "\n",
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
