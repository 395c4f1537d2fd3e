"""The examples of one file, with few steps."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def squares(tmp_path_factory) -> Path:
    """A folder of images with squares, as the example reads them."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name, count in (("train", 40), ("test", 6)):
        images = np.zeros((count, 28, 28), int)
        for image, row, column in zip(images, *generator.integers(0, 18, (2, count)), strict=True):
            image[row : row + 9, column : column + 9] = 255
        rows = np.concatenate([np.arange(count)[:, None] % 3, images.reshape(count, -1)], 1)
        np.savetxt(folder / f"mnist_{name}.csv", rows, "%d", ",", header="label,pixels", comments="")
    return folder


def test_the_paper_in_one_file_trains_and_shows_its_results(capsys):
    assert 0 < load("nvae").main(steps=3) <= 1
    assert "samples from the prior" in capsys.readouterr().out


@pytest.mark.parametrize("gates", [None, 0.3])
def test_images_train_and_show_their_results(squares, gates, capsys):
    assert load("images").main(squares, steps=3, gates=gates) > 0
    shown = capsys.readouterr().out
    assert ("of the kept patches have ink" if gates else "fewest vectors") in shown
    assert "samples from the prior" in shown


@pytest.mark.parametrize(("name", "lines"), [("nvae", 150), ("images", 250)])
def test_examples_can_be_read_in_one_sitting(name, lines):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= lines
    assert f"python examples/{name}.py" in text.splitlines()[0]
