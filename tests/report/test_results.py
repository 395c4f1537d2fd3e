"""Cells to rows: mean and deviation by hand, order, what is missing, what is not ours."""

import json
import math
import re
from dataclasses import replace

import pytest
from factory import make_cell, make_evaluation, make_number, make_plan, make_record, write_cell

from open_nvib.report import Plan, RowPlan, read_results
from open_nvib.report.measures import BLEU, FORWARD, PATHS, mean_and_deviation, read_at, write_number
from open_nvib.report.results import RowResults, group, select_nvae, short_settings
from open_nvib.report.tables import training_table
from open_nvib.store.cells import CellResult, export_cells, read_cells
from open_nvib.store.files import InputError


def test_mean_and_deviation_by_hand():
    three = mean_and_deviation([61.0, 67.0, 79.0])
    assert three
    assert three.mean == pytest.approx(69.0)
    assert three.sd == pytest.approx(math.sqrt((8**2 + 2**2 + 10**2) / 2))
    one = mean_and_deviation([5.0])
    assert one
    assert (one.mean, one.sd) == (5.0, None)
    assert mean_and_deviation([]) is None


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1234.5, 1, "1,234.5"),
        (-3.14159, 2, "−3.14"),
        (-0.001, 2, "0.00"),
        (0.5, 0, "0"),
        (math.inf, 1, "∞"),
        (-1.26e17, 2, "−1.3×10¹⁷"),
    ],
)
def test_numbers_are_written_for_readers(value, decimals, text):
    assert write_number(value, decimals) == text


def test_rows_have_the_order_of_the_plan_and_the_mean_of_their_seeds(results):
    assert [row.name for row in results.rows] == ["t", "vt", "vts-0.5", "nvae-0.01", "nvae-1"]
    nvae = results.rows[3]
    bleu = nvae.mean(BLEU.read)
    assert (bleu.mean, bleu.sd) == (pytest.approx(69.0), pytest.approx(math.sqrt(84)))
    assert nvae.values(FORWARD.read) == [97.0, 107.0, 117.0]
    assert nvae.values(lambda found: found.reconstruction["long"].bleu) == [30.5, 33.5, 39.5]
    assert results.rows[1].mean(BLEU.read).sd is None
    assert (nvae.family, nvae.settings) == ("NVAE", "λ′_G=0.01 λ′_D=1 Δ=0.3")
    assert results.rows[2].title == "VTS λ′_G=0.0001 S=0.5"


def test_what_is_missing_is_known(results):
    assert results.missing == (("vt", 1), ("nvae-1", 0))
    assert (len(results.evaluations), results.planned) == (6, 8)
    assert results.unplanned == ()
    t, *_, none = results.rows
    assert t.mean(FORWARD.read) is None
    assert none.mean(BLEU.read) is None
    assert (none.family, none.settings) == ("NVAE", "λ′_G=1 λ′_D=1")  # as the paper prints it, before there is a cell


def test_cells_that_the_plan_does_not_have_are_left_out_by_name(tmp_path):
    for row, seed in (("vt", 0), ("vt", 7), ("vts-0.5", 0)):
        write_cell(tmp_path, make_cell(row, seed))
    results = read_results(make_plan(vt=[0]), tmp_path)
    assert [(cell.row, cell.seed) for cell in results.cells] == [("vt", 0)]
    assert results.unplanned == ("vt seed 7", "vts-0.5 seed 0")


def test_a_cell_without_the_evaluation_is_not_there_yet(tmp_path):
    content = make_cell("vt", 0)
    write_cell(tmp_path, content | {"seed": 1})
    write_cell(tmp_path, content | {"seed": 2})
    write_cell(tmp_path, content | {"evaluations": {"test-autoencoder": make_record("vt")}})
    results = read_results(make_plan(vt=[0, 1, 2]), tmp_path)
    assert results.evaluation == "validation-causal"
    assert results.missing == (("vt", 0),)
    assert read_results(make_plan(vt=[0]), tmp_path, evaluation="test-autoencoder").missing == ()


def test_export_and_reading_it_give_the_same_results(results, tmp_path):
    assert export_cells(results.cells, tmp_path / "cells") == []
    names = sorted(file.name for file in (tmp_path / "cells").iterdir())
    assert names == [
        "nvae-0.01-seed-0.json",
        "nvae-0.01-seed-1.json",
        "nvae-0.01-seed-2.json",
        "t-seed-0.json",
        "vt-seed-0.json",
        "vts-0.5-seed-0.json",
    ]
    again = read_results(results.plan, tmp_path / "cells")
    assert [replace(cell, path=None) for cell in again.cells] == [replace(cell, path=None) for cell in results.cells]
    export_cells(again.cells, tmp_path / "cells")  # over itself
    assert sorted(file.name for file in (tmp_path / "cells").iterdir()) == names


def test_a_cell_as_evaluated_is_small_and_a_large_one_is_remarked_on(tmp_path):
    """Ten texts of a kind of 300 letters each, and lengths to 200, are what an evaluation keeps at most."""
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    record["generation"] |= {"lengths": [12345] * 200, "real": {"lengths": [12345] * 200}, "examples": ["x" * 300] * 10}
    for part in record["reconstruction"].values():
        part["examples"] = [{"text": "x" * 300, "reconstruction": "y" * 300}] * 10
    content["evaluations"] |= {"test-causal": record, "validation-autoencoder": record}
    file = write_cell(tmp_path, content)
    assert export_cells(read_cells(tmp_path), tmp_path / "out") == []
    content["train"]["long"] = "x" * 200_000
    file.write_text(json.dumps(content))
    (remark,) = export_cells(read_cells(tmp_path), tmp_path / "out")
    assert "nvae-0.01-seed-0.json" in remark


WRONG = {
    "": 3,
    "reconstruction": [],
    "reconstruction/short/by_length": [{"length": "5", "sentences": 1, "kept": 1.0, "sd": 0.0}],
    "reconstruction/short/examples": ["text"],
    "reconstruction/short/signature": 7,
    "generation/lengths": [1, None],
    "generation/examples": "text",
    "interpolation/perplexity": 3.5,
    "interpolation/examples": [None],
    "config/optimiser/steps": "many",
    "versions": "x" * 999,
}


@pytest.mark.parametrize("path", WRONG)
def test_a_value_of_another_kind_is_named_with_its_file(path, tmp_path):
    content = make_cell("nvae-0.01", 0)
    *above, last = ["evaluations", "validation-causal", *path.split("/")] if path else ["evaluations", "a"]
    place = content
    for part in above:
        place = place[part]
    place[last] = WRONG[path]
    file = write_cell(tmp_path, content)
    entry = last if path else "evaluations"
    with pytest.raises(InputError, match=rf"{re.escape(str(file))}: .*{entry}"):
        read_cells(tmp_path)


def test_cells_of_version_0_1_load(tmp_path):
    """They have real text as entries real_… of the generation, and other names for numbers of vectors."""
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    record["number"] = {"short": make_number(90.0)}
    write_cell(tmp_path / "new", content)
    generation, number = record["generation"], record["number"]["short"]
    generation |= {f"real_{name}": value for name, value in generation.pop("real").items()}
    number |= {"needed": number.pop("fewest"), "decided": number.pop("auto")}
    write_cell(tmp_path / "old", content)
    (new,), (old,) = read_cells(tmp_path / "new"), read_cells(tmp_path / "old")
    assert replace(old, path=None) == replace(new, path=None)
    assert read_at("number.short.fewest.kept")(old.evaluations["validation-causal"]) == 0.29


def test_what_was_not_measured_is_none_and_more_entries_are_passed_over(tmp_path):
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    record |= {"generation": None, "more": [1, "of", {}]}
    record["interpolation"]["perplexity"] = [None, 3.5]
    write_cell(tmp_path, content)
    (cell,) = read_cells(tmp_path)
    found = cell.evaluations["validation-causal"]
    assert found.generation is None
    assert found.interpolation
    assert found.interpolation.perplexity == (None, 3.5)
    (row,) = group(make_plan(nvae_0p01=[0]), [cell]).rows
    assert row.mean(FORWARD.read) is None
    assert [row.mean(measure.read) for measure in PATHS[:2]] == [None, None]


@pytest.mark.parametrize(
    "content", ["{", "[" * 99999, "[]", '{"row": "vt"}', '{"row": "vt", "seed": "0", "evaluations": {}}']
)
def test_a_file_that_is_no_result_is_named(content, tmp_path):
    (tmp_path / "vt-seed-0.json").write_text(content)
    with pytest.raises(InputError, match=r"vt-seed-0\.json"):
        read_cells(tmp_path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    plan = make_plan(vt=[0])
    with pytest.raises(InputError, match="nowhere"):
        read_results(plan, tmp_path / "nowhere")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        read_results(plan, tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(make_cell("vt", 0)))
    with pytest.raises(InputError, match=r"b\.json: row 'vt' seed 0 is in .*a\.json too"):
        read_results(plan, tmp_path)
    (tmp_path / "b.json").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "vt-seed-0.json").write_text('{"something": "else"}')
    with pytest.raises(InputError, match=r"out/vt-seed-0\.json"):
        export_cells(read_cells(tmp_path), tmp_path / "out")


def test_settings_come_from_the_label_then_the_configuration():
    loss = {"lambda_g": 0.01, "lambda_d": {"start": 1.0, "end": 20.0}, "delta": 0.3}
    evaluation = make_evaluation(config={"model": {"bottleneck": "nvae"}, "loss": loss})
    cells = (CellResult("x", 0, {"validation-causal": evaluation}),)
    for label, expected in ((None, "λ′_G=0.01 λ′_D=1→20 Δ=0.3"), ("NVAE Δ=0.1", "Δ=0.1"), ("a sweep", "a sweep")):
        assert RowResults(RowPlan("x", (0,), label), cells, "validation-causal").settings == expected
    assert RowResults(RowPlan("x", (0,), "x"), (), "validation-causal").settings == "x"


def test_labels_in_figures_say_in_what_rows_of_a_family_differ():
    rows = [("T", ""), ("VT", "λ′_G=0"), ("VT", "λ′_G=0.1"), ("VTS", "λ′_G=1 S=0.5"), ("VTS", "λ′_G=1 S=0.9")]
    assert short_settings(rows) == ["", "G=0", "G=0.1", "S=0.5", "S=0.9"]


@pytest.mark.parametrize(
    ("rows", "chosen", "why"),
    [
        ({"a": (80, 0.6), "b": (90, 0.7), "c": (70, 0.1)}, "a", "at most 60%"),
        ({"a": (80, 0.9), "b": (90, 1.0), "c": (40, 0.7)}, "a", "fewest"),
        ({"a": (30, 0.9), "b": (41, 1.0), "c": (40, 0.7)}, "b", "highest BLEU, as no"),
    ],
)
def test_the_nvae_that_figures_show_is_selected_by_the_rule(rows, chosen, why, tmp_path):
    for name, (bleu, kept) in rows.items():
        write_cell(tmp_path, make_cell(name, 0, bleu=bleu, kept=kept))
    write_cell(tmp_path, make_cell("vts-0.5", 0, bleu=99.0, kept=0.5))  # no NVAE
    plan = make_plan(**{name: [0] for name in rows}, vts_0p5=[0])
    selected = select_nvae(read_results(plan, tmp_path).rows)
    assert selected
    assert selected.row.name == chosen
    assert why in selected.reason
    assert select_nvae([]) is None


def test_without_a_cell_the_family_comes_from_the_paper_or_the_name():
    rows = (RowPlan("a", (0,), paper="vt"), RowPlan("nvae-2", (0,)), RowPlan("other", (0,)))
    found = group(Plan("x", "x", "x", rows), []).rows
    assert [row.title for row in found] == ["VT λ′_G=0.0001", "NVAE nvae-2", "other"]


def test_the_table_of_training_has_steps_and_the_rise_of_bleu(tmp_path):
    rises = {"vt": (0.5, 0.1), "t": (-0.25,)}
    for row, values in rises.items():
        for seed, rise in enumerate(values):
            cell = make_cell(row, seed)
            write_cell(tmp_path, cell | {"train": cell["train"] | {"rise": rise}})
    write_cell(tmp_path, make_cell("nvae-0.01", 0))  # of an older version
    table = training_table(read_results(make_plan(t=[0], vt=[0, 1], nvae_0p01=[0]), tmp_path))
    assert table is not None
    assert [line[0].split()[0] for line in table.lines] == ["T", "VT", "NVAE"]
    assert [line[1:] for line in table.lines] == [
        ("907", "5e-05", "−0.25", "7"),
        ("907", "5e-05", "0.30 ± 0.28", "7"),
        ("907", "5e-05", "–", "7"),
    ]


def test_without_a_rise_there_is_no_table_of_training(tmp_path):
    write_cell(tmp_path, make_cell("t", 0))
    assert training_table(read_results(make_plan(t=[0]), tmp_path)) is None
