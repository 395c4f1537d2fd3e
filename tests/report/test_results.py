"""Cells to rows: mean and deviation by hand, order, what is missing, what is not ours."""

import json
import math
import re

import pytest
from factory import make_cell, make_plan, make_record, write_cell

from open_nvib.report.best import best_nvae
from open_nvib.report.cells import LARGEST, export, find, number, read_cells
from open_nvib.report.models import settings_of, short_settings
from open_nvib.report.results import RowPlan, group, read_results
from open_nvib.report.spread import spread, write
from open_nvib.store.files import InputError


def test_spread_by_hand():
    three = spread([61.0, 67.0, 79.0])
    assert three
    assert three.mean == pytest.approx(69.0)
    assert three.sd == pytest.approx(math.sqrt((8**2 + 2**2 + 10**2) / 2))
    one = spread([5.0])
    assert one
    assert (one.mean, one.sd, one.count) == (5.0, None, 1)
    assert spread([]) is None


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
    assert write(value, decimals) == text


def test_rows_have_the_order_of_the_plan_and_the_spread_of_their_seeds(results):
    assert [row.name for row in results.rows] == ["t", "vt", "vts-0.5", "nvae-0.01", "nvae-1"]
    nvae = results.rows[3]
    bleu = nvae.spread("reconstruction/*/bleu")
    assert (bleu.mean, bleu.sd) == (pytest.approx(69.0), pytest.approx(math.sqrt(84)))
    assert nvae.values("generation/forward_perplexity") == [97.0, 107.0, 117.0]
    assert nvae.values("reconstruction/long/bleu") == [30.5, 33.5, 39.5]
    assert results.rows[1].spread("reconstruction/*/bleu").sd is None
    assert (nvae.family, nvae.settings) == ("NVAE", "λ′_G=0.01 λ′_D=1 Δ=0.3")
    assert results.rows[2].title == "VTS λ′_G=0.0001 S=0.5"


def test_what_is_missing_is_known(results):
    assert results.missing == (("vt", 1), ("nvae-1", 0))
    assert (len(results.records), results.wanted) == (6, 8)
    assert results.strays == ()
    t, *_, none = results.rows
    assert t.spread("generation/forward_perplexity") is None
    assert none.spread("reconstruction/*/bleu") is None
    assert (none.family, none.settings) == ("NVAE", "λ′_G=1 λ′_D=1")  # as the paper prints it, before there is a cell


def test_cells_that_the_plan_does_not_have_are_left_out_by_name(tmp_path):
    for row, seed in (("vt", 0), ("vt", 7), ("vts-0.5", 0)):
        write_cell(tmp_path, make_cell(row, seed))
    results = read_results(make_plan(vt=[0]), tmp_path)
    assert [(cell.row, cell.seed) for cell in results.cells] == [("vt", 0)]
    assert results.strays == ("vt seed 7", "vts-0.5 seed 0")


def test_a_cell_without_the_evaluation_is_not_there_yet(tmp_path):
    content = make_cell("vt", 0)
    write_cell(tmp_path, content | {"seed": 1})
    write_cell(tmp_path, content | {"seed": 2})
    write_cell(tmp_path, content | {"evaluations": {"test-autoencoder": make_record("vt")}})
    results = read_results(make_plan(vt=[0, 1, 2]), tmp_path)
    assert results.evaluation == "validation-causal"
    assert results.missing == (("vt", 0),)
    assert read_results(make_plan(vt=[0]), tmp_path, evaluation="test-autoencoder").missing == ()


def test_paths_that_lead_nowhere_are_none():
    record = {"a": {"first": {"b": 3}, "second": {"b": 5}}, "none": None, "list": [1], "nan": math.nan, "yes": True}
    assert find(record, "a/*/b") == 3
    assert number(record, "a/second/b") == 5.0
    for path in ("a/third/b", "a/b/c/d", "none", "none/x", "list", "nan", "yes", "", "*/*/*/*"):
        assert number(record, path) is None


def test_export_and_reading_it_give_the_same_results(results, tmp_path):
    assert export(results.cells, tmp_path / "cells") == []
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
    assert [cell.content for cell in again.cells] == [cell.content for cell in results.cells]
    export(again.cells, tmp_path / "cells")  # over itself
    assert sorted(file.name for file in (tmp_path / "cells").iterdir()) == names


def test_a_cell_as_evaluated_is_small_and_a_large_one_is_remarked_on(tmp_path):
    """Ten texts of a kind of 300 letters each, and lengths to 200, are what an evaluation keeps at most."""
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    record["generation"] |= {"lengths": [12345] * 200, "real_lengths": [12345] * 200, "examples": ["x" * 300] * 10}
    for part in record["reconstruction"].values():
        part["examples"] = [{"text": "x" * 300, "reconstruction": "y" * 300}] * 10
    content["evaluations"] |= {"test-causal": record, "validation-autoencoder": record}
    file = write_cell(tmp_path, content)
    assert export(read_cells(tmp_path), tmp_path / "out") == []
    content["train"]["long"] = "x" * LARGEST
    file.write_text(json.dumps(content))
    (remark,) = export(read_cells(tmp_path), tmp_path / "out")
    assert "nvae-0.01-seed-0.json" in remark


WRONG = {
    "": (3, "not the result of a cell"),
    "reconstruction": ([], r"reconstruction is \[\], wanted an object"),
    "reconstruction/short/by_length": ([{"length": "5"}], "by_length/0/length is '5', wanted a finite number"),
    "reconstruction/short/examples": (["text"], "examples/0 is 'text', wanted an object"),
    "reconstruction/short/signature": (7, "signature is 7, wanted text"),
    "generation/lengths": ([1, None], "lengths/1 is None, wanted a finite number"),
    "generation/examples": ("text", "examples is 'text', wanted a list"),
    "interpolation/perplexity": (3.5, "interpolation/perplexity is 3.5, wanted a list"),
    "interpolation/examples": ([None], "examples/0 is None, wanted a list"),
    "config/optimiser/steps": (math.inf, "steps is inf, wanted a finite number"),
    "versions": ("x" * 99, f"versions is '{'x' * 39}…, wanted an object"),
}


@pytest.mark.parametrize("path", WRONG)
def test_a_record_of_another_shape_is_named_with_its_place(path, tmp_path):
    content = make_cell("nvae-0.01", 0)
    value, what = WRONG[path]
    *above, last = ["evaluations", "validation-causal", *path.split("/")] if path else ["evaluations", "a"]
    place = content
    for part in above:
        place = place[part]
    place[last] = value
    file = write_cell(tmp_path, content)
    with pytest.raises(InputError, match=rf"{re.escape(str(file))}: .*{what}.*(R|r)emove it"):
        read_cells(tmp_path)


def test_what_was_not_measured_has_no_shape(tmp_path):
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    record |= {"generation": None, "more": [1, "of", {}]}
    record["interpolation"]["perplexity"] = [None, 3.5]
    write_cell(tmp_path, content)
    assert read_cells(tmp_path)[0].content == content


@pytest.mark.parametrize(
    "content", ["{", "[" * 99999, "[]", '{"row": "vt"}', '{"row": "vt", "seed": "0", "evaluations": {}}']
)
def test_a_file_that_is_no_result_is_named(content, tmp_path):
    (tmp_path / "vt-seed-0.json").write_text(content)
    with pytest.raises(InputError, match=r"vt-seed-0\.json: .*(Remove|remove)"):
        read_cells(tmp_path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    plan = make_plan(vt=[0])
    with pytest.raises(InputError, match="no such directory"):
        read_results(plan, tmp_path / "nowhere")
    with pytest.raises(InputError, match="no results are there yet"):
        read_results(plan, tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(make_cell("vt", 0)))
    with pytest.raises(InputError, match=r"b\.json: row 'vt' seed 0 is in .*a\.json too"):
        read_results(plan, tmp_path)
    (tmp_path / "b.json").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "vt-seed-0.json").write_text('{"something": "else"}')
    with pytest.raises(InputError, match="not the result of a cell"):
        export(read_cells(tmp_path), tmp_path / "out")


def test_settings_come_from_the_label_then_the_configuration():
    config = {"model": {"bottleneck": "nvae"}, "loss": {"lambda_g": 0.01, "lambda_d": {"start": 1.0, "end": 20.0}}}
    assert settings_of("x", None, None, config) == "λ′_G=0.01 λ′_D=1→20 Δ=?"
    assert settings_of("x", "NVAE Δ=0.1", None, config) == "Δ=0.1"
    assert settings_of("x", "a sweep", None, config) == "a sweep"
    assert settings_of("x", "x", None, {}) == "x"


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
def test_the_best_nvae_is_chosen_by_the_rule(rows, chosen, why, tmp_path):
    for name, (bleu, kept) in rows.items():
        write_cell(tmp_path, make_cell(name, 0, bleu=bleu, kept=kept))
    write_cell(tmp_path, make_cell("vts-0.5", 0, bleu=99.0, kept=0.5))  # no NVAE
    plan = make_plan(**{name: [0] for name in rows}, vts_0p5=[0])
    best = best_nvae(read_results(plan, tmp_path).rows)
    assert best
    assert best.row.name == chosen
    assert why in best.reason
    assert best_nvae([]) is None


def test_rows_are_grouped_in_blocks_as_the_paper_parts_them():
    plan = make_plan(t=[0], vt=[0], nvae_1=[0])
    assert [row.block for row in group(plan, []).rows] == ["0", "1", "2"]
    free = group(type(plan)("x", "x", "x", (RowPlan("vt-2", (0,)), RowPlan("nvae-2", (0,)))), [])
    assert [row.block for row in free.rows] == ["VT", "NVAE"]
