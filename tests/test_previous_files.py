"""Files of an earlier version load, resume and evaluate; `fixtures/previous/README.md` says how they were made.

Only the command line is used, so that these tests do not depend on where things are in the code.
"""

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from open_nvib.__main__ import main
from open_nvib.store.evaluations import upgrade

FIXTURE = Path(__file__).parent / "fixtures" / "previous"
PREPARE = ["prepare", "--source", "text.txt", "--output", "data", "--layout", "sentences"]
PREPARE += ["--partitions", "{short: [5, 24], long: [25, 40]}", "--vocab_size", "150", "--workers", "1"]
MEASURED = "--measure=[reconstruction, generation, latent, interpolation]"
EVALUATE = ["evaluate", "finished", "--config", "evaluate.yaml", MEASURED]
CELLS = Path("experiment")
EARLIER_SECONDS = 5000.0
"""More than a test takes: a cell with a larger total has kept the time of its interrupted attempt."""

Nvib = Callable[..., str]


@pytest.fixture
def nvib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nvib:
    """Return a function that runs a command in a copy of the files and returns what it printed."""
    shutil.copytree(FIXTURE, tmp_path / "previous")
    monkeypatch.chdir(tmp_path / "previous")

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["nvib", *arguments])
        capsys.readouterr()
        try:
            main()
        except SystemExit as stopped:
            pytest.fail(f"nvib {' '.join(arguments)}: exit code {stopped.code}\n{capsys.readouterr().err}")
        return capsys.readouterr().out

    return run


def read(path: str | Path) -> Any:
    return yaml.safe_load(Path(path).read_text())


def change(path: str | Path, edit: Callable[[Any], Any]) -> None:
    """Edit a JSON or YAML file in place."""
    content = read(path)
    edit(content)
    Path(path).write_text(json.dumps(content, indent=1))  # which is YAML, too


def mark(log: Path) -> None:
    """Change the first line of a log, which only training from the beginning writes anew."""
    first, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({**json.loads(first), "mark": True}), *rest]) + "\n")


def is_resumed(log: Path) -> bool:
    """Check that the marked line is still there and that every step is logged once."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return "mark" in lines[0] and [line["step"] for line in lines if "loss" in line] == [10, 20, 30, 40, 50, 60]


def contents(folder: str | Path) -> dict[str, bytes]:
    files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {str(path): path.read_bytes() for path in files}


def check_alike(found: Any, expected: Any, path: str = "") -> None:
    """Compare records entry by entry, numbers to four digits; newer entries and versions of packages may differ."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), path
        for name in expected.keys() - {"versions"}:
            check_alike(found[name], expected[name], f"{path}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            check_alike(found[number], value, f"{path}/{number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), path
    else:
        assert found == expected, path


def test_prepared_data_is_reused(nvib):
    before = contents("data")
    nvib(*PREPARE, "--plot", "lengths.svg")
    assert contents("data") == before


def draws_the_same_weights() -> bool:
    """Check for the versions of torch and transformers that made the files: others draw other initial weights."""
    versions = read(FIXTURE / "finished/metrics.json")["evaluations"]["validation-causal"]["versions"]
    return all(
        versions[name].partition("+")[0] == version(name).partition("+")[0] for name in ("torch", "transformers")
    )


def test_training_on_prepared_data_gives_the_same_log(nvib):
    if not draws_the_same_weights():
        pytest.skip("other versions of torch or transformers draw other weights: install those of constraints.txt")
    nvib("train", "--config", "nvae.yaml", "--output", "again")
    logs = [
        [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
        for run in ("again", "finished")
    ]
    # later on, a rounding moves the place of a cut
    found, expected = ([{**entry, "time": 0.0, "elapsed": 0.0} for entry in log if entry["step"] <= 20] for log in logs)
    check_alike(found, expected)


def test_a_finished_run_is_not_trained_again(nvib):
    before = contents("finished")
    nvib("train", "--config", "nvae.yaml", "--output", "finished")
    assert contents("finished") == before


def test_a_finished_run_is_used(nvib):
    record = read("finished/metrics.json")["evaluations"]["validation-causal"]
    texts, expected = zip(*(each.values() for each in record["reconstruction"]["long"]["examples"]), strict=True)
    assert nvib("reconstruct", "finished", *texts).splitlines() == list(expected)
    assert len(nvib("sample", "finished", "--count", "3").splitlines()) == 3
    assert len(nvib("interpolate", "finished", *texts[:2], "--steps", "4").splitlines()) == 4
    assert json.loads(nvib("inspect", "finished", texts[0], "--json"))["reconstruction"] == expected[0]


@pytest.mark.parametrize("fresh", [False, True], ids=["kept steps", "from scratch"])
def test_an_evaluation_gives_the_same_record(fresh, nvib):
    before = upgrade(read("finished/metrics.json"))
    if fresh:
        shutil.rmtree("finished/evaluation")
        shutil.rmtree("data/scorers")
        change("finished/metrics.json", lambda metrics: metrics.pop("evaluations"))
    nvib(*EVALUATE)
    after = read("finished/metrics.json")
    if fresh and not draws_the_same_weights():  # nor do scorers begin with the same weights
        for metrics in (before, after):
            del metrics["evaluations"]["validation-causal"]["generation"]
            del metrics["evaluations"]["validation-causal"]["interpolation"]
    check_alike(after, before)


def test_a_report_reads_the_run_and_the_experiment(nvib):
    page = Path(nvib("report", "finished").splitlines()[-1]).read_text()
    bleu = read("finished/metrics.json")["evaluations"]["validation-causal"]["reconstruction"]["short"]["bleu"]
    assert f"{bleu:.2f}" in page
    page = Path(nvib("report", "experiment.yaml").splitlines()[-1]).read_text()
    bleu = read(CELLS / "vts/seed-0/result.json")["evaluations"]["validation-causal"]["reconstruction"]["short"]["bleu"]
    assert f"{bleu:.2f}" in page


def test_an_interrupted_run_resumes_and_gives_the_same_metrics(nvib):
    mark(Path("interrupted/log.jsonl"))
    nvib("train", "--config", "nvae.yaml", "--output", "interrupted")
    assert is_resumed(Path("interrupted/log.jsonl"))
    check_alike(read("interrupted/metrics.json")["validation"], read("finished/metrics.json")["validation"])


def states(nvib: Nvib) -> dict[str, str]:
    status = json.loads(nvib("experiment", "status", "experiment.yaml", "--json"))
    return {cell["row"]: cell["state"] for cell in status["cells"]}


def mark_cell(row: str) -> None:
    """Mark the log and the time of a cell's interrupted attempt."""
    mark(CELLS / row / "seed-0/run/log.jsonl")
    change(CELLS / row / "seed-0/cell.json", lambda cell: cell["seconds"].update(train=EARLIER_SECONDS))


def check_cell_resumed(row: str) -> None:
    """Check that the cell resumed from its checkpoint, kept its time and finished."""
    directory = CELLS / row / "seed-0"
    assert is_resumed(directory / "run/log.jsonl")
    result = read(directory / "result.json")
    assert result["seconds"]["train"] > EARLIER_SECONDS
    check_alike(result["train"]["validation"], read("finished/metrics.json")["validation"])


def test_an_experiment_resumes(nvib):
    assert states(nvib) == {"vts": "done", "nvae": "interrupted"}
    done = contents(CELLS / "vts")
    mark_cell("nvae")
    nvib("experiment", "run", "experiment.yaml")
    assert contents(CELLS / "vts") == done
    check_cell_resumed("nvae")
    assert states(nvib) == {"vts": "done", "nvae": "done"}


# A setting that a record lacks is newer than the record, and had its default.


def drop_from_config(path: str | Path) -> None:
    change(path, lambda config: config["model"].pop("stride_pooling"))


def drop_from_cell(row: str) -> None:
    def drop(cell: Any) -> None:
        cell["settings"]["train"]["model"].pop("stride_pooling")
        cell["settings"]["evaluate"].pop("scorer_steps")

    change(CELLS / row / "seed-0/cell.json", drop)
    drop_from_config(CELLS / row / "seed-0/run/config.yaml")


def drop_from_recipe(path: str) -> None:
    change(path, lambda record: record["recipe"]["config"].pop("drop_residue"))


def test_a_finished_run_older_than_an_option_is_used(nvib):
    expected = nvib("reconstruct", "finished", "the council crossed the border")
    drop_from_config("finished/config.yaml")
    change("finished/model/config.json", lambda config: config.pop("stride_pooling"))
    nvib("train", "--config", "nvae.yaml", "--output", "finished")
    assert nvib("reconstruct", "finished", "the council crossed the border") == expected


def test_an_interrupted_run_older_than_an_option_resumes(nvib):
    drop_from_config("interrupted/config.yaml")
    mark(Path("interrupted/log.jsonl"))
    nvib("train", "--config", "nvae.yaml", "--output", "interrupted")
    assert is_resumed(Path("interrupted/log.jsonl"))


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_an_interrupted_cell_older_than_an_option_resumes(options, nvib):
    drop_from_cell("nvae")
    mark_cell("nvae")
    nvib("experiment", "run", "experiment.yaml", "--rows", "nvae", *options)
    check_cell_resumed("nvae")


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_a_done_cell_older_than_an_option_is_done(options, nvib):
    drop_from_cell("vts")
    before = contents(CELLS / "vts")
    nvib("experiment", "run", "experiment.yaml", "--rows", "vts", *options)
    assert contents(CELLS / "vts") == before


def test_prepared_data_older_than_an_option_is_reused(nvib):
    drop_from_recipe("data/recipe.json")
    before = contents("data/short")
    nvib(*PREPARE, "--plot", "lengths.svg")
    assert contents("data/short") == before


def test_an_experiment_takes_prepared_data_older_than_an_option(nvib):
    drop_from_recipe("data/recipe.json")
    nvib("experiment", "run", "experiment.yaml", "--rows", "vts")


@pytest.mark.parametrize("older", ["data/recipe.json", "finished/lengths.json"])
def test_an_evaluation_takes_data_where_one_recipe_is_older_than_an_option(older, nvib):
    drop_from_recipe(older)
    nvib(*EVALUATE, "--measure", "[reconstruction]")
