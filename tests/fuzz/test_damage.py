"""Random damage to the files of a run and of prepared data: loading gives what was there or an InputError."""

import random
import shutil
from pathlib import Path

import pytest
from amounts import FEW, MANY, examples
from hypothesis import given
from hypothesis import strategies as st

from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.using.run import load_run

KINDS = ("truncate", "flip", "delete", "directory", "json", "bytes", "empty", "dangling")
JSON = ("null", "[]", "{}", "[" * 10_000, '{"a": 1e999}', '"\\ud800"', "-1", '{"format": 3, "model_type": []}')


def hurt(path: Path, kind: str, seed: int) -> None:
    generator, content = random.Random(seed), path.read_bytes()
    place = generator.randrange(len(content) or 1)
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind != "delete":
        flipped = content[:place] + bytes([255 - (content[place] if content else 0)]) + content[place + 1 :]
        made = {"truncate": content[:place], "flip": flipped, "json": generator.choice(JSON).encode(), "empty": b""}
        path.write_bytes(made[kind] if kind in made else generator.randbytes(100))


def load_both(run: Path, data: Path) -> None:
    load_run(run)
    prepared = load_prepared(data)
    assert prepared.tokenizer is not None
    for partition in prepared.partitions:
        prepared.split(partition, "train")


def survive(trained, folder: Path, index: int, kind: str, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    data, run = Path(trained.config.data), trained.path
    for name, original in (("run", run), ("data", data)):
        shutil.copytree(original, folder / name, ignore=shutil.ignore_patterns("checkpoints"))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    hurt(files[index % len(files)], kind, seed)
    try:
        load_both(folder / "run", folder / "data")
    except InputError as error:
        if "\n" in str(error):
            raise


DAMAGE = (st.integers(0, 100), st.sampled_from(KINDS), st.integers(0, 2**31))


@examples(FEW // 2)
@given(*DAMAGE)
def test_damage_is_an_input_error_or_harmless(trained, tmp_path_factory, index, kind, seed):
    survive(trained, tmp_path_factory.getbasetemp() / "damaged", index, kind, seed)


@pytest.mark.slow
@examples(MANY // 4)
@given(*DAMAGE)
def test_much_damage_is_an_input_error_or_harmless(trained, tmp_path_factory, index, kind, seed):
    survive(trained, tmp_path_factory.getbasetemp() / "damaged", index, kind, seed)
