"""The files of a report: what the tables and texts say, links, and files of somebody else."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from factory import make_cell, make_plan, make_record, write_cell

from open_nvib.report import read_results, write_report
from open_nvib.report.measures import FORWARD, LATENT, PATHS, READINGS, REVERSE, SAMPLES
from open_nvib.report.pages import experiment_report, literal, marked_differences, table_lines, words
from open_nvib.report.results import select_nvae
from open_nvib.report.tables import main_table, measured_table
from open_nvib.store.evaluations import Example
from open_nvib.store.files import InputError

ROOT = Path(__file__).parents[2]


def entries(table, name):
    """The line of a model."""
    (line,) = [line for line in table.lines if line[0] == name]
    return list(line[1:])


def test_the_table_has_mean_and_deviation_beside_the_printed_values(results):
    table = main_table(results, select_nvae(results.rows))
    nvae = entries(table, "NVAE λ′_G=0.01 λ′_D=1 Δ=0.3 ◂")
    assert nvae[:2] == ["3", "0.45 ± 0.02"]
    assert nvae[2] == "69.00 ± 9.17"  # √84
    assert nvae[3] == "50.4 ± 6.7"  # BLEU / 137
    assert nvae[5] == "107.0 ± 10.0"
    assert nvae[7:] == ["0.47", "92.26 ± 4.90", "1.18 ± 0.13", "1.00 ± 0.00", "5.06 ± 1.90"]
    assert entries(table, "VT λ′_G=0.0001")[:7] == ["1 of 2", "1.00", "97.00", "70.8", "1.43", "1,013", "307.0"]
    assert entries(table, "T")[:7] == ["1", "1.00", "99.10", "72.3", "1.13", "–", "–"]
    assert entries(table, "NVAE λ′_G=1 λ′_D=1")[:7] == ["0 of 1", *["–"] * 6]
    assert entries(table, "real text held out")[5:7] == ["83.00", "131.0"]
    assert table.columns[2:] == (
        *("ν", "BLEU ↑", "exact (%) ↑", "PPL ↓", "F-PPL ↓", "R-PPL ↓"),
        *("ν, paper", "BLEU ↑, paper", "PPL ↓, paper", "F-PPL ↓, paper", "R-PPL ↓, paper"),
    )


def test_texts_that_equal_the_users_own_are_a_column_of_their_own(tmp_path):
    """An early record does not have them, and then there is no such column."""
    content = make_cell("vt", 0)
    write_cell(tmp_path / "early", content)
    plan = make_plan(vt=[0])
    assert not any("text exact" in title for title in main_table(read_results(plan, tmp_path / "early"), None).columns)
    content["evaluations"]["validation-causal"]["reconstruction"]["short"]["text_exact"] = 0.5125
    write_cell(tmp_path / "new", content)
    results = read_results(plan, tmp_path / "new")
    assert main_table(results, None).columns[4:6] == ("exact (%) ↑", "text exact (%) ↑")
    assert entries(main_table(results, None), "VT λ′_G=0.0001")[4] == "51.2"
    assert "before the tokenizer" in experiment_report(results).markdown


def test_a_report_of_json_files_imports_no_torch(tmp_path):
    """Nor transformers, and few of our own modules: it is Markdown, tables and pictures."""
    script = """
import sys
from open_nvib.report import report_on

report_on("experiments/number.yaml", cells="docs/results/number/cells", output=sys.argv[1])
print(len([name for name in sys.modules if name.split(".")[0] == "open_nvib"]), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules, torch = done.stdout.split()
    assert int(modules) <= 25
    assert torch == "False"


def test_the_other_tables_have_the_rows_that_were_measured(results):
    samples, latent = measured_table(results, SAMPLES, real=True), measured_table(results, LATENT)
    path = measured_table(results, PATHS, needed="PPL between")
    assert samples
    assert latent
    assert path
    assert entries(samples, "VT λ′_G=0.0001") == ["4.3", "31.7", "61.3", "79.7", "23.9", "0.17", "0.05"]
    assert entries(samples, "real text held out")[:5] == ["4.7", "33.1", "64.3", "81.1", "19.7"]
    assert entries(latent, "VT λ′_G=0.0001")[:5] == ["0.00", "179.0", "–", "101", "128"]
    assert entries(latent, "NVAE λ′_G=0.01 λ′_D=1 Δ=0.3")[2:5] == ["7.90 ± 0.00", "101 ± 0", "128"]
    assert entries(path, "VTS λ′_G=0.0001 S=0.5") == ["113.0", "162.0", "0.410"]  # 113 · (1.3 + 1.7 + 1.3) / 3
    for table in (samples, latent, path):
        assert "T" not in {line[0] for line in table.lines}


def test_the_copying_scorer_is_shown_apart_where_it_was_used(tmp_path):
    content = make_cell("vt", 0)
    content["evaluations"]["validation-autoencoder"] = make_record("vt", forward=1.07, reverse=1.31)
    write_cell(tmp_path, content)
    results = read_results(make_plan(vt=[0]), tmp_path)
    copying = results.copying()
    assert copying
    table = measured_table(copying, (FORWARD, REVERSE), real=True, printed=True)
    assert table
    assert entries(table, "VT λ′_G=0.0001") == ["1.07", "1.31", "1.04 ± 0.01", "1.29 ± 0.08"]
    assert copying.copying() is None
    assert table_lines(table) in experiment_report(results).markdown


def test_readings_are_shown_where_points_were_measured(tmp_path):
    plan = make_plan(nvae_0p01=[0])
    write_cell(tmp_path / "without", make_cell("nvae-0.01", 0))
    assert measured_table(read_results(plan, tmp_path / "without"), READINGS, needed="BLEU, points") is None
    content = make_cell("nvae-0.01", 0)
    record = content["evaluations"]["validation-causal"]
    next(iter(record["reconstruction"].values()))["points_bleu"] = 99.125
    record["latent"] |= {"mean_nll": 1.04, "points_nll": 0.01, "sample_nll": 0.03}
    write_cell(tmp_path / "with", content)
    results = read_results(plan, tmp_path / "with")
    table = measured_table(results, READINGS, needed="BLEU, points")
    assert table
    ((_, _, *found),) = table.lines
    assert found == ["99.12", "1.04", "0.01", "0.03"]
    assert table_lines(table) in experiment_report(results).markdown


PARTS = ("reconstruction", "generation", "latent", "interpolation")


@pytest.mark.parametrize("parts", [(), *((part,) for part in PARTS)])
def test_an_evaluation_of_some_parts_is_reported_as_far_as_it_goes(parts, tmp_path):
    for row in ("t", "vt", "nvae-0.01"):
        content = make_cell(row, 0)
        record = content["evaluations"]["validation-causal"]
        for part in set(PARTS) - set(parts):
            record.pop(part, None)
        del content["seconds"]
        write_cell(tmp_path, content)
    said = experiment_report(read_results(make_plan(t=[0], vt=[0], nvae_0p01=[0]), tmp_path))
    headings = set(re.findall(r"^## (.*)$", said.markdown, flags=re.MULTILINE))
    shown = {
        "What samples are like": "generation",
        "What the latent carries": "latent",
        "Between two texts": "interpolation",
        "How many vectors are kept": "reconstruction",
    }
    assert "The table" in headings
    assert {title: title in headings for title in shown} == {title: part in parts for title, part in shown.items()}


def test_words_and_texts():
    assert words("λ′_G is `a_b`, ν") == "λ′<sub>G</sub> is `a_b`, ν"
    assert words("L_D and snake_case") == r"L<sub>D</sub> and snake\_case"
    assert literal("1984. *a* | <b>\n`c`") == r"1984\. \*a\* \| \<b\> \`c\`"
    assert literal("- a & b") == r"\- a &amp; b"
    assert words("a `b\n\n# c`\n- d") == r"a `b # c` - d"
    assert words("a\x00\x1b\ud83d b") == "a b"
    assert literal(" \n ") == "(empty)"
    pair = Example("the old mill was sold", "the mill was never sold *")
    assert marked_differences(pair) == r"the mill was **never** sold **\***"
    assert marked_differences(Example("a", "")) == "(empty)"


def test_markdown_links_lead_to_figures_and_nothing_is_lost(written, results):
    text = (written / "report.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    figures = sorted(path.name for path in (written / "figures").iterdir())
    assert sorted(link.removeprefix("figures/") for link in links) == figures
    assert len(figures) == 6
    assert all((written / link).is_file() for link in links)
    assert "6 of 8 cells" in text
    assert "vt seed 1, nvae-1 seed 0" in text
    assert "907 steps of 64 sentences" in text
    assert "A perfect generator reaches these values, not 1." in text
    assert "NVAE λ′<sub>G</sub>=0.01" in text
    assert "| VT λ′<sub>G</sub>=0.0001 | 1 of 2 | 1.00 | 97.00 | 70.8 | 1.43 | 1,013 | 307.0 |" in text
    assert r"\<b\>bridge\</b\>" in text
    for row in results.measured:
        assert f"\n### {words(row.title)}" in text
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(re.search(r"(?<!\\)\|$", line) for line in tables)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables if line.startswith("| VT ")}
    assert widths == {14, 9, 10, 5}  # the table, samples, latent and paths


def test_a_report_is_written_anew_and_old_figures_go(results, tmp_path):
    folder = tmp_path / "report"
    write_report(results, folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    old = (folder / "figures" / "bleu_kept.svg").rename(folder / "figures" / "old.svg")
    foreign = folder / "figures" / "mine.svg"
    foreign.write_text("<svg/>")
    notes = folder / "notes.txt"
    notes.write_text("mine")
    write_report(results, folder)
    assert {file: file.read_bytes() for file in before} == before
    assert not old.exists()
    assert foreign.read_text() == "<svg/>"
    assert notes.read_text() == "mine"


def test_a_label_is_one_line_of_its_own_text_everywhere(tmp_path, recwarn):
    """Neither Markdown nor SVG takes it for more than that; a figure without its letters says nothing."""
    folder, output = tmp_path / "cells", tmp_path / "report"
    write_cell(folder, make_cell("vt", 0))
    record = make_record("nvae-0.01")
    record["reconstruction"]["short"]["examples"] = [{"text": "half \ud83d", "reconstruction": "\x00 & `x\n\n# y`"}]
    write_cell(folder, make_cell("nvae-0.01", 0) | {"evaluations": {"validation-causal": record}})
    label = "a | `b | c\n\n# evil\n\n| d` \x01\x1b[31m\ud83d <script>alert(1)</script> \N{GRINNING FACE} 漢字"
    plan = make_plan(vt=[0], nvae_0p01=[0])
    rows = tuple(replace(row, label=label) for row in plan.rows)
    write_report(read_results(replace(plan, title=label, rows=rows), folder), output)
    assert not recwarn.list
    text = (output / "report.md").read_text()
    assert not re.search(r"^ *(# evil|# y|\| d)", text, flags=re.MULTILINE)
    tables = [line for line in text.splitlines() if line.startswith("| VT ")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {14, 9, 10, 5}
    assert not re.search(r"[\x00-\x08\x1b]", text)
    assert "<script>" not in (output / "report.html").read_text()
    for figure in (output / "figures").iterdir():
        ElementTree.parse(figure)
    assert "evil" in (output / "figures" / "bleu_kept.svg").read_text()
    again = json.loads((output / "cells" / "nvae-0.01-seed-0.json").read_text())
    again = again["evaluations"]["validation-causal"]["reconstruction"]["short"]["examples"]
    assert again == record["reconstruction"]["short"]["examples"]


@pytest.mark.parametrize("name", ["report.html", "report.md", "figures/lengths.svg", "cells/vt-seed-0.json"])
def test_a_file_of_somebody_else_is_left_alone(name, results, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("<html>mine</html>")
    with pytest.raises(InputError, match=re.escape(name)):
        write_report(results, tmp_path)
    assert file.read_text() == "<html>mine</html>"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_an_output_that_is_a_file_and_an_experiment_without_cells(results, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        write_report(results, tmp_path / "file")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "cells").write_text("mine")
    with pytest.raises(InputError, match="cells"):
        write_report(results, tmp_path / "half")
    assert [path.name for path in (tmp_path / "half").iterdir()] == ["cells"]
    with pytest.raises(OSError, match="xxx"):
        write_report(results, tmp_path / ("x" * 300))
    empty = type(results)(results.plan, "test-causal", ())
    with pytest.raises(InputError, match="test-causal"):
        write_report(empty, tmp_path / "new")
    assert not (tmp_path / "new").exists()
