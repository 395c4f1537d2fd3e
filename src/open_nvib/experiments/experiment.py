"""An experiment: rows of configurations × seeds, and what to measure. `docs/experiments.md` is the guide."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from open_nvib.evaluation import EvaluateConfig
from open_nvib.experiments.yaml_file import as_mapping, check_keys, read_mapping, settings_of, shown
from open_nvib.store.files import InputError
from open_nvib.store.settings import TrainConfig
from open_nvib.text.data import PrepareConfig

KEYS = ("name", "title", "scale", "prepare", "output", "seeds", "evaluate", "defaults", "rows")
ROW_KEYS = ("config", "seeds", "label", "paper", "overrides")
ROW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
GROUPS = tuple(field.name for field in fields(TrainConfig) if is_dataclass(field.type))


@dataclass(frozen=True)
class Cell:
    """One row with one seed: what is trained and measured, and where it is kept.

    Args:
        row: name of the row.
        seed: of the training.
        label: what a report calls the row.
        paper: the row of the paper's table to print beside it, if the paper has it.
        directory: holds everything of the cell.
        train: the training.
        evaluate: what to measure.
        prepare: how the data is made where it is missing; None if it is made by other means.
    """

    row: str
    seed: int
    label: str
    paper: str
    directory: Path
    train: TrainConfig
    evaluate: EvaluateConfig
    prepare: PrepareConfig | None

    def __str__(self) -> str:
        return f"{self.row} seed {self.seed}"

    @property
    def run(self) -> Path:
        """The run directory, as `nvib train` writes it."""
        return self.directory / "run"

    @property
    def state_file(self) -> Path:
        return self.directory / "cell.json"

    @property
    def result_file(self) -> Path:
        return self.directory / "result.json"

    @property
    def log_file(self) -> Path:
        return self.directory / "log.txt"

    @property
    def failure_file(self) -> Path:
        return self.directory / "failure.log"

    @property
    def evaluation(self) -> str:
        """What a result calls the evaluation."""
        return f"{self.evaluate.split}-{self.evaluate.scorer}"

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the result, in JSON's own types."""
        return json.loads(json.dumps({"train": asdict(self.train), "evaluate": asdict(self.evaluate)}))

    def as_json(self) -> str:
        """All of it, for another process."""
        return json.dumps({**asdict(self), "directory": str(self.directory)})

    @staticmethod
    def from_json(text: str) -> "Cell":
        given = json.loads(text)
        where = f"{given['row']} seed {given['seed']}"
        kinds = {"train": TrainConfig, "evaluate": EvaluateConfig, "prepare": PrepareConfig}
        built = {
            name: None if given[name] is None else settings_of(kind, given[name], where=f"{where}: {name}")
            for name, kind in kinds.items()
        }
        return Cell(**{**given, **built, "directory": Path(given["directory"])})


@dataclass(frozen=True)
class Row:
    """A configuration and the seeds it is run with; the seed of `train` is not one of them."""

    name: str
    label: str
    paper: str
    seeds: tuple[int, ...]
    train: TrainConfig


@dataclass(frozen=True)
class Experiment:
    """Rows × seeds, and what to measure.

    Args:
        path: the file it was read from.
        name: a short name.
        title: what a report calls it.
        scale: a word that a report puts beside its numbers, such as small or paper.
        output: the directory of all cells.
        prepare: how the data is made where it is missing.
        evaluate: what to measure.
        rows: the rows, in the order of the file.
    """

    path: Path
    name: str
    title: str
    scale: str
    output: Path
    prepare: PrepareConfig | None
    evaluate: EvaluateConfig
    rows: tuple[Row, ...]

    def cell(self, row: Row, seed: int) -> Cell:
        return Cell(
            row=row.name,
            seed=seed,
            label=row.label,
            paper=row.paper,
            directory=self.output / row.name / f"seed-{seed}",
            train=replace(row.train, seed=seed),
            evaluate=self.evaluate,
            prepare=self.prepare,
        )

    def cells(self, rows: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
        """The cells of these rows and seeds, of all where none are named.

        The first seed of every row comes before the second of any: an experiment that is cut short has all rows.
        """
        names = [row.name for row in self.rows]
        for name in rows:
            if name not in names:
                raise InputError(f"{self.path}: there is no row {name!r}, there is {', '.join(names)}.")
        known = sorted({seed for row in self.rows for seed in row.seeds})
        for seed in seeds:
            if seed not in known:
                raise InputError(f"{self.path}: no row has seed {seed}, there is {', '.join(map(str, known))}.")
        chosen = [
            (turn, self.cell(row, seed))
            for row in self.rows
            for turn, seed in enumerate(row.seeds)
            if (not rows or row.name in rows) and (not seeds or seed in seeds)
        ]
        if not chosen:
            raise InputError(f"{self.path}: none of the rows {', '.join(rows)} has seed {', '.join(map(str, seeds))}.")
        return [cell for _, cell in sorted(chosen, key=lambda entry: entry[0])]


def count(cells: int) -> str:
    return "1 cell" if cells == 1 else f"{cells} cells"


def load_experiment(file: str | Path) -> Experiment:
    """Read an experiment's YAML. Any mistake in it, or in a configuration that it names, is an InputError."""
    path = Path(file).expanduser()
    given = read_mapping(path)
    check_keys(given, KEYS, where=str(path))
    name = _word(given, "name", path.stem, where=str(path))
    prepare = None
    if given.get("prepare") is not None:
        where = f"{path}: prepare"
        prepare = settings_of(PrepareConfig, as_mapping(given["prepare"], where=where), where=where)
    where = f"{path}: evaluate"
    evaluate = settings_of(EvaluateConfig, as_mapping(given.get("evaluate"), where=where), where=where)
    seeds = _seeds(given.get("seeds", [0]), where=f"{path}: seeds")
    defaults = _overrides(given.get("defaults"), where=f"{path}: defaults")
    if prepare is not None:
        defaults = {"data": prepare.output, **defaults}
    rows = as_mapping(given.get("rows"), where=f"{path}: rows")
    if not rows:
        raise InputError(f"{path}: there are no rows, wanted at least one, such as {{t: {{config: configs/t.yaml}}}}.")
    return Experiment(
        path=path,
        name=name,
        title=_word(given, "title", name, where=str(path)),
        scale=_word(given, "scale", "", where=str(path)),
        output=Path(_word(given, "output", f"runs/{name}", where=str(path))).expanduser(),
        prepare=prepare,
        evaluate=evaluate,
        rows=tuple(_row(path, name, row, seeds, defaults) for name, row in rows.items()),
    )


def _row(path: Path, name: str, value: Any, seeds: tuple[int, ...], defaults: Mapping[str, Any]) -> Row:
    where = f"{path}: row {name!r}"
    if not ROW_NAME.fullmatch(name):
        raise InputError(f"{where}: names a folder, wanted letters, digits and . _ + - in it. Choose another name.")
    given = as_mapping(value, where=where)
    check_keys(given, ROW_KEYS, where=where)
    if "config" not in given:
        raise InputError(f"{where}: has no config. Give the YAML file of its configuration.")
    config = _find(path, _word(given, "config", "", where=where), where=where)
    overrides = _overrides(given.get("overrides"), where=f"{where}: overrides")
    settings = merged(_settings(read_mapping(config), where=str(config)), defaults, overrides)
    return Row(
        name=name,
        label=_word(given, "label", name, where=where),
        paper=_word(given, "paper", name, where=where),
        seeds=_seeds(given["seeds"], where=f"{where}: seeds") if "seeds" in given else seeds,
        train=settings_of(TrainConfig, settings, where=f"{where} ({config})"),
    )


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later settings win, one by one within a group such as `loss`; a schedule is one value and replaced whole."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            result[key] = {**result.get(key, {}), **value} if key in GROUPS else value
    return result


def _settings(value: Any, *, where: str) -> dict[str, Any]:
    """Settings by group, to be merged."""
    given = as_mapping(value, where=where)
    for key in given:
        if "." in key:
            group, _, name = key.partition(".")
            raise InputError(f"{where}: got {key}, wanted its parts apart: {group}: {{{name}: …}}.")
    return {key: as_mapping(value, where=f"{where}: {key}") if key in GROUPS else value for key, value in given.items()}


def _overrides(value: Any, *, where: str) -> dict[str, Any]:
    given = _settings(value, where=where)
    if "seed" in given:
        raise InputError(f"{where}: seed is not set here. Give seeds: [{given['seed']}] to the row.")
    return given


def _find(path: Path, config: str, *, where: str) -> Path:
    for folder in (Path(), path.parent, path.parent.parent):
        if (folder / config).is_file():
            return folder / config
    raise InputError(
        f"{where}: there is no configuration {config!r}, looked for it here, in {path.parent} and one folder up. "
        f"Give the YAML file of a configuration."
    )


def _word(given: Mapping[str, Any], key: str, default: str, *, where: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not (value or not default):
        raise InputError(f"{where}: {key} is {shown(value)}, wanted text.")
    return value


def _seeds(value: Any, *, where: str) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)
    if not whole or not value or len(set(value)) != len(value):
        raise InputError(
            f"{where}: got {shown(value)}, wanted a list of different whole numbers from 0, such as [0, 1, 2]."
        )
    return tuple(value)
