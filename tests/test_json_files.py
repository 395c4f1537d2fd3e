"""Files written whole, by many at once, and read with one line on what is wrong."""

import json
import math
import threading
from pathlib import Path

import pytest

from open_nvib.store.files import InputError, check_writable, finite, read_object, whole_name, write_json, write_text


def test_what_is_not_finite_is_null():
    values = {"a": math.inf, 2: [math.nan, 1.5, (3, -math.inf)], "c": None}
    assert finite(values) == {"a": None, "2": [None, 1.5, [3, None]], "c": None}


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


def test_whole_name_is_that_of_the_file_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda self, target: None)  # killed before
    write_text(tmp_path / "config.yaml", "")
    (left,) = tmp_path.iterdir()
    assert whole_name(left) == "config.yaml" == whole_name(Path("config.yaml"))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"null", b"\xff\x00", b'{"a', b"[" * 100_000, None], ids=lambda x: str(x)[:8]
)
def test_what_is_no_object_is_one_line(tmp_path, content):
    path = tmp_path / "a.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json: cannot be used \(.+\)\. Do this\.$") as stopped:
        read_object(path, fix="Do this.")
    assert len(str(stopped.value).splitlines()) == 1


def test_a_file_in_the_way_of_a_directory_is_one_line(tmp_path):
    (tmp_path / "a").write_text("")
    for directory in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(InputError, match=r"cannot be written \(.+\)\. Move it\.$"):
            check_writable(directory, fix="Move it.")
    check_writable(tmp_path / "new", fix="")
    assert list((tmp_path / "new").iterdir()) == []
