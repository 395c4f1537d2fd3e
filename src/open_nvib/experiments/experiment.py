"""An experiment: rows of configurations × seeds, and what to measure. `docs/experiments.md` is the guide."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from open_nvib.store.cells import CellSettings
from open_nvib.store.evaluations import name_of
from open_nvib.store.files import InputError
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import EvaluateConfig, PrepareConfig
from open_nvib.store.yaml_file import as_mapping, check_keys, merged, read_mapping, settings_of, shown

Say = Callable[[str], None]
"""Takes a line of progress."""

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
        """Name of the evaluation in the result."""
        return name_of(self.evaluate.split, self.evaluate.scorer)

    @property
    def settings(self) -> CellSettings:
        return CellSettings(self.train, self.evaluate)


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
        directory, train = self.output / row.name / f"seed-{seed}", replace(row.train, seed=seed)
        return Cell(row.name, seed, row.label, row.paper, directory, train, self.evaluate, self.prepare)

    def cells(self, rows: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
        """Select the cells of these rows and seeds; of all rows or seeds if none are given.

        The first seed of every row comes before the second of any, so that an experiment cut short has all rows.
        """
        names = [row.name for row in self.rows]
        for name in rows:
            if name not in names:
                raise InputError(f"{self.path}: no row {name!r}; available: {', '.join(names)}.")
        known = sorted({seed for row in self.rows for seed in row.seeds})
        for seed in seeds:
            if seed not in known:
                raise InputError(f"{self.path}: no row has seed {seed}; available: {', '.join(map(str, known))}.")
        chosen = [
            (turn, self.cell(row, seed))
            for row in self.rows
            for turn, seed in enumerate(row.seeds)
            if (not rows or row.name in rows) and (not seeds or seed in seeds)
        ]
        if not chosen:
            raise InputError(f"{self.path}: none of the rows {', '.join(rows)} has seed {', '.join(map(str, seeds))}.")
        return [cell for _, cell in sorted(chosen, key=lambda entry: entry[0])]


def load_experiment(file: str | Path) -> Experiment:
    """Read the YAML of an experiment. A mistake in it, or in a configuration that it names, is an InputError."""
    path = Path(file).expanduser()
    given = read_mapping(path)
    check_keys(given, KEYS, where=str(path))
    name = _text(given, "name", path.stem, where=str(path))
    if Path(name).name != name or name == ".." or "\\" in name:  # it names a folder
        raise InputError(f"{path}: name is {shown(name)}, expected one without / and \\. Choose another name.")
    prepare = None
    if given.get("prepare") is not None:
        prepare = settings_of(PrepareConfig, given["prepare"], where=f"{path}: prepare")
    evaluate = settings_of(EvaluateConfig, given.get("evaluate"), where=f"{path}: evaluate")
    seeds = _seeds(given.get("seeds", [0]), where=f"{path}: seeds")
    defaults = _overrides(given.get("defaults"), where=f"{path}: defaults")
    if prepare is not None:
        defaults = {"data": prepare.output, **defaults}
    rows = as_mapping(given.get("rows"), where=f"{path}: rows")
    if not rows:
        raise InputError(f"{path}: no rows, expected at least one, such as {{t: {{config: configs/t.yaml}}}}.")
    return Experiment(
        path=path,
        name=name,
        title=_text(given, "title", name, where=str(path)),
        scale=_text(given, "scale", "", where=str(path)),
        output=Path(_text(given, "output", f"runs/{name}", where=str(path))).expanduser(),
        prepare=prepare,
        evaluate=evaluate,
        rows=tuple(_row(path, name, row, seeds, defaults) for name, row in rows.items()),
    )


def _row(path: Path, name: str, value: Any, seeds: tuple[int, ...], defaults: Mapping[str, Any]) -> Row:
    where = f"{path}: row {name!r}"
    if not ROW_NAME.fullmatch(name):
        raise InputError(f"{where}: names a folder, expected letters, digits and . _ + - only. Choose another name.")
    given = as_mapping(value, where=where)
    check_keys(given, ROW_KEYS, where=where)
    if "config" not in given:
        raise InputError(f"{where}: has no config. Give the YAML file of its configuration.")
    config = _find(path, _text(given, "config", "", where=where), where=where)
    overrides = _overrides(given.get("overrides"), where=f"{where}: overrides")
    settings = merged(TrainConfig, _settings(read_mapping(config), where=str(config)), defaults, overrides)
    return Row(
        name=name,
        label=_text(given, "label", name, where=where),
        paper=_text(given, "paper", name, where=where),
        seeds=_seeds(given["seeds"], where=f"{where}: seeds") if "seeds" in given else seeds,
        train=settings_of(TrainConfig, settings, where=f"{where} ({config})"),
    )


def _settings(value: Any, *, where: str) -> dict[str, Any]:
    """Check that groups of settings are mappings."""
    given = as_mapping(value, where=where)
    for key in given:
        if "." in key:
            group, _, name = key.partition(".")
            raise InputError(f"{where}: got the key {key}, expected a mapping: {group}: {{{name}: …}}.")
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
        f"{where}: no configuration {config!r} in the working directory, in {path.parent} or one folder up. "
        f"Give the YAML file of a configuration."
    )


def _text(given: Mapping[str, Any], key: str, default: str, *, where: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not (value or not default):
        raise InputError(f"{where}: {key} is {shown(value)}, expected text.")
    return value


def _seeds(value: Any, *, where: str) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)
    if not whole or not value or len(set(value)) != len(value):
        raise InputError(
            f"{where}: got {shown(value)}, expected a list of different whole numbers from 0, such as [0, 1, 2]."
        )
    return tuple(value)


def prepare_if_missing(config: PrepareConfig | None, say: Say) -> None:
    """Prepare the data once, however many cells need it at the same time. Data of another recipe is an InputError."""
    if config is None:
        return
    from open_nvib.text.data.prepare import prepare
    from open_nvib.text.data.prepared import is_prepared

    output = Path(config.output).expanduser()
    if not is_prepared(output):
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror}). Give prepare another output.") from error
        with FileLock(output.with_name(f".{output.name}.lock")):
            if not is_prepared(output):
                say(f"preparing {config.source} in {output}")
                prepare(config)
                return
    check_recipe(config)


def check_recipe(config: PrepareConfig | None) -> None:
    """Raise an InputError if the data exists and was made by another recipe."""
    if config is None:
        return
    from open_nvib.text.data.prepare import make_recipe
    from open_nvib.text.data.prepared import is_prepared, load_prepared
    from open_nvib.text.data.sources import Source, open_source

    output = Path(config.output).expanduser()
    if not is_prepared(output):
        return
    known = load_prepared(output).recipe
    try:
        source = open_source(config)
    except InputError:  # prepared data can be used without its source, of which the name alone is then compared
        source = Source({**known.source, "source": Path(config.source).name}, [])
    different = known.differences(make_recipe(config, source))
    if different:
        raise InputError(
            f"{output}: holds data of another recipe ({'; '.join(different)}) than that of prepare. Give prepare "
            f"another output, or make the data anew with `nvib prepare --overwrite`."
        )
