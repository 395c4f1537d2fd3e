"""An experiment: rows of configurations × seeds, and what to measure. `docs/experiments.md` is the guide."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from open_nvib.store.cells import CellSettings
from open_nvib.store.files import InputError, file_lock, find_config, read_mapping, shown
from open_nvib.store.settings import TrainConfig, merged, settings_of
from open_nvib.store.task_settings import EvaluateConfig, PrepareConfig

Say = Callable[[str], None]  # takes a line of progress

ROW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Cell:
    """One row with one seed: what is trained and measured, and the directory that holds everything of it.

    `label`, `paper` and `prepare` are those of the row and of the experiment.
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
    def settings(self) -> CellSettings:
        return CellSettings(self.train, self.evaluate)


@dataclass(frozen=True)
class RowPlan:
    """A row, as far as a report needs to know it."""

    name: str
    seeds: tuple[int, ...]  # those that the experiment asks for
    label: str | None = None  # such as "NVAE λ′_G=0.01"; from the configuration if not given or equal to the name
    paper: str | None = None  # the row of the paper's table to print beside it, if the paper has one of that name


@dataclass(frozen=True)
class Plan:
    """The part of an experiment that a report needs."""

    name: str
    title: str  # of the page
    scale: str  # a word for how large models and data are, such as "small"; may be empty
    rows: tuple[RowPlan, ...]  # in the order of the table


@dataclass(frozen=True, kw_only=True)
class Row(RowPlan):
    """A row with its configuration; the seed of `train` is not one of its seeds."""

    train: TrainConfig


@dataclass(frozen=True, kw_only=True)
class Experiment(Plan):
    """Rows × seeds, and what to measure.

    Args:
        path: the file it was read from.
        output: the directory of all cells.
        prepare: how the data is made where it is missing; None if it is made by other means.
        evaluate: what to measure.
    """

    rows: tuple[Row, ...]
    path: Path
    output: Path
    prepare: PrepareConfig | None
    evaluate: EvaluateConfig

    def cells(self, rows: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
        """Select the cells of these rows and seeds; of all rows or seeds if none are given.

        The first seed of every row comes before the second of any, so that an experiment cut short has all rows.
        """
        names = [row.name for row in self.rows]
        known = sorted({seed for row in self.rows for seed in row.seeds})
        for name in rows:
            if name not in names:
                raise InputError(f"{self.path}: no row {name!r}; available: {', '.join(names)}.")
        for seed in seeds:
            if seed not in known:
                raise InputError(f"{self.path}: no row has seed {seed}; available: {', '.join(map(str, known))}.")
        chosen = [
            (turn, row, seed)
            for row in self.rows
            for turn, seed in enumerate(row.seeds)
            if (not rows or row.name in rows) and (not seeds or seed in seeds)
        ]
        if not chosen:
            raise InputError(f"{self.path}: none of the rows {', '.join(rows)} has seed {', '.join(map(str, seeds))}.")
        return [self._cell(row, seed) for _, row, seed in sorted(chosen, key=lambda entry: entry[0])]

    def _cell(self, row: Row, seed: int) -> Cell:
        directory, train = self.output / row.name / f"seed-{seed}", replace(row.train, seed=seed)
        label, paper = row.label or row.name, row.paper or row.name
        return Cell(row.name, seed, label, paper, directory, train, self.evaluate, self.prepare)


# The file


@dataclass(frozen=True)
class _RowEntry:
    """A row as the file has it."""

    config: str
    seeds: list[int] | None = None
    label: str | None = None
    paper: str | None = None
    overrides: dict[str, Any] | None = None


@dataclass(frozen=True)
class _ExperimentEntries:
    """The file of an experiment."""

    name: str | None = None
    title: str | None = None
    scale: str = ""
    prepare: PrepareConfig | None = None
    output: str | None = None
    seeds: list[int] = field(default_factory=lambda: [0])
    evaluate: EvaluateConfig | None = None
    defaults: dict[str, Any] | None = None
    rows: dict[str, _RowEntry] = field(default_factory=dict)


def load_experiment(file: str | Path) -> Experiment:
    """Read the YAML of an experiment. A mistake in it, or in a configuration that it names, is an InputError."""
    path = Path(file).expanduser()
    given = settings_of(_ExperimentEntries, read_mapping(path), where=str(path))
    name = given.name or path.stem
    if Path(name).name != name or name == ".." or "\\" in name:
        raise InputError(f"{path}: name: got {shown(name)}, which names a folder, expected one without / and \\.")
    if not given.rows:
        raise InputError(f"{path}: no rows, expected at least one, such as {{t: {{config: configs/t.yaml}}}}.")
    defaults = {"data": given.prepare.output} if given.prepare else {}
    defaults |= given.defaults or {}
    return Experiment(
        path=path,
        name=name,
        title=given.title or name,
        scale=given.scale,
        output=Path(given.output or f"runs/{name}").expanduser(),
        prepare=given.prepare,
        evaluate=given.evaluate or EvaluateConfig(),
        rows=tuple(_row(path, name, row, given.seeds, defaults) for name, row in given.rows.items()),
    )


def _row(path: Path, name: str, given: _RowEntry, seeds: list[int], defaults: Mapping[str, Any]) -> Row:
    where = f"{path}: row {name!r}"
    if not ROW_NAME.fullmatch(name):
        raise InputError(f"{where}: names a folder, expected letters, digits and . _ + - only. Choose another name.")
    config = find_config(given.config, path.parent, path.parent.parent, where=where)
    overrides = given.overrides or {}
    if "seed" in {**defaults, **overrides}:
        raise InputError(f"{where}: seed is set as a default or an override. Give seeds: [0] to the row instead.")
    seeds = seeds if given.seeds is None else given.seeds
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise InputError(f"{where}: seeds: got {shown(seeds)}, expected different whole numbers, such as [0, 1].")
    settings = merged(TrainConfig, read_mapping(config), defaults, overrides)
    return Row(
        name=name,
        label=given.label,
        paper=given.paper or name,
        seeds=tuple(seeds),
        train=settings_of(TrainConfig, settings, where=f"{where} ({config})"),
    )


# The data


def check_recipe(config: PrepareConfig) -> bool:
    """Tell whether the data is there; an InputError if it was made by another recipe."""
    from open_nvib.text.data.prepare import prepare
    from open_nvib.text.data.prepared import is_prepared

    there = is_prepared(Path(config.output).expanduser())
    if there:
        prepare(config)
    return there


def prepare_if_missing(config: PrepareConfig | None, say: Say) -> None:
    """Prepare the data once, however many cells need it at the same time. Data of another recipe is an InputError."""
    if config is None or check_recipe(config):
        return
    from open_nvib.text.data.prepare import prepare

    output = Path(config.output).expanduser()
    with file_lock(output.with_name(f".{output.name}.lock")):
        if not check_recipe(config):  # another process may have made it in the meantime
            say(f"preparing {config.source} in {output}")
            prepare(config)
