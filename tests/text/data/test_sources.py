"""Nothing is downloaded here: the archive is made on the spot, and pip is pointed at an index that is not there."""

import bz2
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from open_nvib.store.files import InputError, InputWarning
from open_nvib.text.data import PrepareConfig, sources
from open_nvib.text.data.sources import (
    file_texts,
    find_files,
    hub_texts,
    kind_of,
    obtain_enwik8,
    open_source,
    paragraphs,
)

TEXTS = ["First, with a comma.", 'Second with "quotes" and an é.', "Third\nover two lines."]


def read(path, column="text", sentences=False):
    return list(file_texts(path, column=column, sentences=sentences))


def test_rows_of_jsonl_csv_and_parquet_are_their_column(tmp_path):
    rows = "\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS))
    (tmp_path / "a.jsonl").write_text(rows + "\n\n")
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    (tmp_path / "b.csv").write_text("id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(quoted)))
    pq.write_table(pa.table({"id": [0, 1, 2], "text": TEXTS}), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.csv", "c.parquet"):
        assert read(tmp_path / name) == TEXTS
        with pytest.raises(InputError, match=r"column 'body'.* id, text"):
            read(tmp_path / name, column="body")
    for name in ("a.jsonl", "c.parquet"):
        with pytest.raises(InputError, match="column 'id' holds int"):
            read(tmp_path / name, column="id")


@pytest.mark.parametrize("text", ["NA", "null", "007", "1.50", "true", "2020-01-01", " x ", "a\u2028b"])
def test_texts_that_look_like_something_else_stay_text(tmp_path, text):
    """In a file whose name looks like a pattern, too."""
    (tmp_path / "a[1].jsonl").write_text(json.dumps({"text": text}))
    (tmp_path / "a[1].csv").write_text(f'text\n"{text}"\n')
    (tmp_path / "a[1].txt").write_text(text)
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a[1].parquet")
    for file in find_files(tmp_path):
        assert read(file) == [text]


def test_wrapped_text_of_one_paragraph_is_joined(tmp_path):
    (tmp_path / "a.txt").write_text("It was the best of\ntimes, it was the\nworst of times.\n")
    assert read(tmp_path / "a.txt") == ["It was the best of times, it was the worst of times."]


def test_packed_files_are_the_same_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress((tmp_path / "a.txt").read_bytes()))
    for name in ("a.txt", "a.txt.gz", "a.txt.bz2"):
        assert read(tmp_path / name, sentences=True) == ["One.", "Two."]


def test_wrapped_lines_are_joined_and_others_are_not():
    wrapped = [
        "It was the best of times, it was",
        "the worst of times, it was the",
        "age of wisdom.",
        "",
        "It was",
        "so.",
    ]
    assert list(paragraphs(wrapped)) == [" ".join(wrapped[:3]), " ".join(wrapped[4:])]
    lines = ["One sentence a line.", "Another sentence.", "", "A third one!"]
    assert list(paragraphs(lines)) == lines
    link = "See https://example.org/" + 120 * "x"
    assert len(list(paragraphs(100 * [*wrapped[:4]] + [link]))) == 101
    assert len(list(paragraphs([*(33 * wrapped[:4]), link]))) == 34, "one of exactly 100"
    assert len(list(paragraphs([*(32 * wrapped[:4]), link]))) == 129, "one of 97"
    assert len(list(paragraphs(10 * [*wrapped[:4], link, ""]))) == 60


def test_a_folder_gives_its_known_files_sorted(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.jsonl", "sub/c.csv.gz", "notes.pdf", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in find_files(tmp_path)] == ["a.jsonl", "b.txt", "c.csv.gz"]


def test_the_kind_of_a_file_without_ending_is_seen_in_its_first_bytes(tmp_path):
    (tmp_path / "enwik8").write_bytes(b'<mediawiki xmlns="x">')
    (tmp_path / "README").write_bytes(b"Text.")
    assert kind_of(tmp_path / "enwik8") == "mediawiki"
    assert kind_of(tmp_path / "README") == "text"


@pytest.mark.parametrize("name", ["a.tsv", "a.JSON", "a.html"])
def test_columns_or_markup_that_is_read_as_text_is_warned_about(name, tmp_path):
    (tmp_path / name).write_bytes(b"id\ttext\n1\tA river.\n")
    with pytest.warns(InputWarning, match=r"plain text.*\.jsonl.*\.csv"):
        open_source(PrepareConfig(source=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b"good\n\xff\xfe\x00", r"line 2 is not UTF-8 text .*0xff"),
        ("a.txt", b"zero\0byte", "binary"),
        ("a.txt.gz", b"this is not gzip", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"x" * 10_000, mtime=0)[:-12], "cannot be read"),
        ("a.jsonl", b'{"text": "x"}\n{"text"', "line 2 is not JSON"),
        ("a.jsonl", b"[1]", "line 1 is a JSON list"),
        ("a.parquet", b"PAR1 not at all", "Parquet"),
        ("a.csv", b"text\nEvery winter, he came.\n", "line 2 does not have the 1 fields"),
        ("a.csv", b"id,text\n1\n", "line 2 does not have the 2 fields"),
        ("a.csv", b'text\nA river.\n"A stone.\nA war.\n', "not CSV"),
        ("a.csv", b"text,text\n1,2\n", "2 columns 'text'"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_empty_folder_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        find_files(tmp_path / "absent.txt")
    with pytest.raises(InputError, match="no file to read"):
        find_files(tmp_path)


def test_parquet_with_bytes_that_are_not_utf_8_is_one_line(tmp_path):
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="Parquet"):
        read(tmp_path / "a.parquet")


def test_a_link_to_nowhere_is_no_id_of_the_hub_and_a_pipe_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("nowhere", "link")
    os.mkfifo("pipe.txt")
    for source, message in (("link", "no such file"), ("pipe.txt", "neither a file nor a folder")):
        with pytest.raises(InputError, match=message):
            open_source(PrepareConfig(source=source))


def read_hub(dataset, column="text", split="train", config=None):
    return list(hub_texts(str(dataset), config=config, split=split, revision=None, column=column))


def test_hub_datasets_are_read_by_column(tmp_path):
    """The folder of a dataset is loaded by the very code that loads one from the hub."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    pq.write_table(pa.table({"id": [0, 1, 2], "text": [TEXTS[0], None, TEXTS[2]]}), folder / "train.parquet")
    assert read_hub(folder) == [TEXTS[0], "", TEXTS[2]]
    for wrong, message in (
        ({"column": "body"}, "'body'.* id, text"),
        ({"column": "id"}, "column 'id' holds int"),
        ({"split": "dev"}, "dev"),
    ):
        with pytest.raises(InputError, match=message):
            read_hub(folder, **wrong)


CONTENT = b"<mediawiki> not really 100 MB"


def test_enwik8_alone_is_taken_from_the_download_and_only_if_the_cache_has_none(tmp_path, monkeypatch):
    """pip is a function here that writes the archive where the command wants it."""
    downloads = []

    def pip(command, **_):
        folder = command[command.index("--dest") + 1]
        downloads.append(folder)
        with tarfile.open(f"{folder}/a.tar.gz", "w:gz") as tar:
            for name, data in {"../evil": b"x", "p-1/data/enwik8.gz": gzip.compress(CONTENT)}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return subprocess.CompletedProcess(command, 0, "", "")

    cache = tmp_path / "cache"
    monkeypatch.setenv("OPEN_NVIB_CACHE", str(cache))
    monkeypatch.setattr(sources, "ENWIK8_MD5", hashlib.md5(CONTENT).hexdigest())
    monkeypatch.setattr(subprocess, "run", pip)
    assert gzip.decompress(obtain_enwik8().read_bytes()) == CONTENT
    assert [path.name for path in tmp_path.rglob("*")] == ["cache", "enwik8.gz"]
    obtain_enwik8()
    assert len(downloads) == 1
    whole = (cache / "enwik8.gz").read_bytes()
    for damaged in (whole[:-9], gzip.compress(b"other"), b"no gzip"):
        (cache / "enwik8.gz").write_bytes(damaged)
        assert gzip.decompress(obtain_enwik8().read_bytes()) == CONTENT
    assert len(downloads) == 4


def test_without_network_the_error_names_the_fix_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OPEN_NVIB_CACHE", str(tmp_path / "cache"))
    for name, value in {"NO_INDEX": "1", "CONFIG_FILE": "/dev/null", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(InputError, match=r"pip could not download .* --source path/to/enwik8") as caught:
        obtain_enwik8()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []
