"""The counts of `tools/house.py`, on snippets whose counts are known."""

import ast

import pytest

from tools import house

SWITCHES = {
    "isinstance(latent, Posterior)": 1,
    "isinstance(model.bottleneck, (PlainBottleneck, NVIBBottleneck))": 1,
    "hasattr(latent, 'z')": 1,
    "config.bottleneck == 'vtp'": 1,
    "config.bottleneck in ('vtp', 'vts')": 1,
    "match latent:\n case VectorLatent(): pass\n case Posterior(): pass": 2,
    "isinstance(mixture, GaussianMixture)": 0,
    "latent.kl() == 0": 0,
    "make(config.bottleneck)": 0,
}


@pytest.mark.parametrize("code", SWITCHES)
def test_switches_are_counted(code):
    assert sum(map(house.is_switch, ast.walk(ast.parse(code)))) == SWITCHES[code]


def test_records_are_read_by_name():
    code = """
found: dict[str, Any] = read()
found["bleu"] = found["old"]["bleu"]
kind: Literal["a"]
rows[0]
"""
    nodes = list(ast.walk(ast.parse(code)))
    assert sum(map(house.is_read_by_name, nodes)) == 2


CHECKED = """
from package._checks import check_count  # check
def double(x, sizes):
    check_count("double", x)  # check
    for size in sizes:  # check
        if size < 0:  # check
            raise ValueError(size)  # check
    if x is None:  # check
        raise TypeError  # check
    else:
        x = 0
    return 2 * x
def _check(x):  # check
    return x  # check
"""


def test_lines_that_check_are_counted():
    expected = {number for number, line in enumerate(CHECKED.splitlines(), 1) if line.endswith("# check")}
    assert set(house.check_lines(ast.parse(CHECKED))) == expected


def test_code_is_counted_without_comments_and_docstrings(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""A module\n\nof words."""\n\n# a comment\nx = 1\n"""What x is."""\n')
    assert house.code_lines(file, ast.parse(file.read_text())) == {6}


def test_imports_for_type_checkers_do_not_count():
    code = """
import open_nvib.text
if TYPE_CHECKING:
    from open_nvib.report import page
def function():
    from open_nvib.cli import main
from torch import nn
"""
    assert list(house.imported(ast.parse(code))) == ["open_nvib.text", "open_nvib.cli.main"]


def test_packages_that_import_each_other_are_a_cycle(monkeypatch):
    imports = {"cli": {"text", "core"}, "text": {"core", "data"}, "data": {"text"}, "core": {"core"}}
    monkeypatch.setattr(house, "package_imports", lambda: imports)
    assert house.cycles() == [["data", "text"]]
