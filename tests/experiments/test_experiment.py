"""The file of an experiment: what it says, and one line for every mistake in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from open_nvib.cli import main
from open_nvib.experiments.experiment import load_experiment
from open_nvib.store.files import InputError
from open_nvib.store.settings import Schedule, TrainConfig, merged

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "experiments").glob("*.yaml"))
PAPER_ROWS = sorted(path.stem for path in (ROOT / "configs/paper").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment_opens_with_the_command_that_runs_it(path):
    first = path.read_text().splitlines()[0]
    assert first.startswith(f"# nvib experiment run experiments/{path.name}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_cell_of_the_experiments_has_settings(path, tmp_path, monkeypatch):
    """From any working directory: configurations are found beside the experiment's folder."""
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment(path)
    cells = experiment.cells()
    assert len({cell.directory for cell in cells}) == len(cells)
    assert len({str(cell.train) for cell in cells if cell.seed == 0}) == len(experiment.rows)
    for cell in cells:
        assert experiment.prepare is not None
        assert (cell.train.seed, cell.train.data) == (cell.seed, experiment.prepare.output)


def test_the_tables_have_every_row_of_the_paper():
    for name, seeds in (("table", None), ("table-paper", (0, 1, 2, 3, 4))):
        rows = load_experiment(ROOT / f"experiments/{name}.yaml").rows
        assert [name for name in PAPER_ROWS if name not in {row.name for row in rows}] == []
        assert all(row.paper == row.name for row in rows)
        assert all(row.seeds == (seeds or row.seeds) for row in rows)
    several = {row.name for row in load_experiment(ROOT / "experiments/table.yaml").rows if row.seeds == (0, 1, 2)}
    assert {"t", "vt", "vts-0.5", "vts-0.75", "nvae-0.01", "nvae-0.1"} <= several


def test_every_row_of_the_table_is_trained_alike():
    """But for the learning rate, which is chosen for each."""
    rows = load_experiment(ROOT / "experiments/table.yaml").rows
    assert len({str(replace(row.train.optimiser, learning_rate=1.0)) for row in rows}) == 1
    assert {row.train.optimiser.learning_rate for row in rows} <= {1e-3, 2e-3, 4e-3}


def test_rows_of_the_tradeoff_are_what_their_names_say():
    for row in load_experiment(ROOT / "experiments/tradeoff.yaml").rows:
        loss = row.train.loss
        last = [loss.at_end().lambda_g, loss.at_end().lambda_d, loss.at_end().delta]
        how = "constant" if last == [loss.lambda_g, loss.lambda_d, loss.delta] else "ramped"
        assert row.name == "{}-g{:g}-d{:g}-delta{:g}".format(how, *last)


def test_overrides_win_over_defaults_and_these_over_the_configuration(experiment):
    defaults = {"model": {"d_model": 32}, "optimiser": {"steps": 7, "learning_rate": "1e-4"}}
    rows = {"a": {"config": "nvae.yaml", "overrides": {"optimiser": {"steps": 9}}}, "b": {"config": "nvae.yaml"}}
    a, b = (row.train for row in load_experiment(experiment(defaults=defaults, rows=rows)).rows)
    assert (a.optimiser.steps, b.optimiser.steps) == (9, 7)
    assert a.optimiser.learning_rate == 1e-4
    assert a.model.d_model == 32
    assert a.loss.delta == 0.3


def test_a_schedule_is_replaced_whole():
    """Of a cyclical schedule nothing is left in the linear one that replaces it."""
    cyclical = {"kind": "cyclical", "start": 1.0, "end": 0.3, "period": 50}
    linear = {"start": 1.0, "end": 0.5, "from_step": 0, "to_step": 9}
    assert merged(TrainConfig, {"loss": {"delta": cyclical, "lambda_g": 1}}, {"loss": {"delta": linear}}) == {
        "loss": {"delta": linear, "lambda_g": 1}
    }


def test_schedules_are_read(experiment):
    delta = {"start": 1.0, "end": 0.5, "from_step": 0, "to_step": 9}
    rows = {"a": {"config": "nvae.yaml", "overrides": {"loss": {"delta": delta}}}}
    (row,) = load_experiment(experiment(rows=rows)).rows
    assert row.train.loss.delta == Schedule(**delta)


def test_the_first_seed_of_every_row_comes_first(experiment):
    rows = {"a": {"config": "t.yaml", "seeds": [3, 1]}, "b": {"config": "t.yaml"}}
    found = load_experiment(experiment(rows=rows))
    assert [str(cell) for cell in found.cells()] == ["a seed 3", "b seed 0", "a seed 1", "b seed 1"]
    assert [str(cell) for cell in found.cells(["b"])] == ["b seed 0", "b seed 1"]
    assert [str(cell) for cell in found.cells([], [1])] == ["a seed 1", "b seed 1"]
    with pytest.raises(InputError, match="none of the rows b has seed 3"):
        found.cells(["b"], [3])


def test_defaults_of_a_file(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    experiment()
    path.write_text("rows: {t: {config: t.yaml}}\nprepare: {output: elsewhere}\n")
    found = load_experiment(path)
    assert (found.name, found.title, found.output) == ("mine", "mine", Path("runs/mine"))
    (cell,) = found.cells()
    assert (cell.seed, cell.label, cell.paper, cell.train.data) == (0, "t", "t", "elsewhere")
    assert cell.run == Path("runs/mine/t/seed-0/run")


ROW = {"config": "t.yaml"}
MISTAKES = {
    "unknown key": ({"row": {}}, "unknown key 'row'"),
    "unknown key of a row": ({"rows": {"a": {**ROW, "seed": 1}}}, "rows.a: unknown key 'seed'"),
    "unknown configuration": ({"rows": {"a": {"config": "nvea.yaml"}}}, "row 'a': no configuration 'nvea.yaml'"),
    "row without configuration": ({"rows": {"a": None}}, "rows.a: got null, expected {config: …}"),
    "row that is text": ({"rows": {"a": "t.yaml"}}, "rows.a: got 't.yaml'"),
    "no rows": ({"rows": {}}, "no rows"),
    "rows in a list": ({"rows": [ROW]}, "rows: got"),
    "name with a slash": ({"rows": {"../a": ROW}}, "names a folder"),
    "number for a name": ({"rows": {1: ROW}}, "rows: got 1, expected text"),
    "unknown setting": ({"rows": {"a": {**ROW, "overrides": {"loss": {"detla": 1}}}}}, "loss: unknown key 'detla'"),
    "unknown group": ({"defaults": {"lost": {"delta": 1}}}, "lost"),
    "group that is a number": ({"defaults": {"loss": 3}}, "loss: got 3"),
    "value of the wrong type": ({"defaults": {"optimiser": {"steps": "many"}}}, "optimiser.steps"),
    "impossible value": ({"defaults": {"optimiser": {"steps": 0}}}, "steps is 0"),
    "key with a dot": ({"defaults": {"loss.delta": 1}}, "unknown key 'loss.delta'"),
    "seed among overrides": ({"defaults": {"seed": 3}}, "seed is set"),
    "seeds that are one": ({"seeds": 3}, "seeds: got 3"),
    "no seeds": ({"seeds": []}, "seeds: got []"),
    "seed below 0": ({"rows": {"a": {**ROW, "seeds": [-1]}}}, "row 'a': seeds: got [-1]"),
    "seed twice": ({"seeds": [1, 1]}, "different"),
    "seed that is no number": ({"seeds": ["a"]}, "seeds.0: got 'a'"),
    "unknown measure": ({"evaluate": {"measure": ["bleu"]}}, "evaluate.measure"),
    "unknown setting of evaluate": ({"evaluate": {"sample": 3}}, "evaluate: unknown key 'sample'"),
    "unknown setting of prepare": ({"prepare": {"sauce": "x"}}, "prepare: unknown key 'sauce'"),
    "name that is a list": ({"name": ["a"]}, "name: got ['a']"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_with_file_and_place(name, experiment, capsys):
    changes, what = MISTAKES[name]
    path = experiment(**changes)
    assert what in fails(capsys, "status", path)


FILES_THAT_ARE_WRONG = {
    "nothing": ("", "no rows"),
    "not yaml": ("rows: [\n", "is not YAML"),
    "a list": ("- rows\n", "expected a mapping"),
    "a row twice": ("rows:\n  a: {config: t.yaml}\n  a: {config: nvae.yaml}\n", "line 3: duplicate key 'a'"),
    "binary": (b"\xff\xfe\x00", "cannot be read as text"),
    "no whole number": ("seeds: [!!int abc]\n", "is not YAML"),
    "deep": (f"rows: {'[' * 3000}{']' * 3000}\n", "is not YAML (maximum recursion"),
    "alias of itself": ("\ndefaults: &a {loss: *a}\nrows: {t: {config: t.yaml}}\n", "no configuration 't.yaml'"),
    "much text": ("The old river crossed the border.\n" * 99, "got 'The old river crossed the borde"),
}


@pytest.mark.parametrize("name", FILES_THAT_ARE_WRONG)
def test_file_that_is_wrong_is_one_line(name, tmp_path, capsys):
    text, what = FILES_THAT_ARE_WRONG[name]
    (tmp_path / "x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    line = fails(capsys, "run", tmp_path / "x.yaml")
    assert what in line
    assert len(line) < len(str(tmp_path)) + 300


def test_merge_keys_and_aliases_are_yaml_s_own(experiment, tmp_path):
    """A row takes what another has, also through a third, and its own entry wins; a duplicate key is still an error."""
    path = experiment()
    rows = "t: &t {config: t.yaml, label: T}\n  u: &u {<<: *t, label: U}\n  v: {seeds: [3], <<: *u}\n"
    path.write_text(f"rows:\n  {rows}")
    found = {row.name: (row.label, row.seeds) for row in load_experiment(path).rows}
    assert found == {"t": ("T", (0,)), "u": ("U", (0,)), "v": ("U", (3,))}
    path.write_text(f"rows:\n  {rows}  w: {{<<: *t, label: W, label: X}}\n")
    with pytest.raises(InputError, match="line 5: duplicate key 'label'"):
        load_experiment(path)


def test_configuration_that_is_wrong_is_one_line(experiment, tmp_path, capsys):
    path = experiment()
    (tmp_path / "t.yaml").write_text("model: {d_modle: 3}\n")
    line = fails(capsys, "run", path)
    assert "row 't'" in line
    assert "model: unknown key 'd_modle'" in line


def test_unknown_row_seed_and_file_are_one_line(experiment, tmp_path, capsys):
    path = experiment()
    for command in ("run", "status"):
        assert "no row 'nave'; available: t, nvae" in fails(capsys, command, path, "--rows", "t", "nave")
        assert "seed 7; available: 0, 1" in fails(capsys, command, path, "--seeds", "7")
        assert "no such file" in fails(capsys, command, tmp_path / "nowhere.yaml")
    assert "workers is 0" in fails(capsys, "run", path, "--engine=processes", "--workers=0")
    for gpus in ("-1", "1.5", "0.00001"):
        line = fails(capsys, "run", path, "--engine=ray", "--address=local", f"--gpus-per-cell={gpus}")
        assert f"gpus-per-cell is {float(gpus):g}" in line
    fails(capsys, "run", path, "--engine=slurm")
    assert not (tmp_path / "out").exists()


def fails(capsys, *arguments: object) -> str:
    """The one line on standard error of an exit with code 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", *map(str, arguments)])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nvib: ")
    assert said.err.count("\n") == 1
    return said.err
