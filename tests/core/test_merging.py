"""Merging: tokens laid end to end and cut into components, against a slow loop, strides, and the Dirichlet itself."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from open_nvib.merging import Cuts, split_tokens

BATCH, N, SIZE = 3, 11, 5


def merge_tokens(alpha, hidden, cuts, **options):
    """Components in the precision of the tokens."""
    merged = split_tokens(alpha, cuts, **options).merge(hidden)
    return replace(merged, alpha=merged.alpha.to(alpha.dtype))


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    alpha = torch.rand(BATCH, N, generator=generator, dtype=torch.float64)
    hidden = torch.randn(BATCH, N, SIZE, generator=generator, dtype=torch.float64)
    return alpha, hidden


def by_hand(alpha, per_component):
    """The components of one text, each a dict of places and what of their pseudo-counts lies in it."""
    components, room = [], 0.0
    for place, count in enumerate(alpha.tolist()):
        left = min(count, per_component)
        while left > 1e-9:
            if room <= 1e-9:
                components.append({})
                room = per_component
            part = min(left, room)
            components[-1][place] = part
            left, room = left - part, room - part
    return components


@pytest.mark.parametrize("per_component", [0.3, 0.9, 1.7, 40.0])
def test_merge_tokens_is_a_weighted_mean_of_what_lies_in_each_component(tokens, per_component):
    alpha, hidden = tokens
    merged = merge_tokens(alpha, hidden, Cuts(per_component))
    for row in range(BATCH):
        components = by_hand(alpha[row], per_component)
        places = (merged.alpha[row] > 0).nonzero().flatten().tolist()
        assert places == [min(component) for component in components]
        for place, component in zip(places, components, strict=True):
            parts = torch.tensor(list(component.values()), dtype=torch.float64)
            parts = parts * (alpha[row, list(component)] / per_component).clamp(min=1)  # above one: weight, no room
            torch.testing.assert_close(merged.alpha[row, place], parts.sum())
            torch.testing.assert_close(merged.hidden[row, place], parts @ hidden[row, list(component)] / parts.sum())
    torch.testing.assert_close(merged.alpha.sum(-1), alpha.sum(-1))


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.35, 0.25, 0.2, 0.1])
def test_equal_counts_make_equal_components(share):
    """There are ⌈sn⌉ of them, and all but the last are full."""
    for n in (1, 2, 7, 19, 50):
        for count in (0.1, 1.0, 3.0):
            alpha = torch.full((1, n), count)
            found = merge_tokens(alpha, torch.ones(1, n, SIZE), Cuts(count / share)).alpha[0]
            found = found[found > 0]
            assert len(found) == math.ceil(Fraction(str(share)) * n)
            torch.testing.assert_close(found[:-1], torch.full_like(found[:-1], count / share))


def test_a_token_that_is_cut_has_a_part_in_both():
    alpha, hidden = torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.eye(4).unsqueeze(0)
    merged = merge_tokens(alpha, hidden, Cuts(1.5))
    torch.testing.assert_close(merged.alpha, torch.tensor([[1.5, 1.5, 0.0, 1.0]]))
    torch.testing.assert_close(
        merged.hidden[0], torch.tensor([[2, 1, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0], [0, 0, 0, 3.0]]) / 3
    )


def test_component_of_token_holds_the_largest_part(tokens):
    alpha = tokens[0]
    found = split_tokens(alpha, Cuts(1.3)).component_of_token()
    for row in range(BATCH):
        components = by_hand(alpha[row], 1.3)
        for place in range(N):
            most = max((c for c in components if place in c), key=lambda c: c[place])
            assert found[row, place] == min(most)
    assert split_tokens(torch.tensor([[1.0, 0.0, 1.0]]), Cuts(2.0)).component_of_token().tolist() == [[0, -1, 0]]


def test_a_small_rest_joins_the_last_component():
    alpha, hidden = torch.tensor([[1.0, 1.0, 1.0, 1.2]]), torch.eye(4).unsqueeze(0)
    apart = merge_tokens(alpha, hidden, Cuts(2.0), max_joined_remainder=0.05)
    joined = merge_tokens(alpha, hidden, Cuts(2.0), max_joined_remainder=0.15)
    torch.testing.assert_close(apart.alpha, torch.tensor([[2.0, 0.0, 2.0, 0.2]]))
    torch.testing.assert_close(joined.alpha, torch.tensor([[2.0, 0.0, 2.2, 0.0]]))
    torch.testing.assert_close(joined.hidden[0, 2], torch.tensor([0.0, 0.0, 1.0, 1.2]) / 2.2)
    alone = merge_tokens(torch.tensor([[0.1]]), torch.ones(1, 1, 1), Cuts(2.0), max_joined_remainder=0.15)
    torch.testing.assert_close(alone.alpha, torch.tensor([[0.1]]))  # a text has a vector, however little there is


def test_a_token_with_more_evidence_has_more_of_a_vector():
    """At most all of it: what is above that is weight alone."""
    hidden = torch.eye(6).unsqueeze(0)
    merged = merge_tokens(torch.tensor([[1.0, 1.0, 9.0, 1.0, 1.0, 0.5]]), hidden, Cuts(2.0))
    assert merged.alpha.tolist() == [[2.0, 0.0, 9.0, 2.0, 0.0, 0.5]]
    assert merged.hidden[0, 2].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    moved = merge_tokens(torch.tensor([[1.0, 1.01, 9.0, 1.0, 1.0, 0.5]]), hidden, Cuts(2.0))
    torch.testing.assert_close(moved.alpha[0, 1], torch.tensor(0.01 + 9.0 * 1.99 / 2))  # a little before moves little
    assert moved.hidden[0, 1, 2] > 0.99


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1e-9, 1e-45])
def test_next_to_nothing_is_no_nan(dtype, count):
    merged = merge_tokens(torch.full((1, 3), count), torch.ones(1, 3, 2, dtype=dtype), Cuts(10.0))
    assert merged.hidden.dtype == dtype
    assert merged.hidden[0, 0].tolist() == pytest.approx([1.0, 1.0], rel=1e-2)


def test_merged_weights_are_those_of_the_tokens_added_up():
    """The aggregation property: moments of the sums of Dirichlet weights. 4 standard errors: fails once in 3,000."""
    alpha = torch.tensor([[0.5, 1.4, 0.7, 0.3, 0.9, 0.2]]).double()
    merged = merge_tokens(alpha, alpha.unsqueeze(-1), Cuts(1.9)).alpha[0]
    merged = merged[merged > 0]
    torch.manual_seed(0)
    drawn = torch.distributions.Dirichlet(alpha[0]).sample((40_000,))
    runs = torch.tensor([0, 0, 1, 1, 1, 2])
    summed = torch.zeros(40_000, 3).double().index_add(1, runs, drawn)
    beta = torch.distributions.Beta(merged, alpha.sum() - merged)
    error = (beta.variance / 40_000).sqrt()
    assert ((summed.mean(0) - beta.mean).abs() < 4 * error).all()
    torch.testing.assert_close(summed.var(0), beta.variance, rtol=0.05, atol=0)


def test_every_token_has_a_gradient(tokens):
    alpha, hidden = (x.requires_grad_() for x in tokens)
    merged = merge_tokens(alpha, hidden, Cuts(2.0))
    (merged.hidden.square().sum() + merged.alpha.square().sum()).backward()
    assert (alpha.grad != 0).all()
    assert (hidden.grad != 0).all()


def test_gradients_are_right(tokens):
    alpha, hidden = (x[:1].clone().requires_grad_() for x in tokens)

    def run(alpha, hidden):
        merged = merge_tokens(alpha, hidden, Cuts(1.3))
        return merged.alpha, merged.hidden

    assert torch.autograd.gradcheck(run, (alpha, hidden))


def test_nothing_to_merge(tokens):
    """Without evidence there is no component, and no NaN."""
    alpha, hidden = torch.zeros(BATCH, N, requires_grad=True), tokens[1].float().requires_grad_()
    merged = merge_tokens(alpha, hidden, Cuts(1.0))
    assert (merged.alpha == 0).all()
    assert (merged.hidden == 0).all()
    (merged.hidden.sum() + merged.alpha.sum()).backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


def test_tokens_without_evidence_add_nothing(tokens):
    alpha, hidden = tokens[0].clone(), tokens[1]
    alpha[:, [0, 4, 5, N - 1]] = 0.0
    merged = merge_tokens(alpha, hidden, Cuts(0.8))
    assert (merged.alpha[:, 0] == 0).all()
    changed = hidden.clone()
    changed[:, [0, 4, 5, N - 1]] = 1e3
    torch.testing.assert_close(merge_tokens(alpha, changed, Cuts(0.8)).hidden, merged.hidden)
