"""What measurements share: numbers as cells keep them and as tables show them, and a command that measures runs."""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from open_nvib.store.files import write_json


def rounded(value: Any) -> Any:
    """Round the numbers of a cell to four decimals."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def line(*entries: object) -> str:
    return f"| {' | '.join(map(str, entries))} |"


def mean(values: Sequence[float], decimals: int) -> str:
    """Write the mean, and the standard deviation of several."""
    spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{decimals}f}{spread}"


def measure_runs(measure: Callable[[Path], dict[str, Any]], description: str | None) -> None:
    """Measure the runs that the command line names, and write and print the results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs of an experiment, ROW/SEED/run")
    parser.add_argument("--output", type=Path, required=True, help="the .json to write")
    given = parser.parse_args()
    found = {f"{path.parents[1].name} {path.parent.name}": measure(path) for path in given.runs}
    write_json(given.output, found, indent=1)
    print(json.dumps(found, indent=1))
