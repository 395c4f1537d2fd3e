"""Old names work, warn where they are used, and name their successor."""

import inspect
import sys
import types
import warnings

import pytest

from open_nvib.cli.commands import NVIB as NVIB_COMMANDS
from open_nvib.cli.parser import parse
from open_nvib.report import draw_lengths
from open_nvib.text import data


@pytest.fixture
def old(monkeypatch):
    """`open_nvib.text.data`, which has one old name, without the check of types in tests, which adds frames."""
    module = types.ModuleType("old_module")
    monkeypatch.setattr(data, "warn_renamed", inspect.unwrap(data.warn_renamed))
    module.__getattr__ = inspect.unwrap(data.__getattr__)
    monkeypatch.setitem(sys.modules, "old_module", module)
    return module


def test_an_old_name_is_the_new_thing_and_warns_at_its_use(old):
    with pytest.warns(DeprecationWarning, match=r"data\.draw_lengths.*0\.3.*open_nvib\.report") as caught:
        assert old.draw_lengths is draw_lengths
    assert caught[0].filename == __file__


def test_an_import_of_an_old_name_warns_at_the_import(old):
    with pytest.warns(DeprecationWarning, match="draw_lengths") as caught:
        from old_module import draw_lengths as found  # pyright: ignore[reportMissingImports]
    assert found is draw_lengths
    assert {warning.filename for warning in caught} == {__file__}


def test_any_other_name_is_an_attribute_error_without_a_warning(old):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AttributeError, match="Nothing"):
            _ = old.Nothing
        assert not hasattr(old, "nothing")


def test_old_options_become_the_new_words_with_one_line_each(capsys):
    _, given = parse(NVIB_COMMANDS, ["reconstruct", "RUN", "a text --needed", "--needed"])
    assert given.texts == ["a text --needed"]
    assert given.settings == [(("vectors",), "fewest")]
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in ("--needed", "--vectors fewest", "0.3"))
