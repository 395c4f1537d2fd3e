"""A step is computed once, and again if what is on disk is not what it wrote."""

import json
import math

import pytest

from open_nvib.store.files import Steps


def quiet(text: str) -> None: ...


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"3", b"null", b'{"result": {"value": 7}}', b'{"kl_g', b"\xff", b""], ids=repr
)
def test_a_file_that_no_step_wrote_is_computed_again(tmp_path, content):
    steps = Steps(tmp_path, quiet)
    steps.run("latent", {"seed": 0}, lambda: {"value": 7})
    (file,) = tmp_path.glob("latent-*.json")
    file.write_bytes(content)
    assert steps.run("latent", {"seed": 0}, lambda: {"value": 8}) == {"value": 8}
    assert steps.run("latent", {"seed": 0}, lambda: {"value": 9}) == {"value": 8}


def test_a_changed_number_is_noticed(tmp_path):
    steps = Steps(tmp_path, quiet)
    steps.run("latent", 0, lambda: [1.0, 2.0])
    (file,) = tmp_path.glob("latent-*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"result": [1.0, 3.0]}))
    assert steps.run("latent", 0, lambda: [1.0, 2.0]) == [1.0, 2.0]


def test_the_first_result_is_that_of_the_file(tmp_path):
    steps = Steps(tmp_path, quiet)
    first = steps.run("a", 0, lambda: {1: (math.inf, 2.0)})
    assert first == {"1": [None, 2.0]} == steps.run("a", 0, lambda: None)


def test_what_is_in_another_directory_counts_and_is_not_written(tmp_path):
    Steps(tmp_path / "shared", quiet).run("a", 0, lambda: 5)
    before = sorted((tmp_path / "shared").iterdir())
    steps = Steps(tmp_path / "own", quiet, others=[tmp_path / "shared"])
    assert steps.run("a", 0, lambda: 6) == 5
    assert steps.run("b", 0, lambda: 6) == 6
    assert sorted((tmp_path / "shared").iterdir()) == before
