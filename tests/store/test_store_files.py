"""Files are written whole, by many at once, and read with one line on what is wrong; results are computed once."""

import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from open_nvib.store.files import (
    OPTIONAL,
    InputError,
    ResultCache,
    as_builtins,
    from_builtins,
    obstacle_to_writing,
    read_record,
    write_json,
    write_text,
)
from open_nvib.store.task_settings import Recipe


@dataclass(frozen=True)
class Part:
    value: float | None = None


@dataclass(frozen=True)
class Whole:
    count: int = 0
    parts: tuple[Part, ...] = ()
    by_length: dict[int, Part] = field(default_factory=dict)
    extra: Part | None = field(default=None, metadata=OPTIONAL)
    more: dict[str, Part] = field(default_factory=dict, metadata=OPTIONAL)


def test_numbers_that_are_not_finite_are_none():
    values = {"a": math.inf, 2: [math.nan, 1.5, (3, -math.inf)], "c": None}
    assert as_builtins(values) == {"a": None, "2": [None, 1.5, [3, None]], "c": None}


def test_dataclasses_come_back_from_builtins():
    whole = Whole(3, (Part(1.5), Part()), {7: Part(2.0)}, Part(0.5))
    plain = as_builtins(whole)
    assert plain == {
        "count": 3,
        "parts": [{"value": 1.5}, {"value": None}],
        "by_length": {"7": {"value": 2.0}},
        "extra": {"value": 0.5},
    }
    assert from_builtins(plain, Whole) == whole
    assert set(as_builtins(Whole())) == {"count", "parts", "by_length"}, "optional fields without a value are left out"


def test_a_record_takes_defaults_and_ignores_what_it_does_not_know(tmp_path):
    (tmp_path / "a.json").write_text('{"parts": [{"value": Infinity}], "later": 3}')
    assert read_record(tmp_path / "a.json", Whole, fix="") == Whole(parts=(Part(),))


@pytest.mark.parametrize(
    ("content", "entry"),
    [
        ('{"count": "three"}', r"\$\.count"),
        ('{"parts": [{}, {"value": []}]}', r"\$\.parts\[1\]\.value"),
        ("[]", "array"),
    ],
)
def test_a_record_that_does_not_fit_is_one_line_with_the_entry(tmp_path, content, entry):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=rf"a\.json: .*{entry}.*Do this\.$") as stopped:
        read_record(tmp_path / "a.json", Whole, fix="Do this.")
    assert len(str(stopped.value).splitlines()) == 1


def test_writers_at_once_do_not_meet(tmp_path):
    """With one name for what is half-written, some replace a file that another has taken away."""
    failures: list[Exception] = []

    def write(value: int) -> None:
        try:
            for _ in range(20):
                write_json(tmp_path / "a.json", {"value": [value] * 100})
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(json.loads((tmp_path / "a.json").read_text())["value"])) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_half_of_a_character_is_written_as_json_has_it(tmp_path):
    write_json(tmp_path / "a.json", {"text": "\udc80"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"text": "\udc80"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"null", b"\xff\x00", b'{"a', b"[" * 100_000, None], ids=lambda x: str(x)[:8]
)
def test_what_is_no_object_is_one_line(tmp_path, content):
    path = tmp_path / "a.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json: cannot be used \(.+\)\. Do this\.$") as stopped:
        read_record(path, Whole, fix="Do this.")
    assert len(str(stopped.value).splitlines()) == 1


def test_a_file_in_the_way_of_a_directory_is_an_obstacle(tmp_path):
    (tmp_path / "a").write_text("")
    for directory in (tmp_path / "a", tmp_path / "a" / "b"):
        assert obstacle_to_writing(directory)
    assert obstacle_to_writing(tmp_path / "new") is None
    assert list((tmp_path / "new").iterdir()) == []


def quiet(text: str) -> None: ...


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"3", b"null", b'{"result": {"value": 7}}', b'{"kl_g', b"\xff", b""], ids=repr
)
def test_a_damaged_result_is_computed_again(tmp_path, content):
    cache = ResultCache(tmp_path, quiet)
    cache.run("latent", {"seed": 0}, lambda: Part(7), Part)
    (file,) = tmp_path.glob("latent-*.json")
    file.write_bytes(content)
    assert cache.run("latent", {"seed": 0}, lambda: Part(8), Part) == Part(8)
    assert cache.run("latent", {"seed": 0}, lambda: Part(9), Part) == Part(8)


def test_a_changed_number_is_noticed(tmp_path):
    cache = ResultCache(tmp_path, quiet)
    cache.run("latent", 0, lambda: [1.0, 2.0], list[float])
    (file,) = tmp_path.glob("latent-*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"result": [1.0, 3.0]}))
    assert cache.run("latent", 0, lambda: [1.0, 2.0], list[float]) == [1.0, 2.0]


def test_a_result_of_another_form_is_computed_again(tmp_path):
    cache = ResultCache(tmp_path, quiet)
    cache.run("latent", 0, lambda: {"value": "high"}, dict[str, str])
    assert cache.run("latent", 0, lambda: Part(2), Part) == Part(2)


def test_the_first_result_is_that_of_the_file(tmp_path):
    cache = ResultCache(tmp_path, quiet)
    first = cache.run("a", 0, lambda: Whole(by_length={1: Part(math.inf)}), Whole)
    assert first == Whole(by_length={1: Part()}) == cache.run("a", 0, Whole, Whole)


def test_results_of_earlier_versions_are_found(tmp_path):
    """The name of a file and its digest as they have been since the first version."""
    inputs = {"seed": 0, "recipe": Recipe({"source": "enwik8"}, {"partitions": {"short": (5, 20)}}), "model": "ab12"}
    content = '{"digest": "c27e123daf39", "result": {"value": 7}}'
    (tmp_path / "latent-fbfe3f3e8787.json").write_text(content)
    assert ResultCache(tmp_path, quiet).run("latent", inputs, Part, Part) == Part(7)


def test_results_in_another_directory_are_read_and_nothing_is_written_there(tmp_path):
    ResultCache(tmp_path / "shared", quiet).run("a", 0, lambda: 5, int)
    before = sorted((tmp_path / "shared").iterdir())
    cache = ResultCache(tmp_path / "own", quiet, others=[tmp_path / "shared"])
    assert cache.run("a", 0, lambda: 6, int) == 5
    assert cache.run("b", 0, lambda: 6, int) == 6
    assert sorted((tmp_path / "shared").iterdir()) == before
