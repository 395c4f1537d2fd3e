"""Whether one row of an experiment reconstructs better than another: differences of BLEU with their intervals.

python -m tools.compare_rows experiments/table.yaml nvae-0.1:vts-0.5 nvae-0.1:t --output docs/results/table/pairs.json

Both rows reconstruct the sentences that the experiment measures. The interval is of a paired bootstrap over these
sentences, of the mean over the seeds that both rows have.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from open_nvib.evaluation.references import choose
from open_nvib.experiments.experiment import Cell, load_experiment
from open_nvib.store.cells import read_cell
from open_nvib.store.files import write_json
from open_nvib.text.data import load_prepared
from open_nvib.text.model.decoding import reconstruct_ids
from open_nvib.text.using.run import load_run
from tools.bootstrap import differences_of_bleu, interval

Texts = dict[str, dict[int, tuple[list[str], list[str]]]]
"""Of each partition and seed: the sentences that were measured, and what the model made of them."""


def reconstruct(cells: list[Cell]) -> Texts:
    """Reconstruct the sentences that were measured in these cells of one row, as they were then."""
    found: Texts = {}
    for cell in cells:
        run, data = load_run(cell.run), load_prepared(cell.train.data)
        for partition in read_cell(cell.result_file).evaluations[cell.evaluate.name].reconstruction or {}:
            rows = map(list, data.split(partition, cell.evaluate.split)["input_ids"])
            texts = [text for text in rows if len(text) <= run.longest]
            texts = choose(texts, cell.evaluate.sentences, cell.evaluate.seed)
            decoded = [list(ids) for ids in reconstruct_ids(run.model, texts)]
            both = run.tokenizer.batch_decode(texts), run.tokenizer.batch_decode(decoded)
            found.setdefault(partition, {})[cell.seed] = both
    return found


def compare(first: Texts, second: Texts) -> dict[str, dict[str, Any]]:
    """Compare two rows on each partition, over the seeds that both have; they must have one in common."""
    found = {}
    for partition, ours in first.items():
        seeds = sorted(ours.keys() & second[partition].keys())
        pairs = [(ours[seed][1], second[partition][seed][1]) for seed in seeds]
        differences = differences_of_bleu(pairs, ours[seeds[0]][0])
        by_seed = dict(zip(map(str, seeds), differences[0].tolist(), strict=True))
        found[partition] = {**interval(differences.mean(1)), "seeds": by_seed}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("pairs", nargs="+", metavar="FIRST:SECOND", help="two rows to compare")
    parser.add_argument("--output", type=Path, required=True, help="the .json to write")
    given = parser.parse_args()
    cells = load_experiment(given.experiment).cells([row for pair in given.pairs for row in pair.split(":")])
    done = [cell for cell in cells if cell.result_file.is_file()]
    texts = {row: reconstruct([cell for cell in done if cell.row == row]) for row in {cell.row for cell in done}}
    found = {pair: compare(*(texts[row] for row in pair.split(":"))) for pair in given.pairs}
    write_json(given.output, found, indent=1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
