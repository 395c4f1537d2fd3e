"""Nothing is downloaded here: the archive is made on the spot, and pip is pointed at an index that is not there."""

import gzip
import hashlib
import io
import tarfile

import pytest

from open_nvib.store.files import InputError
from open_nvib.text.data import enwik8

CONTENT = b"<mediawiki> not really 100 MB"


def make_archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_only_the_member_is_copied_whatever_else_the_archive_holds(tmp_path):
    packed = gzip.compress(CONTENT)
    make_archive(
        tmp_path / "a.tar.gz", {"../evil": b"x", "p-1/other/data/enwik8.gz": b"x", "p-1/data/enwik8.gz": packed}
    )
    target = tmp_path / "in" / "enwik8.gz"
    target.parent.mkdir()
    enwik8.copy_member(tmp_path / "a.tar.gz", target)
    assert target.read_bytes() == packed
    assert not (tmp_path.parent / "evil").exists()
    make_archive(tmp_path / "b.tar.gz", {"p-1/setup.py": b"x"})
    with pytest.raises(InputError, match="--source"):
        enwik8.copy_member(tmp_path / "b.tar.gz", target)


def test_size_and_md5_decide(tmp_path, monkeypatch):
    path = tmp_path / "enwik8.gz"
    path.write_bytes(gzip.compress(CONTENT))
    assert not enwik8.is_enwik8(path)
    monkeypatch.setattr(enwik8, "SIZE", len(CONTENT))
    assert not enwik8.is_enwik8(path)
    monkeypatch.setattr(enwik8, "MD5", hashlib.md5(CONTENT).hexdigest())
    assert enwik8.is_enwik8(path)
    path.write_bytes(path.read_bytes()[:-9])
    assert not enwik8.is_enwik8(path)


def test_without_network_the_error_names_the_fix_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OPEN_NVIB_CACHE", str(tmp_path / "cache"))
    for name, value in {"NO_INDEX": "1", "CONFIG_FILE": "/dev/null", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(InputError, match=r"pip could not download .* --source path/to/enwik8") as caught:
        enwik8.obtain()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_is_used_when_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("OPEN_NVIB_CACHE", str(tmp_path))
    monkeypatch.setattr(enwik8, "SIZE", len(CONTENT))
    monkeypatch.setattr(enwik8, "MD5", hashlib.md5(CONTENT).hexdigest())
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(CONTENT))
    assert enwik8.obtain() == tmp_path / "enwik8.gz"
