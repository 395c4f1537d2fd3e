"""Gathering: runs of tokens as one component, against a slow loop, strides, and the Dirichlet itself."""

import pytest
import torch

from open_nvib.gathering import gather, starts_run
from open_nvib.text.bottlenecks import kept_at_stride

BATCH, N, SIZE = 3, 11, 5


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    alpha = torch.rand(BATCH, N, generator=generator, dtype=torch.float64)
    hidden = torch.randn(BATCH, N, SIZE, generator=generator, dtype=torch.float64)
    return alpha, hidden


def by_hand(alpha, per_component):
    """Runs of one text, as lists of places: a token begins one when those before have filled theirs."""
    runs, total = [], 0.0
    for place, count in enumerate(alpha.tolist()):
        filled = total
        total += count
        before, now = -(-filled // per_component), -(-total // per_component)  # components begun, rounded up
        if now > before or not runs:
            runs.append([])
        runs[-1].append(place)
    return runs


@pytest.mark.parametrize("per_component", [0.3, 0.9, 1.7, 40.0])
def test_gather_is_a_weighted_mean_of_each_run(tokens, per_component):
    alpha, hidden = tokens
    gathered = gather(alpha, hidden, per_component=per_component)
    for row in range(BATCH):
        runs = by_hand(alpha[row], per_component)
        firsts = [run[0] for run in runs]
        assert (gathered.alpha[row] > 0).nonzero().flatten().tolist() == firsts
        for run in runs:
            weights = alpha[row, run] / alpha[row, run].sum()
            torch.testing.assert_close(gathered.alpha[row, run[0]], alpha[row, run].sum())
            torch.testing.assert_close(gathered.hidden[row, run[0]], weights @ hidden[row, run])
    torch.testing.assert_close(gathered.alpha.sum(-1), alpha.sum(-1))


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.25, 0.2, 0.1])
def test_equal_counts_make_a_stride(share):
    """With nothing learned, it keeps what a stride keeps."""
    for count in (0.1, 1.0, 3.0):
        alpha = torch.full((1, 50), count)
        assert torch.equal(starts_run(alpha, count / share)[0], kept_at_stride(50, 1 - share))


def test_a_token_with_more_evidence_has_a_vector_for_itself():
    alpha = torch.tensor([[1.0, 1.0, 4.0, 1.0, 1.0, 1.0]])
    assert starts_run(alpha, 2.0).tolist() == [[True, False, True, True, False, True]]


def test_gathered_weights_are_those_of_the_tokens_added_up():
    """The aggregation property: moments of the sums of Dirichlet weights. 4 standard errors: fails once in 3,000."""
    alpha = torch.tensor([[0.5, 1.5, 0.7, 0.3, 2.0]]).double()
    gathered = gather(alpha, alpha.unsqueeze(-1), per_component=1.9).alpha[0]
    torch.manual_seed(0)
    drawn = torch.distributions.Dirichlet(alpha[0]).sample((40_000,))
    first = starts_run(alpha, 1.9)[0]
    runs = first.long().cumsum(0) - 1
    summed = torch.zeros(40_000, int(first.sum())).double().index_add(1, runs, drawn)
    beta = torch.distributions.Beta(gathered[first], alpha.sum() - gathered[first])
    error = (beta.variance / 40_000).sqrt()
    assert ((summed.mean(0) - beta.mean).abs() < 4 * error).all()
    torch.testing.assert_close(summed.var(0), beta.variance, rtol=0.05, atol=0)


def test_every_token_has_a_gradient(tokens):
    alpha, hidden = (x.requires_grad_() for x in tokens)
    gathered = gather(alpha, hidden, per_component=2.0)
    (gathered.hidden.square().sum() + gathered.alpha.square().sum()).backward()
    assert (alpha.grad != 0).all()
    assert (hidden.grad != 0).all()


def test_gradients_are_right(tokens):
    alpha, hidden = (x[:1].clone().requires_grad_() for x in tokens)

    def run(alpha, hidden):
        gathered = gather(alpha, hidden, per_component=1.3)
        return gathered.alpha, gathered.hidden

    assert torch.autograd.gradcheck(run, (alpha, hidden))


def test_nothing_to_gather(tokens):
    """Without evidence there is no component, and no NaN."""
    alpha, hidden = torch.zeros(BATCH, N, requires_grad=True), tokens[1].float().requires_grad_()
    gathered = gather(alpha, hidden, per_component=1.0)
    assert (gathered.alpha == 0).all()
    assert (gathered.hidden == 0).all()
    (gathered.hidden.sum() + gathered.alpha.sum()).backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


def test_tokens_without_evidence_add_nothing(tokens):
    alpha, hidden = tokens[0].clone(), tokens[1]
    alpha[:, [0, 4, 5, N - 1]] = 0.0
    gathered = gather(alpha, hidden, per_component=0.8)
    assert (gathered.alpha[:, 0] == 0).all()
    changed = hidden.clone()
    changed[:, [0, 4, 5, N - 1]] = 1e3
    torch.testing.assert_close(gather(alpha, changed, per_component=0.8).hidden, gathered.hidden)
