from hypothesis import given
from hypothesis import strategies as st

from open_nvib.text.using.inspection import Difference, differences, readable

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=8).map(" ".join)


def test_runs_of_words_that_are_alike_lost_or_new():
    assert differences("the cat sat down", "the dog sat") == [
        Difference("the", "the"),
        Difference("cat", "dog"),
        Difference("sat", "sat"),
        Difference("down", ""),
    ]


@given(WORDS, WORDS)
def test_both_texts_can_be_read_off(before, after):
    found = differences(before, after)
    assert " ".join(piece.before for piece in found if piece.before) == before
    assert " ".join(piece.after for piece in found if piece.after) == after
    assert all(piece.same or piece.before != piece.after for piece in found)


def test_tokens_are_written_as_words():
    assert [readable(text) for text in ("the", "##ing", "Ġhouse", "▁house")] == [
        ("the", True),
        ("ing", False),
        ("house", True),
        ("house", True),
    ]
