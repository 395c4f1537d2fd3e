"""The report of one run, and the command."""

import json
from pathlib import Path

import pytest
import yaml
from factory import CONFIGS, make_cell, make_number, make_record, write_cell

from open_nvib.cli import main
from open_nvib.report import write_run_report

LOG = [
    {"step": 50, "loss": 8.1, "cross_entropy": 8.1, "kl_gaussian": 0.8, "kl_dirichlet": 0.001, "kept": 1.0},
    {"step": 100, "loss": 6.5, "cross_entropy": 6.5, "kl_gaussian": 0.5, "kl_dirichlet": 0.002, "kept": 0.9},
    {"step": 100, "eval_loss": 6.1, "eval_bleu": 13.7, "eval_exact": 0.11},
]


@pytest.fixture
def run(tmp_path) -> Path:
    """What `nvib train` leaves behind, but for the model, which a report does not read."""
    folder = tmp_path / "runs" / "nvae"
    folder.mkdir(parents=True)
    config = CONFIGS["nvae-0.01"] | {"data": "data/enwik8", "partition": "short", "seed": 3}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"optimiser": {"batch_size": 64}}))
    (folder / "lengths.json").write_text("{}")
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in LOG) + '{"step": 150, "lo')
    metrics = {"step": 100, "validation": {"bleu": 13.7, "exact": 0.11, "perplexity": 5.3, "kept": 0.9}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def evaluate(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["evaluations"] = {
        "validation-autoencoder": make_record("nvae-0.01", forward=1.07, reverse=1.31),
        "validation-causal": make_record("nvae-0.01"),
    }
    (run / "metrics.json").write_text(json.dumps(metrics))


def test_a_run_that_was_only_trained_has_its_curves(run):
    written = write_run_report(run)
    assert written.page == run / "report.html"
    text = (run / "report.md").read_text()
    assert "# nvae: NVAE λ′<sub>G</sub>=0.01" in text
    assert "| BLEU | 13.70 |" in text
    assert "| exact (%) | 11.0 |" in text
    assert "100 steps of 64 sentences" in text
    assert "nvib evaluate" in text
    assert [file.name for file in (run / "figures").iterdir()] == ["training.svg"]


def test_an_evaluated_run_has_everything(run):
    evaluate(run)
    write_run_report(run)
    text = (run / "report.md").read_text()
    assert "| NVAE validation, scorer causal | 1 | 0.47 | 61.00 | 44.5 | 6.57 | 107.0 | 211.0 |" in text
    assert "| NVAE validation, scorer autoencoder | 1 | 0.47 | 61.00 | 44.5 | 6.57 | 1.07 | 1.31 |" in text
    assert "missing" not in text
    assert "paper" not in text
    assert text.count("the museum was **closed** in 1923") == 1
    names = sorted(file.stem for file in (run / "figures").iterdir())
    assert names == ["interpolation", "lengths", "training", "vectors_by_length"]


def test_a_run_with_numbers_of_vectors_shows_what_texts_need(run):
    evaluate(run)
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["evaluations"]["validation-causal"]["number"] = {"short": make_number(90.0), "long": make_number(40.0)}
    (run / "metrics.json").write_text(json.dumps(metrics))
    write_run_report(run)
    text = (run / "report.md").read_text()
    assert "| 0.29 | 90.00 | 97.0 | 1.30 | 0.37 | 88.00 | 83.0 |" in text
    assert "- 1 vector for 17 tokens: the sea ." in text
    assert r"- 11 vectors for 17 tokens: \<b\> kiwis" in text
    assert (run / "figures" / "number.svg").exists()


def test_the_page_of_a_run_opens(run, browser):
    evaluate(run)
    write_run_report(run)
    page = browser.new_page(viewport={"width": 390, "height": 800})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((run / "report.html").as_uri())
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("figure svg[role=img]").count() == 4
    page.close()


def test_a_run_that_is_still_training_has_what_it_logged(run):
    (run / "metrics.json").unlink()
    write_run_report(run)
    assert "not finished" in (run / "report.md").read_text()


# The command


def fails(capsys, *arguments: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("nvib: ")
    assert said.count("\n") == 1
    return said


def test_nvib_report_of_a_run_prints_where_the_page_is(run, tmp_path, capsys):
    main(["report", str(run)])
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    main(["report", str(run), "--output", str(tmp_path / "there")])
    assert (tmp_path / "there" / "report.html").is_file()


def test_mistakes_are_one_line(run, tmp_path, capsys):
    assert "no such file" in fails(capsys, "report", tmp_path / "nothing.yaml")
    assert "not a run" in fails(capsys, "report", tmp_path)
    assert "--cells is for an experiment" in fails(capsys, "report", run, "--cells", tmp_path)
    for options in (["--output="], ["--cells="]):
        assert f"{options[0][:-1]} is empty" in fails(capsys, "report", run, *options)
    assert "the path is empty" in fails(capsys, "report", "")
    long = tmp_path / ("x" * 300)
    assert "no such file" in fails(capsys, "report", long)
    assert "File name too long" in fails(capsys, "report", run, "--output", long)
    (run / "report.html").write_text("mine")
    assert "left alone" in fails(capsys, "report", run)
    assert (run / "report.html").read_text() == "mine"
    (run / "report.html").unlink()
    (run / "metrics.json").write_text("{")
    assert "metrics.json" in fails(capsys, "report", run)
    (run / "metrics.json").unlink()
    (run / "log.jsonl").unlink()
    assert "logged nothing yet" in fails(capsys, "report", run)


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Path:
    """An experiment of two rows, with one of its results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("model: {bottleneck: vt}\n")
    file = tmp_path / "table.yaml"
    rows = {"vt": {"config": "config.yaml"}, "nvae-0.01": {"config": "config.yaml", "label": "NVAE of mine"}}
    file.write_text(yaml.safe_dump({"rows": rows}, sort_keys=False))
    write_cell(tmp_path / "runs" / "table", make_cell("vt", 0))
    return file


def test_nvib_report_of_an_experiment(experiment, tmp_path, capsys):
    main(["report", str(experiment)])
    page = Path("runs/table/report/report.html")
    assert capsys.readouterr().out == f"{page}\n"
    text = page.with_suffix(".md").read_text()
    assert "# table" in text
    assert "1 of 2 cells" in text
    assert "| NVAE of mine | 0 of 1 |" in text
    assert "99.55 ± 0.00" in text  # the paper's, by the name of the row
    cells = page.parent / "cells"
    main(["report", str(experiment), "--cells", str(cells), "--output", str(tmp_path / "docs")])
    assert (tmp_path / "docs" / "report.md").read_text() == text
    assert (tmp_path / "docs" / "cells" / "vt-seed-0.json").read_text() == (cells / "vt-seed-0.json").read_text()
    assert "no results" in fails(capsys, "report", experiment, "--cells", tmp_path / "docs" / "figures")
    assert "no such directory" in fails(capsys, "report", experiment, "--cells", "x" * 300)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "[]"),
        ("config.yaml", ""),
        ("config.yaml", "data: ["),
        ("config.yaml", "data: a\npartition: short\nseed: x\n"),
        ("config.yaml", "\0\xff"),
        ("metrics.json", "[]"),
        ("metrics.json", ""),
        ("metrics.json", "\xff\0"),
        ("metrics.json", '{"evaluations": null}'),
        ("metrics.json", '{"evaluations": {"validation-causal": 3}}'),
        ("metrics.json", '{"validation": 3}'),
        ("metrics.json", '{"step": "x"}'),
        ("metrics.json", '{"validation": {"exact": "y"}}'),
        ("metrics.json", None),
        ("log.jsonl", None),
    ],
)
def test_a_damaged_piece_of_a_run_is_one_line(run, capsys, file, content):
    (run / file).unlink()
    (run / file).mkdir() if content is None else (run / file).write_text(content, encoding="latin-1")
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(run)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"nvib: {run}")
    assert not (run / "report.html").exists()


def test_damaged_lines_of_a_log_are_passed_over(run):
    (run / "log.jsonl").write_bytes(b'\xff\0\n[3]\n{"step": "x"}\n' + (run / "log.jsonl").read_bytes())
    write_run_report(run)
    assert "BLEU" in (run / "figures" / "training.svg").read_text()
