import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_nvib.text.data.markup import HOLE
from open_nvib.text.data.sentences import (
    assign_splits,
    batches,
    find,
    is_residue,
    normalise,
    sample,
    split,
    split_sizes,
)


def test_normalise_leaves_one_kind_of_space_and_nothing_invisible():
    assert normalise(" a\u00a0b\t\u2003c\u200b\ufeffd\r\n\x00e ") == "a b cd e"
    assert normalise("cafe\u0301") == "café"


def test_split_knows_abbreviations():
    text = "Dr. Smith left the U.S. in 1990. He came back! Did he? It cost $3.5 million."
    assert split(text, "en") == [
        "Dr. Smith left the U.S. in 1990.",
        "He came back!",
        "Did he?",
        "It cost $3.5 million.",
    ]


def test_split_takes_text_on_which_sentencex_itself_panics():
    for text in ('[].;\u2003\u2003D\u2003."r1,中\n.', "\xa0\t\t[।\u2003\xa0。:”D]।’ D\xa0."):
        assert "".join(split(text, "en")).replace(" ", "") == normalise(text).replace(" ", "")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("aB .!?…\"'()“”’\u00a0\u2003\u3000\n\t\u200b é中\U0001f600。।1,")))
def test_split_never_panics_and_loses_no_letter(text):
    assert "".join("".join(split(text, "en")).split()) == "".join(normalise(text).split())


@pytest.mark.parametrize(
    "good",
    [
        "It is.",
        "1984 was a year.",
        '"Why not?" he said.',
        "(It is.)",
        "Élan!",
        "中文。",
        "<unk> was born.",
        "He said “no.”",
    ],
)
def test_sentences_are_no_residue(good):
    assert not is_residue(good)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "...",
        "and so on.",
        "No final mark",
        "A list:",
        "A {{b}} c.",
        "A | b.",
        "See http://x.org.",
        f"Let {HOLE} be.",
    ],
)
def test_residue_is_recognised(bad):
    assert is_residue(bad)


def test_find_counts_what_it_drops_and_the_filter_can_be_switched_off():
    text = ["One is here. and two is not. Three"]
    found = find(text, language="en", drop_residue=True)
    everything = find(text, language="en", drop_residue=False)
    assert everything.residue == 0
    assert len(everything.sentences) == len(found.sentences) + found.residue
    assert set(found.sentences) < set(everything.sentences)
    assert find(["One. Two."], language=None, drop_residue=True).sentences == ["One. Two."]


def test_batches_keep_every_document_in_order():
    documents = ["a" * n for n in (3, 5, 1, 20, 2, 0, 7)]
    made = list(batches(documents, 8))
    assert [document for batch in made for document in batch] == documents
    assert len(made) == 3


def test_the_paper_gets_its_sizes():
    assert split_sizes(500_000) == (405_000, 45_000, 50_000)


@pytest.mark.parametrize("total", [1, 7, 99, 1001])
def test_every_sentence_has_a_split_and_the_seed_decides(total):
    splits = assign_splits(total, seed=3)
    assert tuple(np.bincount(splits, minlength=3)) == split_sizes(total)
    assert np.array_equal(splits, assign_splits(total, seed=3))
    assert total < 50 or not np.array_equal(splits, assign_splits(total, seed=4))


@pytest.mark.parametrize("size", [200, 10_000])
def test_a_sample_keeps_the_splits_and_has_no_repetition(size):
    splits = assign_splits(3000, seed=0)
    candidates = np.random.default_rng(0).random(3000) < 0.5
    chosen = sample(candidates, splits, size=size, seed=0)
    together = np.concatenate(chosen)
    assert len(together) == len(set(together.tolist())) == min(size, candidates.sum())
    assert candidates[together].all()
    for index, rows in enumerate(chosen):
        assert (splits[rows] == index).all()
    if size == 200:
        assert tuple(map(len, chosen)) == split_sizes(200)
