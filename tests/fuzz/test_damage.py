"""Random damage to the files of a run and of prepared data: each command gives what it gave, or says one line."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from amounts import FEW, MANY, examples
from hypothesis import given
from hypothesis import strategies as st

from open_nvib.cli import main
from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import load_run

CONTENTS = ("truncate", "flip", "delete", "directory", "json", "types", "bytes", "empty", "swap")
PLACES = ("dangling", "loop", "pipe", "device")
KINDS = (*CONTENTS, *PLACES)
JSON = ("null", "[]", "{}", "[" * 10_000, '{"a": 1e999}', '"\\ud800"', "-1", '{"format": 3, "model_type": []}')
OTHER_VALUES: tuple[Any, ...] = (None, [], {}, -1, 1e308, 10**30, "", "x", True, [None], {"a": {}})
LONGEST_SECONDS = 300


def other_types(value: Any, generator: random.Random) -> Any:
    """Replace one value, somewhere inside, by one of another type."""
    if value and isinstance(value, (dict, list)) and generator.random() < 0.8:
        key = generator.choice(list(value) if isinstance(value, dict) else range(len(value)))
        changed = other_types(value[key], generator)
        return {**value, key: changed} if isinstance(value, dict) else [*value[:key], changed, *value[key + 1 :]]
    return generator.choice(OTHER_VALUES)


def hurt(path: Path, other: Path, kind: str, seed: int) -> None:
    """Damage one file; `other` is the one to swap it with."""
    generator, content = random.Random(seed), path.read_bytes()
    place = generator.randrange(len(content) or 1)
    links: dict[str, Callable[[], object]] = {
        "directory": path.mkdir,
        "dangling": lambda: path.symlink_to("nowhere"),
        "loop": lambda: path.symlink_to(path.name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "pipe": lambda: os.mkfifo(path),
        "delete": lambda: None,
    }
    if kind == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind in links:
        path.unlink()
        links[kind]()
    else:
        flipped = content[:place] + bytes([255 - (content[place] if content else 0)]) + content[place + 1 :]
        made = {"truncate": content[:place], "flip": flipped, "json": generator.choice(JSON).encode(), "empty": b""}
        if kind == "types":
            with contextlib.suppress(ValueError):  # what is no JSON gets random bytes
                made[kind] = json.dumps(other_types(json.loads(content), generator)).encode()
        path.write_bytes(made[kind] if kind in made else generator.randbytes(100))


def load_both(run: Path, data: Path) -> None:
    load_run(run)
    prepared = load_prepared(data)
    assert prepared.tokenizer is not None
    for partition in prepared.partitions:
        prepared.split(partition, "train")


TINY = ["--optimiser.steps=1", "--optimiser.batch_size=8", "--model.d_model=8", "--watch.bleu_sentences=1"]
COMMANDS = {
    "check run": ["check", "RUN"],
    "check data": ["check", "DATA"],
    "reconstruct": ["reconstruct", "RUN", "the war", "her sister"],
    "sample": ["sample", "RUN", "--count=2"],
    "interpolate": ["interpolate", "RUN", "the war", "her sister", "--steps=2"],
    "inspect": ["inspect", "RUN", "the war"],
    "encode": ["encode", "RUN", "--file=RUN/log.jsonl", "--output=RUN/latents.parquet"],
    "evaluate": ["evaluate", "RUN", "--data=DATA", "--measure=[reconstruction]", "--sentences=2"],
    "report": ["report", "RUN", "--output=RUN/report"],
    "go on": ["train", "--config=ORIGINAL/config.yaml", "--output=RUN"],
    "train": ["train", "--data=DATA", "--output=RUN/new", *TINY],
    "replace": ["train", "--data=DATA", "--output=RUN", "--overwrite", *TINY],
}
SAME = ("check run", "check data", "reconstruct", "sample", "interpolate", "inspect")
"""Commands that print what they found and nothing else: after damage, the same or an error."""


def run_command(name: str, folder: Path, original: Path) -> tuple[object, str, str]:
    """Returns exit code, output and errors; a command that takes too long is an error."""
    places = {"RUN": folder / "run", "DATA": folder / "data", "ORIGINAL": original}
    line = list(COMMANDS[name])
    for short, path in places.items():
        line = [part.replace(short, str(path)) for part in line]
    output, errors = io.StringIO(), io.StringIO()
    code: object = 0

    def too_long(number: int, frame: object) -> None:
        raise AssertionError(f"{name}: not done after {LONGEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main(line)
    except SystemExit as stopped:
        code = stopped.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, output.getvalue(), errors.getvalue()


def copy_both(trained, folder: Path) -> list[Path]:
    """Copy the run and its data. Returns their files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, original in (("run", trained.path), ("data", Path(trained.config.data))):
        shutil.copytree(original, folder / name, ignore=shutil.ignore_patterns("checkpoints"))
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.fixture(scope="session")
def undamaged(trained, tmp_path_factory) -> dict[str, str]:
    """What the commands print of the whole run."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    copy_both(trained, folder)
    found = {name: run_command(name, folder, trained.path) for name in SAME}
    assert {code for code, _, _ in found.values()} == {0}
    return {name: output for name, (_, output, _) in found.items()}


def survive(trained, undamaged, folder: Path, index: int, other: int, kind: str, seed: int, name: str) -> None:
    files = copy_both(trained, folder)
    damaged = files[index % len(files)]
    before = damaged.read_bytes()
    hurt(damaged, files[other % len(files)], kind, seed)
    listed = damaged.name not in ("metrics.json", "log.jsonl", "lengths.svg", "manifest.json")
    changed = not (damaged.is_file() and damaged.read_bytes() == before)
    if "pipe" not in kind:  # of which a library that opens it never hears the end
        with contextlib.suppress(InputError):
            load_both(folder / "run", folder / "data")
    code, output, errors = run_command(name, folder, trained.path)
    assert code in (0, 2), (name, damaged, kind, errors)
    assert "Traceback" not in errors
    said = [line for line in errors.splitlines() if line.startswith("nvib: ")]
    if code == 2:
        assert said, (name, damaged, kind, errors)
        assert len(said) == 1 or name.startswith("check")
    elif name in SAME:
        assert output == undamaged[name], (name, damaged, kind)
        checked = folder / name.removeprefix("check ") if name.startswith("check") else folder / "nothing"
        assert not (listed and changed and checked in damaged.parents), (name, damaged, kind)


DAMAGE = (
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from(KINDS),
    st.integers(0, 2**31),
    st.sampled_from(sorted(COMMANDS)),
)


@examples(FEW // 2)
@given(*DAMAGE)
def test_damage_is_one_line_or_harmless(trained, undamaged, tmp_path_factory, index, other, kind, seed, name):
    survive(trained, undamaged, tmp_path_factory.getbasetemp() / "damaged", index, other, kind, seed, name)


@pytest.mark.slow
@examples(MANY // 4)
@given(*DAMAGE)
def test_much_damage_is_one_line_or_harmless(trained, undamaged, tmp_path_factory, index, other, kind, seed, name):
    survive(trained, undamaged, tmp_path_factory.getbasetemp() / "damaged", index, other, kind, seed, name)
