"""The scorer of real text: kept, trained again if it is damaged, and kept elsewhere if the data cannot be written."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from open_nvib.evaluation.generation import measure_real_text
from open_nvib.evaluation.references import References
from open_nvib.store.task_settings import EvaluateConfig
from open_nvib.text.data import load_prepared
from open_nvib.text.model.configuration import TextAutoencoderConfig

SETTINGS = EvaluateConfig(samples=10, scorer_steps=2)


@pytest.fixture
def references(evaluation_data, tmp_path) -> Callable[[], References]:
    """Makes references anew to one copy of the data; `said` of each are its words."""
    ignored = shutil.ignore_patterns("scorers")
    prepared = load_prepared(shutil.copytree(evaluation_data, tmp_path / "data", ignore=ignored))
    config = TextAutoencoderConfig(
        vocab_size=len(prepared.tokenizer), d_model=8, ffn_size=8, max_positions=32, bos_token_id=2, eos_token_id=3
    )

    def make() -> References:
        said: list[str] = []
        made = References(prepared, "short", config, SETTINGS, tmp_path / "own", said.append)
        made.__dict__["said"] = said
        return made

    return make


def said(references: References) -> list[str]:
    return [text for text in references.__dict__["said"] if "kept in" in text]


def weights(references: References) -> torch.Tensor:
    embedding: Any = references.scorer.model.get_input_embeddings()
    return embedding.weight.detach().clone()  # the file is mapped into memory, where harm to it would show


def kept(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if path.is_dir())
    return found


def truncate(path: Path) -> None:
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-9] ^= 0x40
    (path / "model.safetensors").write_bytes(bytes(content))


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("harm", [truncate, flip, empty, lambda path: (path / "config.json").unlink()])
def test_a_damaged_scorer_is_trained_again(references, harm, tmp_path):
    first = references()
    expected = weights(first)
    assert len(said(first)) == 1
    again = references()
    torch.testing.assert_close(weights(again), expected, rtol=0, atol=0)
    assert said(again) == []
    harm(kept(tmp_path / "data" / "scorers"))
    healed = references()
    torch.testing.assert_close(weights(healed), expected, rtol=0, atol=0)
    assert len(said(healed)) == 1
    torch.testing.assert_close(weights(last := references()), expected, rtol=0, atol=0)
    assert said(last) == []


def test_a_file_in_the_way_beside_the_data_sends_the_scorer_elsewhere(references, tmp_path):
    (tmp_path / "data" / "scorers").write_text("of the user")
    first = references()
    expected = weights(first)
    (words,) = said(first)
    assert str(tmp_path / "own") in words
    assert "scorers cannot be written (" in words
    assert (tmp_path / "data" / "scorers").read_text() == "of the user"
    torch.testing.assert_close(weights(again := references()), expected, rtol=0, atol=0)
    assert said(again) == []
    assert measure_real_text(again) == measure_real_text(references())


def test_data_that_may_be_read_only_is_enough_where_all_is_there(references, tmp_path, monkeypatch):
    first = references()
    expected = weights(first), measure_real_text(first)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("open_nvib.store.files.tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("open_nvib.store.files.FileLock", refuse)
    again = references()
    torch.testing.assert_close(weights(again), expected[0], rtol=0, atol=0)
    assert measure_real_text(again) == expected[1]
    assert not (tmp_path / "own").exists()
