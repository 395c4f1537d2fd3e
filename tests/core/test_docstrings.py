"""The examples in the docstrings run, and every public class has one."""

import doctest
import inspect

import pytest
import torch

import open_nvib as nv

PUBLIC = {name: getattr(nv, name) for name in dir(nv) if not name.startswith("_")}
CLASSES = {name: x for name, x in PUBLIC.items() if inspect.isclass(x)}


@pytest.mark.parametrize("name", [*sorted(CLASSES), "find_fewest"])
def test_the_example_of_a_docstring_runs(name):
    torch.manual_seed(0)
    thing = PUBLIC[name]
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(thing) or "", {**PUBLIC, "torch": torch, "nn": torch.nn}, name, None, 0
    )
    found = doctest.DocTestRunner().run(example)
    assert found.failed == 0
    assert found.attempted or name in WITHOUT_EXAMPLE


WITHOUT_EXAMPLE = {"Fewest", "PooledSet"}
"""Results of a function or a module that has the example."""
