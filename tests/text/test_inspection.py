"""Inspection of latents: reports on tokens, maps of attention, other weights, and differences of texts."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_model import make_batch, make_model

from open_nvib.process import GaussianMixture, Posterior
from open_nvib.report.summary import token_table
from open_nvib.store.files import InputError
from open_nvib.text.drawing import Difference, text_differences
from open_nvib.text.model.bottlenecks import NVIBBottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import decode
from open_nvib.text.using.inspection import (
    TextReport,
    TokenReport,
    attention_map,
    draw_reports,
    group_by_vector,
    inspect_latent,
    readable_token,
    reweight,
)

# Reports on tokens


def counting_bottleneck(share: float) -> NVIBBottleneck:
    """Takes its one input as the pseudo-count."""
    bottleneck = NVIBBottleneck(TextAutoencoderConfig(d_model=1, latent_size=3, keep_share=share, delta=1.0))
    torch.nn.init.ones_(bottleneck.nvib.to_alpha.weight)
    torch.nn.init.zeros_(bottleneck.nvib.to_alpha.bias)
    return bottleneck


def test_inspection_of_a_gathered_latent_says_who_shares():
    model = make_model("nvae-gathering", alpha_contrast=0.0)
    ids = make_batch(5)["input_ids"]
    mask = torch.ones_like(ids).bool()
    report = inspect_latent(model.encoder.bottleneck, model.encoder.hidden_states(ids, mask), mask, list("abcde"))
    rows = report.tokens
    assert [row.kept for row in rows] == [True, False, True, False, True]
    assert [row.shared for row in rows] == [False, True, False, True, False]
    assert all(row.present for row in rows)
    assert sum(row.weight for row in rows) + report.prior_weight == pytest.approx(1)
    found = [(place, [row.token for row in tokens]) for place, tokens in group_by_vector(rows)]
    assert found == [(0, ["a", "b"]), (2, ["c", "d"]), (4, ["e"])]


def test_a_token_is_reported_in_the_vector_that_holds_most_of_it():
    """Counts of 1.1, 1, 1 and 0.9 at 2 a vector: a tenth of the second token begins the second vector."""
    bottleneck, mask = counting_bottleneck(0.5), torch.ones(1, 5).bool()
    hidden = torch.tensor([[1.1, 1.0, 0.0, 1.0, 0.9]]).unsqueeze(-1)
    assert bottleneck.component_of_token(hidden, mask)[0].tolist() == [0, 0, -1, 1, 1]
    report = inspect_latent(bottleneck, hidden, mask, list("abcde"))
    latent, rows = report.latent, report.tokens
    assert isinstance(latent, Posterior)
    assert (latent.alpha[0, :-1] > 0).tolist() == [True, True, False, False, False]
    assert [(row.kept, row.shared, row.place) for row in rows] == [
        (True, False, 0),
        (False, True, 0),
        (False, False, None),
        (True, False, 1),
        (False, True, 1),
    ]
    assert [row.alpha for row in rows] == [latent.alpha[0, 0], None, 0.0, latent.alpha[0, 1], None]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75, 0.85, 0.9, 0.95, 1.0])
def test_every_vector_is_reported_once(share):
    torch.manual_seed(0)
    bottleneck = counting_bottleneck(share)
    for n in range(1, 25):
        for counts in (torch.ones(n), 2 * torch.rand(n), (3 * torch.rand(n) - 1).relu()):
            report = inspect_latent(bottleneck, counts.view(1, n, 1), torch.ones(1, n).bool(), ["token"] * n)
            rows = report.tokens
            places = [row.place for row in rows if row.kept and row.place is not None]
            assert report.latent.alpha is not None
            assert sorted(places) == (report.latent.alpha[0, :-1] > 0).nonzero().flatten().tolist()
            assert sum(row.weight for row in rows) + report.prior_weight == pytest.approx(1)
            assert {row.place for row in rows if row.shared} <= set(places)


def test_inspection_of_a_pooled_latent_has_one_vector():
    """The other bottlenecks have no pseudo-counts: the vectors that are there share the weight evenly."""
    ids = make_batch(6)["input_ids"]
    for kind, present in (("t", 6), ("vt", 6), ("vts", 3), ("vtp", 1)):
        encoder, mask = make_model(kind).encoder, torch.ones_like(ids).bool()
        report = inspect_latent(encoder.bottleneck, encoder.hidden_states(ids, mask), mask, list("abcdef"))
        rows = report.tokens
        assert [row.token for row in rows] == list("abcdef")
        assert sum(row.kept for row in rows) == present
        assert sum(row.weight for row in rows) == pytest.approx(1)
        assert report.prior_weight == 0
        assert all((row.kl is not None) == (row.kept and kind != "t") for row in rows)


# Attention and other weights


def heaviest(latent):
    """The token with the most weight: one that the latent kept."""
    return int(latent.alpha[0, :-1].argmax())


def read_by(model, mixture, ids):
    """What the cross-attention of the last layer gave, seen from outside."""
    seen = []
    hook = model.decoder.layers[-1].cross_attention.register_forward_hook(lambda *call: seen.append(call[-1]))
    model.decoder(
        model.encoder.embedding(torch.tensor([[model.config.decoder_start_token_id, *ids]])),
        model.decoder.project(mixture),
    )
    hook.remove()
    return seen[0]


@torch.no_grad()
def test_each_row_of_the_map_sums_to_one_and_explains_what_was_read(trained, known):
    latent = trained.encode(known[:1])
    sample = trained.model.encoder.bottleneck.sample(latent, torch.Generator().manual_seed(0))
    (ids,) = decode(trained.model, sample, 2 * latent.lengths)
    weights = attention_map(trained.model, sample, ids)
    assert weights.shape == (len(ids) + 1, latent.mask.shape[-1])
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(ids) + 1))
    layer = trained.model.decoder.layers[-1].cross_attention
    by_hand = layer.to_output(weights @ layer.to_value(sample.z[0]))  # one layer, one head, a sample: plain sums
    torch.testing.assert_close(read_by(trained.model, sample, ids)[0], by_hand, atol=1e-4, rtol=1e-3)


def test_nothing_is_read_from_a_vector_that_was_dropped(trained, known):
    latent = trained.encode(known[:1])
    (ids,) = decode(trained.model, latent.mean(), 2 * latent.lengths)
    weights = attention_map(trained.model, latent.mean(), ids)
    assert (weights[:, latent.alpha[0] == 0] == 0).all()
    assert (weights[:, latent.alpha[0] > 0].amax(0) > 0).all()


def test_a_factor_of_one_changes_nothing_and_of_zero_removes_the_vector(trained, known):
    latent = trained.encode(known[:1])
    mean, place = latent.mean().log_alpha, heaviest(latent)

    def log_alpha(factor):
        mixture = reweight(latent, {place: factor})
        assert isinstance(mixture, GaussianMixture)
        return mixture.log_alpha

    torch.testing.assert_close(log_alpha(1.0), mean)
    without = log_alpha(0.0)
    assert without[0, place] == -torch.inf
    assert (without.isfinite() == mean.isfinite()).sum() == mean.numel() - 1
    doubled = log_alpha(2.0)[0, place] - mean[0, place]
    assert doubled.exp().item() == pytest.approx(2.0, rel=1e-4)


def test_the_vectors_that_are_switched_off_are_missed(trained, known):
    latent = trained.encode(known[:1])
    (before,), (after,) = (
        decode(trained.model, mixture, 2 * latent.lengths)
        for mixture in (latent.mean(), reweight(latent, dict.fromkeys(range(10), 0.0)))
    )
    assert before != after


@pytest.mark.parametrize(
    ("factors", "what"), [({99: 1.0}, "vector 99"), ({0: -1.0}, "vector 0"), ({0: float("nan")}, "vector 0")]
)
def test_what_cannot_be_weighed_is_an_error(trained, known, factors, what):
    with pytest.raises(InputError, match=what):
        reweight(trained.encode(known[:1]), factors)


def test_the_component_of_the_prior_is_not_a_tokens(trained, known):
    latent = trained.encode(known[:1])
    with pytest.raises(InputError, match="vector"):
        reweight(latent, {latent.mask.shape[-1] - 1: 0.0})


# Words

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=8).map(" ".join)


def test_runs_of_words_that_are_alike_lost_or_new():
    assert text_differences("the cat sat down", "the dog sat") == [
        Difference("the", "the"),
        Difference("cat", "dog"),
        Difference("sat", "sat"),
        Difference("down", ""),
    ]


@given(WORDS, WORDS)
def test_both_texts_can_be_read_off(before, after):
    found = text_differences(before, after)
    assert " ".join(piece.before for piece in found if piece.before) == before
    assert " ".join(piece.after for piece in found if piece.after) == after
    assert all(piece.same or piece.before != piece.after for piece in found)


def test_tokens_are_written_as_words():
    assert [readable_token(text) for text in ("the", "##ing", "Ġhouse", "▁house")] == [
        ("the", True),
        ("ing", False),
        ("house", True),
        ("house", True),
    ]


def test_a_picture_takes_dollars_and_control_characters(tmp_path):
    """Dollars would make a formula of the words between them; a font has no picture of a control character."""
    tokens = [TokenReport(name, 1.0, 0.5, True, 1.0, 0.1, place=at) for at, name in enumerate(("$5", "\x1b"))]
    report = TextReport("From $5_a to $6^b.", "From $5 \x1b to", tokens, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = draw_reports([report], tmp_path / "dollars.svg")
    assert picture.exists()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_replaces_an_earlier_plot_and_nothing_else(tmp_path, ending):
    report = TextReport("a", "a", [TokenReport("a", 1.0, 1.0, True, 1.0, 0.1, place=0)], 0.0)
    picture = tmp_path / f"plot.{ending}"
    picture.touch()  # as mktemp leaves it
    draw_reports([report], picture)
    draw_reports([report], picture)
    theirs = tmp_path / f"photo.{ending}"
    theirs.write_bytes(b"a photo")
    with pytest.raises(InputError, match="left alone"):
        draw_reports([report], theirs)
    assert theirs.read_bytes() == b"a photo"


def test_the_table_names_the_vector_of_a_token_if_another_begins_between():
    """With gates that are partly open, a token can be in an earlier vector than the last."""
    kept = [TokenReport(text, kept=True, place=place) for place, text in enumerate("ab")]
    shared = [TokenReport(text, shared=True, place=place) for text, place in (("c", 1), ("d", 0))]
    *_, c, d = token_table(TextReport("a b c d", "a b c d", [*kept, *shared], 0.0)).splitlines()
    assert c.endswith("shares the vector above")
    assert d.endswith("shares the vector of a")
