"""Draw the figures of docs/results/recipe.md: a dial against a stride, and the vectors kept at one share.

python -m tools.dial experiments/recipe.yaml --row keep-0.5 --output docs/results/recipe
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from open_nvib.experiments.experiment import Experiment, load_experiment
from open_nvib.report import read_results
from open_nvib.report.figures.comparisons import AXES, fit_axis
from open_nvib.report.figures.models import draw_vectors
from open_nvib.report.figures.style import EDGE, canvas, look_of, style, to_svg
from open_nvib.report.measures import BLEU, FORWARD, KEPT, REVERSE
from open_nvib.report.results import Results
from open_nvib.store.files import InputError, write_text


def draw_dial(
    results: Results, *, families: Sequence[str] = ("NVAE", "VTS"), without: Sequence[str] = ()
) -> str | None:
    """Draw BLEU, F-PPL and R-PPL against ν, a line for each family; rows `without` differ in more than the dial."""
    rows = [(row, kept) for row in results.measured if row.name not in without and (kept := row.mean(KEPT.read))]
    rows = sorted((pair for pair in rows if pair[0].family in families), key=lambda pair: pair[1].mean)
    if not rows:
        return None
    with style():
        figure, grid = canvas(3.2, columns=3, width=9.0)
        for axes, measure in zip(grid, (BLEU, FORWARD, REVERSE), strict=True):
            values = []
            for family in families:
                points = [(x, row.mean(measure.read)) for row, x in rows if row.family == family]
                there = [(x, y) for x, y in points if y]
                look = look_of(family)
                axes.errorbar(
                    [x.mean for x, _ in there],
                    [y.mean for _, y in there],
                    xerr=[x.sd or 0.0 for x, _ in there],
                    yerr=[y.sd or 0.0 for _, y in there],
                    fmt=f"-{look.marker}",
                    color=look.colour,
                    linewidth=1.3,
                    elinewidth=1.0,
                    capsize=2.5,
                    label=family,
                    **EDGE,
                )
                values += [y.mean for _, y in there]
            axes.set(xlabel=AXES[KEPT], xlim=(0, 1.05))
            fit_axis(axes, "y", results, measure, values)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return to_svg(figure)


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
