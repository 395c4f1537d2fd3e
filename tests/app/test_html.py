from dataclasses import replace

import torch

from open_nvib.app.handlers import MAX_MAP, MAX_NAME_LETTERS, heat_map, joined, pieces, token_strip
from open_nvib.text.using.inspection import TokenReport

EVIL = '<script>alert("x")</script>'


def token(text, weight=0.5, kept=True):
    return TokenReport(text, weight, weight, kept, 0.1, 3.0)


def test_dropped_tokens_are_struck_through_and_pieces_of_words_hang_together():
    page = token_strip([token("walk"), token("##ing"), token("far", 0.0, kept=False)], 0.25)
    assert ">walk</span><span" in page
    assert '</span> <del class="nv-dropped"' in page
    assert "2 of 3 vectors kept; the prior has 25% of the weight" in page


def test_tokens_that_share_a_vector_stand_on_one_ground():
    shared = [
        replace(token("walk"), place=0),
        replace(token("##ing", 0.0, kept=False), shared=True, place=0),
        replace(token("home"), place=2),
        replace(token("now", 0.0, kept=False), shared=True, place=2),
    ]
    page = token_strip(shared)
    assert '>walk</span><span class="nv-token nv-shared"' in page
    assert '>ing</span> <span class="nv-token"' in page
    assert "> now</span>" in page  # the space has the ground, too
    assert "<del" not in page
    assert "2 vectors for 4 tokens" in page
    assert "nv-gone" not in pieces.token_table(shared)


def test_a_token_has_the_colour_of_its_vector_though_another_begins_between():
    """With gates that are partly open, a token can be in an earlier vector than the last."""
    between = [replace(token("a", 0.4), place=0), replace(token("b", 0.1), place=1)]
    page = token_strip([*between, replace(token("c", 0.0, kept=False), shared=True, place=0)])
    assert page.count("--shade:70%") == 2
    assert "nv-shared" not in page


def test_the_heaviest_token_is_the_darkest():
    page = token_strip([token("a", 0.2), token("b", 0.4)])
    assert page.index("--shade:39%") < page.index("--shade:70%")
    assert "more weight" in page


def test_vectors_that_weigh_the_same_are_coloured_by_kl():
    page = token_strip([replace(token("a"), kl=62.0), replace(token("b"), kl=124.0), token("c", 0.55)])
    assert page.index("--shade:39%") < page.index("--shade:70%")
    assert "KL, 3 to 124 nats" in page
    assert "colour" not in token_strip([replace(token(text), kl=None) for text in "abc"])  # a model without a KL


def test_of_a_pooled_latent_no_token_is_called_dropped():
    page = token_strip([token("a"), token("b", 0.0, kept=False)], pooled=True)
    assert "<del" not in page
    assert "one vector for all 2 tokens" in page


def test_differences_are_marked():
    page = pieces.marked("the cat sat", "the dog sat", "a note")
    assert '<del class="nv-lost">cat</del> <ins class="nv-new">dog</ins>' in page
    assert "a note" in page


def test_vectors_that_nothing_was_read_from_have_no_column():
    page = heat_map(["x"], ["read", "unread"], torch.tensor([[1.0, 0.0]]))
    assert "<span>read</span>" in page
    assert "unread" not in page


def test_nothing_from_a_text_is_markup():
    found = [
        token_strip([token(EVIL)]),
        token_strip([token(EVIL, 0.0, kept=False)]),
        pieces.marked(EVIL, EVIL + " y", EVIL),
        pieces.marked("x", EVIL, ""),
        pieces.token_table([token(EVIL)]),
        heat_map([EVIL], [EVIL], torch.ones(1, 1)),
        pieces.text_list([EVIL]),
        pieces.path_table([0.0, 1.0], [EVIL, EVIL + " y"]),
        pieces.cards([(EVIL, "")]),
        pieces.message(EVIL, EVIL),
        pieces.framed(EVIL, EVIL),
    ]
    assert not any("<script" in piece for piece in found)
    assert not any('"x"' in piece for piece in found)


def test_a_map_of_a_long_text_is_cut_and_says_so():
    names = [f"t{index}" for index in range(200)]
    page = heat_map(names, names, torch.full((200, 200), 0.01))
    assert page.count("<tr>") == MAX_MAP + 1
    assert page.count('scope="col"') == MAX_MAP
    assert f"the first {MAX_MAP} tokens only" in page


def test_the_name_of_a_vector_of_many_tokens_is_short():
    assert len(joined([token("word")] * 300)) <= MAX_NAME_LETTERS
