import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import open_nvib.text.data
from open_nvib.report import draw_lengths
from open_nvib.store.files import InputError, as_builtins, from_builtins
from open_nvib.store.task_settings import Recipe, recipe_settings
from open_nvib.text.data import PrepareConfig, load_prepared, prepare
from open_nvib.text.data.prepare import make_recipe
from open_nvib.text.data.sources import open_source

BOUNDS = {"few": [5, 14], "many": [15, 40]}


@pytest.fixture
def config(corpus, tmp_path):
    def make(**changes):
        given = {"source": str(corpus), "output": str(tmp_path / "data"), "layout": "sentences", "partitions": BOUNDS}
        return PrepareConfig(**{**given, "tokenizer_kind": "wordpiece", "vocab_size": 300, "workers": 2, **changes})

    return make


def everything(prepared):
    splits = ("train", "validation", "test")
    return {(name, split): prepared.split(name, split)[:] for name in prepared.partitions for split in splits}


def test_prepared_data_holds_every_sentence_once_within_bounds(config, sentences):
    prepared = prepare(config())
    assert prepared.partitions == ["few", "many"]
    tokenizer = prepared.tokenizer
    seen = []
    for (name, split), rows in everything(prepared).items():
        low, high = BOUNDS[name]
        assert all(low <= len(ids) <= high for ids in rows["input_ids"])
        assert rows["input_ids"] == tokenizer(rows["text"], add_special_tokens=False)["input_ids"]
        assert len(rows["text"]) == getattr(prepared.counts.partitions[name], split)
        seen += rows["text"]
    assert len(seen) == len(set(seen))
    lengths = [len(ids) for ids in tokenizer(sentences, add_special_tokens=False)["input_ids"]]
    assert sorted(seen) == sorted(text for text, n in zip(sentences, lengths, strict=True) if 5 <= n <= 40)
    assert np.array_equal(prepared.lengths, np.bincount(lengths))


def test_histogram_is_of_the_training_sentences(config):
    prepared = prepare(config())
    lengths = [len(ids) for ids in prepared.split("few", "train")["input_ids"]]
    assert np.array_equal(prepared.length_histogram("few"), np.bincount(lengths))


def test_the_tokenizer_has_seen_the_training_split_only(config, sentences, tmp_path):
    """A letter that occurs in the held-out sentences alone is unknown to it."""
    before = prepare(config())
    held_out = before.split("few", "test")["text"][0]
    marked = [text.replace(".", " ж.") if text == held_out else text for text in sentences]
    (tmp_path / "marked.txt").write_text("\n".join(marked))
    after = prepare(config(source=str(tmp_path / "marked.txt"), output=str(tmp_path / "marked")))
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    assert "ж" not in after.tokenizer.get_vocab()


def test_a_sample_has_the_size_and_the_ratios_asked_for(config):
    counts = prepare(config(per_partition=100)).counts.partitions
    assert all((part.train, part.validation, part.test) == (81, 9, 10) for part in counts.values())


def test_the_result_depends_on_the_seed_and_not_on_the_workers(config, tmp_path, sentences):
    running = tmp_path / "running.txt"
    running.write_text("\n".join(" ".join(sentences[n : n + 7]) for n in range(0, 1200, 7)) * 5)
    made = {}
    for name, changes in {"one": {"workers": 1}, "three": {"workers": 3}, "seed": {"seed": 1}}.items():
        changes = {"source": str(running), "layout": "running", "output": str(tmp_path / name), **changes}
        made[name] = prepare(config(**changes))
    assert made["one"].counts.kept == 1200
    assert made["one"].counts.duplicates == 4800
    assert made["one"].recipe == made["three"].recipe
    assert everything(made["one"]) == everything(made["three"])
    assert everything(made["one"]) != everything(made["seed"])


def test_the_same_recipe_is_not_made_again_and_another_is_refused_unless_overwritten(config):
    prepare(config())
    record = Path(config().output) / "recipe.json"
    stamp = record.stat().st_mtime_ns
    prepare(config(workers=1))
    assert record.stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=r"seed.*--overwrite"):
        prepare(config(seed=5))
    assert record.stat().st_mtime_ns == stamp
    assert prepare(config(seed=5), overwrite=True).recipe.config["seed"] == 5
    assert load_prepared(config().output).recipe.config["seed"] == 5


def test_a_setting_that_a_recipe_lacks_has_its_default(config):
    """Data that an earlier version prepared, which did not have the setting yet, is still of the same recipe."""
    prepared = prepare(config())
    path = prepared.path / "recipe.json"
    record = json.loads(path.read_text())
    for name in ("language", "limit", "lowercase", "seed"):
        del record["recipe"]["config"][name]
    path.write_text(json.dumps(record))
    (prepared.path / "manifest.json").unlink()
    again = prepare(config())
    assert again.recipe.differences(prepared.recipe) == []
    assert again.summary() == prepared.summary()
    with pytest.raises(InputError, match=r"\(language was 'en', now 'de'\)"):
        prepare(config(language="de"))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"workers": 7, "output": "elsewhere"}, []),
        ({"seed": 5, "limit": 9}, ["limit", "seed"]),
        ({"vocab_size": 200}, ["vocab_size"]),
        ({"partitions": {"few": [5, 15], "many": [15, 40]}}, ["partitions"]),
        ({"tokenizer": "bert-base-uncased"}, ["tokenizer", "tokenizer_kind", "vocab_size"]),
    ],
)
def test_differences_of_recipes_are_named(config, changes, names):
    recipes = [make_recipe(made, open_source(made)) for made in (config(), config(**changes))]
    assert [difference.split()[0] for difference in recipes[0].differences(recipes[1])] == names
    assert from_builtins(as_builtins(recipes[1]), Recipe).differences(recipes[1]) == []


def test_the_files_of_a_local_tokenizer_are_part_of_the_recipe(config, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    recipes = []
    for text in ("one", "two"):
        vocabulary.write_text(text)
        made = config(tokenizer=str(vocabulary))
        recipes.append(make_recipe(made, open_source(made)))
    assert recipes[0].differences(recipes[1]) == ["tokenizer_files differ"]
    assert str(tmp_path) not in str(recipes)


def test_changed_text_is_another_recipe(config, corpus):
    prepare(config())
    corpus.write_text(corpus.read_text() + "One more sentence is here now.\n")
    with pytest.raises(InputError, match="files"):
        prepare(config())


def test_prepared_data_can_move(config, tmp_path):
    prepared = prepare(config())
    text = (prepared.path / "recipe.json").read_text()
    assert str(tmp_path) not in text
    moved = prepared.path.rename(tmp_path / "elsewhere")
    assert everything(load_prepared(moved))
    assert AutoTokenizer.from_pretrained(moved / "tokenizer").eos_token == "[SEP]"


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_prepared_data_is_never_touched(config, tmp_path, overwrite):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not prepared data"):
        prepare(config(), overwrite=overwrite)
    with pytest.raises(InputError, match="not prepared data"):
        prepare(config(output=str(tmp_path / "data" / "thesis.tex")), overwrite=overwrite)
    assert (tmp_path / "data" / "thesis.tex").read_text() == "years of work"


def test_overwrite_refuses_to_replace_data_with_a_file_of_the_user_in_it(config):
    data = prepare(config()).path
    (data / "lengths.svg").touch()  # these two are of `nvib prepare` and of `nvib evaluate`
    (data / "scorers" / "model").mkdir(parents=True)
    (data / "scorers" / "model" / "config.json").touch()
    for notes in (data / "notes.txt", data / "tokenizer" / "merges.txt"):
        notes.write_text("years of work")
        with pytest.raises(InputError, match=notes.name):
            prepare(config(seed=5), overwrite=True)
        assert notes.read_text() == "years of work"
        notes.unlink()
    assert prepare(config(seed=5), overwrite=True).recipe.config["seed"] == 5
    (data / "manifest.json").unlink()  # then nothing tells which files are whose
    with pytest.raises(InputError, match="manifest"):
        prepare(config(seed=6), overwrite=True)


def test_a_failure_leaves_nothing_behind(config, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="tokens"):
        prepare(config(partitions={"huge": [500, 600]}))
    assert sorted(tmp_path.iterdir()) == before


def test_a_killed_run_leaves_no_output_and_the_next_one_cleans_up(config, tmp_path, sentences):
    large = tmp_path / "large.txt"
    large.write_text("\n".join(sentences) * 100)
    script = (
        "import sys\n"
        "from open_nvib.text.data import PrepareConfig, prepare\n"
        "prepare(PrepareConfig(source=sys.argv[1], output=sys.argv[2], workers=1))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(large), config().output])
    while not (partial := list(tmp_path.glob(".data.partial-*"))) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert partial
    assert not Path(config().output).exists()
    prepare(config())
    assert not list(tmp_path.glob(".data.*"))


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (b"", {}, "empty"),
        (b"\n \n", {}, "blank"),
        (b"\x89PNG\r\n\x1a\n\xff\x00", {}, "UTF-8"),
        (b"no capital here\nnor here\n" * 9, {"drop_residue": True}, "--drop_residue false"),
        (b"Too short.\n", {}, "few"),
        (b"<mediawiki><page><title>A</title><text>It is.</text></page></mediawiki>", {}, "--layout"),
    ],
)
def test_bad_text_is_one_clear_line(config, tmp_path, content, changes, message):
    bad = tmp_path / ("bad.xml" if b"mediawiki" in content else "bad.txt")
    bad.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        prepare(config(source=str(bad), **changes))
    assert "\n" not in str(caught.value)
    assert not Path(config().output).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partitions": {}}, "partitions"),
        ({"partitions": {"a": [20, 5]}}, "partitions has 'a'"),
        ({"partitions": {"a": [0, 5]}}, "partitions has 'a'"),
        ({"partitions": {"a": [5]}}, "partitions has 'a'"),
        ({"partitions": {"../a": [5, 9]}}, "partitions .*'../a'"),
        ({"partitions": {"tokenizer": [5, 9]}}, "partitions .*'tokenizer'"),
        ({"per_partition": 0}, "per_partition is 0"),
        ({"vocab_size": 7}, "vocab_size is 7"),
        ({"source": ""}, "source is empty"),
    ],
)
def test_bad_settings_are_refused_at_once(changes, message):
    with pytest.raises(InputError, match=message):
        PrepareConfig(**changes)


def test_a_missing_file_is_not_looked_for_on_the_hub(config):
    for missing in ("nowhere/corpus.txt", "corpus.jsonl.gz", "./nowhere", "/nowhere/at/all"):
        with pytest.raises(InputError, match="no such file or folder"):
            prepare(config(source=missing))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"source": "someone/some-dataset"}, "local file"),
        ({"source": "wikitext-2"}, "local file"),
        ({"tokenizer": "bert-base-uncased"}, r"bert-base-uncased.*vocab\.txt"),
    ],
)
def test_an_unreachable_hub_is_one_clear_line(config, tmp_path, monkeypatch, changes, named):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=named) as caught:
        prepare(config(**changes))
    assert "\n" not in str(caught.value)


def test_wikitext_unknown_words_become_the_tokenizers(config, tmp_path, sentences):
    folder = tmp_path / "wikitext"
    folder.mkdir()
    lines = [text.replace("river", "<unk>").replace(".", " .").replace(",", " ,") for text in sentences]
    (folder / "wiki.train.tokens").write_text(" = Title = \n" + "\n".join(lines))
    prepared = prepare(config(source=str(folder), layout="running"))
    rows = prepared.split("few", "train")[:]
    assert "<unk>" not in "".join(rows["text"])
    with_unknown = [ids for ids, text in zip(rows["input_ids"], rows["text"], strict=True) if "[UNK]" in text]
    assert with_unknown
    assert all(ids.count(prepared.tokenizer.unk_token_id) == 1 for ids in with_unknown)
    assert prepared.counts.residue == 0


def test_limit_stops_early(config):
    assert prepare(config(limit=400)).counts.kept == 400


def test_a_hub_dataset_is_asked_for_by_all_that_was_given():
    config = PrepareConfig(source="a/b", dataset_config="c", dataset_split="d", dataset_revision="e", column="f")
    identity = open_source(config).identity
    assert identity == {"source": "a/b", "dataset": "a/b", "config": "c", "split": "d", "revision": "e", "column": "f"}
    assert open_source(PrepareConfig(source="wikitext-103")).identity["config"] == "wikitext-103-raw-v1"


def test_summary_and_figure_tell_the_share_kept(config, tmp_path):
    prepared = prepare(config())
    inside = sum(part.available for part in prepared.counts.partitions.values())
    share = f"{inside / 1200:.2%}"
    assert share in prepared.summary()
    assert "1,200 sentences found" in prepared.summary()
    with pytest.deprecated_call():
        assert open_nvib.text.data.draw_lengths is draw_lengths
    drawing = draw_lengths(prepared, tmp_path / "lengths.svg").read_text()
    assert "<svg" in drawing


def test_load_prepared_refuses_other_directories(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"flour": 500}))
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="nvib prepare"):
            load_prepared(path)


def test_unknown_partitions_and_splits_are_named(config):
    prepared = prepare(config())
    with pytest.raises(InputError, match=r"partition 'short'.* few, many"):
        prepared.split("short", "train")
    with pytest.raises(InputError, match=r"split 'dev'.* train, validation, test"):
        prepared.split("few", "dev")


def test_a_local_dump_is_read_without_any_download(config, tmp_path, sentences):
    """As enwik8 given by its path: no ending, markup, and broken off in the middle of a page."""
    page = "<page><title>{}</title><revision><text>== H ==\n'''{}'''\n* item</text></revision></page>"
    pages = [page.format(n, " ".join(sentences[n : n + 10])) for n in range(0, 1200, 10)]
    dump = tmp_path / "enwik8"
    dump.write_text("<mediawiki>" + "".join(pages) + page[:40])
    prepared = prepare(config(source=str(dump), layout="running"))
    assert prepared.counts.kept == 1200
    assert set(prepared.split("few", "train")["text"]) <= set(sentences)


def test_text_in_lower_case_is_kept_and_an_empty_partition_is_left_out(tmp_path):
    """Reviews have no capitals; nothing of them is markup, and some have no long sentences."""
    words = ["good", "bad", "slow", "quick", "plain", "kind"]
    reviews = [f"the {a} phone is {b} and {c}" for a in words for b in words for c in words]
    (tmp_path / "reviews.txt").write_text("\n".join(reviews))
    made = PrepareConfig(
        source=str(tmp_path / "reviews.txt"),
        output=str(tmp_path / "data"),
        layout="sentences",
        tokenizer_kind="wordpiece",
        vocab_size=200,
        workers=1,
    )
    prepared = prepare(made)
    assert prepared.counts.residue == 0
    assert prepared.counts.kept == len(reviews)
    assert prepared.partitions == ["short"]
    assert "left out" in prepared.summary()
    assert prepared.recipe.settings["drop_residue"] is False
    assert not prepared.recipe.differences(prepare(made).recipe)
    with pytest.raises(InputError, match="drop_residue"):
        prepare(replace(made, drop_residue=True))


def test_the_share_of_unknown_tokens_is_printed_and_bytes_have_none(config, tmp_path, sentences):
    """A letter of a text in another alphabet, which the tokenizer has no room for, had become [UNK] in silence."""
    rare = [f"{text} {chr(0x4E00 + n)}{chr(0x5E00 + n)}." for n, text in enumerate(sentences[:200])]
    (tmp_path / "odd.txt").write_text("\n".join(rare + sentences[200:]))
    pieces = prepare(config(source=str(tmp_path / "odd.txt")))
    assert pieces.counts.unknown > 0.002 * pieces.counts.tokens
    assert f"warning: {pieces.counts.unknown / pieces.counts.tokens:.2%} of all tokens are [UNK]" in pieces.summary()
    assert "warning" not in prepare(config(output=str(tmp_path / "plain"))).summary()
    bounds = {"all": [1, 99]}
    settings = {"source": str(tmp_path / "odd.txt"), "output": str(tmp_path / "bytes"), "partitions": bounds}
    exact = prepare(config(**settings, tokenizer_kind="bytes", vocab_size=400))
    assert exact.counts.unknown == 0
    assert "0.00% of all tokens are [UNK]" in exact.summary()
    rows = exact.split("all", "train")[:]
    assert exact.tokenizer.batch_decode(rows["input_ids"]) == rows["text"]
    assert exact.recipe.differences(pieces.recipe) != []


def test_text_of_the_users_own_comes_back_by_default(config, corpus, sentences):
    """Case, spaces and unknown characters had been lost unless --tokenizer_kind bytes was given."""
    prepared = prepare(config(tokenizer_kind=None, vocab_size=400, partitions={"all": [1, 99]}))
    rows = prepared.split("all", "train")[:]
    assert prepared.tokenizer.batch_decode(rows["input_ids"]) == rows["text"]
    assert any(text != text.lower() for text in rows["text"])
    assert prepared.recipe.config["tokenizer_kind"] == "bytes"
    with pytest.raises(InputError, match="vocab_size is 200, expected at least 261"):
        prepare(config(tokenizer_kind=None, vocab_size=200, output=str(corpus.parent / "small")))
    pieces = config(output=str(corpus.parent / "pieces"))
    prepare(pieces)
    reopened = prepare(replace(pieces, tokenizer_kind=None))
    assert reopened.recipe.config["tokenizer_kind"] == "wordpiece"  # as it was made


def test_the_corpora_of_the_docs_keep_their_tokenizer():
    settings = recipe_settings(PrepareConfig(source="enwik8"))
    assert settings["tokenizer_kind"] == "wordpiece"
    recorded = {name: value for name, value in settings.items() if name != "tokenizer_kind"}  # of an early version
    old, asked = Recipe({}, {**recorded, "drop_residue": True}), Recipe({}, {**settings, "tokenizer_kind": "bytes"})
    assert old.settings["tokenizer_kind"] == "wordpiece"
    assert old.differences(Recipe({}, settings)) == []
    assert old.differences(asked) == ["tokenizer_kind was 'wordpiece', now 'bytes'"]


def test_a_word_of_a_data_uri_is_left_out_and_counted(config, tmp_path, sentences):
    """Of 400,000 letters, it had held up the training of the tokenizer for minutes."""
    picture = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=400_000))
    (tmp_path / "a.txt").write_text("\n".join([*sentences, f"See {picture} here."]))
    prepared = prepare(config(source=str(tmp_path / "a.txt")))
    assert (prepared.counts.sentences, prepared.counts.long_words, prepared.counts.kept) == (1201, 1, 1200)
    assert "1 dropped for a word of more than 1,000 characters" in prepared.summary()


@pytest.mark.parametrize("source", ["/dev/zero", "pipe.txt"])
def test_a_source_without_end_is_refused(config, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.txt")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        prepare(config(source=source))


def test_a_byte_order_mark_is_no_part_of_the_text(config, tmp_path, sentences):
    (tmp_path / "a.txt").write_text("\n".join(sentences), encoding="utf-8-sig")
    prepared = prepare(config(source=str(tmp_path / "a.txt"), partitions={"all": [1, 99]}))
    assert not any("\ufeff" in text for rows in everything(prepared).values() for text in rows["text"])
    (tmp_path / "b.txt").write_text("\n".join(sentences), encoding="utf-16")
    with pytest.raises(InputError, match="UTF-8"):
        prepare(config(source=str(tmp_path / "b.txt"), output=str(tmp_path / "b")))
