"""Results of cells: those of the documentation are read without loss, and exported as they are."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from open_nvib.store.cells import LARGEST_BYTES, TrainingResult, check_export, export_cells, read_cell, read_cells
from open_nvib.store.evaluations import upgrade
from open_nvib.store.files import InputError, as_builtins
from open_nvib.store.runs import LogEntry, append_log

COMMITTED = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*/cells"))


def missing(before: Any, after: Any, path: str = "") -> list[str]:
    """List the entries of `before` that `after` has not, or has with another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for name in before for line in missing(before[name], after.get(name), f"{path}/{name}")]
    return [] if before == after else [path]


def leaves(value: Any) -> list[str]:
    if isinstance(value, (dict, list)):
        return [leaf for entry in (value.values() if isinstance(value, dict) else value) for leaf in leaves(entry)]
    return [repr(value)]


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.parent.name)
def test_committed_results_are_read_without_loss(folder):
    cells = read_cells(folder)
    assert len(cells) == len(list(folder.glob("*.json"))) > 0
    for cell in cells:
        assert cell.path is not None
        written = json.loads(cell.path.read_text())
        assert sorted(leaves(upgrade(written))) == sorted(leaves(written))  # renamed, not lost
        assert missing(upgrade(written), as_builtins(cell)) == []
        assert cell.export_name == cell.path.name
        for name, evaluation in cell.evaluations.items():
            assert evaluation.name == name
            assert evaluation.trained_on is not None
            assert math.isfinite(evaluation.trained_on.bleu or math.nan)


def write(folder: Path, row: str = "t", seed: int = 0, **entries: Any) -> Path:
    path = folder / row / f"seed-{seed}" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"row": row, "seed": seed, "evaluations": {}} | entries))
    return path


def test_results_are_exported_as_they_are(tmp_path):
    path = write(tmp_path / "runs", later={"of": "another version"})
    write(tmp_path / "runs", row="vt", seed=1, label="x" * LARGEST_BYTES)
    (remark,) = export_cells(read_cells(tmp_path / "runs"), tmp_path / "cells")
    assert "vt-seed-1.json" in remark
    assert (tmp_path / "cells" / "t-seed-0.json").read_text() == path.read_text()
    assert [(cell.row, cell.seed) for cell in read_cells(tmp_path / "cells")] == [("t", 0), ("vt", 1)]


def test_a_file_of_the_user_is_not_overwritten(tmp_path):
    write(tmp_path / "runs")
    cells = read_cells(tmp_path / "runs")
    (tmp_path / "t-seed-0.json").write_text('{"notes": 3}')
    (tmp_path / "file").write_text("")
    for folder, name in ((tmp_path, r"t-seed-0\.json"), (tmp_path / "file", "file")):
        with pytest.raises(InputError, match=name):
            check_export(cells, folder)


@pytest.mark.parametrize(
    ("entries", "name"), [({"seed": "0"}, "seed"), ({"evaluations": {"a": {"settings": {}}}}, "config")]
)
def test_a_result_that_does_not_fit_is_one_line_with_the_entry(tmp_path, entries, name):
    path = write(tmp_path, **entries)
    with pytest.raises(InputError, match=rf"result\.json: .*{name}") as stopped:
        read_cell(path)
    assert len(str(stopped.value).splitlines()) == 1


def test_a_missing_folder_and_a_cell_that_is_there_twice_are_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        read_cells(tmp_path / "nowhere")
    write(tmp_path)
    write(tmp_path, row="copy", seed=0).write_text('{"row": "t", "seed": 0, "evaluations": {}}')
    with pytest.raises(InputError, match=r"'t' seed 0"):
        read_cells(tmp_path)


@pytest.mark.parametrize(
    ("bleu", "rise"),
    [
        ({250: 61.0, 750: 83.0, 1000: 89.5}, 6.5),
        ({900: 83.0, 1000: 89.5}, None),
        ({250: 61.0, 750: 83.0}, None),
        ({}, None),
    ],
)
def test_the_rise_of_bleu_over_the_last_quarter(tmp_path, bleu, rise):
    (tmp_path / "metrics.json").write_text(json.dumps({"step": 1000, "validation": {"bleu": 89.5}, "evaluations": {}}))
    for step, value in bleu.items():
        append_log(tmp_path, LogEntry(step, {"eval_bleu": value}))
        append_log(tmp_path, LogEntry(step, {"loss": 1.0}))
    assert TrainingResult.of(tmp_path) == TrainingResult(1000, {"bleu": 89.5}, rise)
