"""Gates: their distribution against the closed form, the hard limit, pooling of dropped tokens, and the layer."""

import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, logit
from torch.autograd import gradcheck, gradgradcheck

import open_nvib as nv
from open_nvib.gates import assign_tokens, noiseless_gates, open_probability, pool_dropped, sample_gates, top_gates

BATCH, N, SIZE = 3, 7, 5
DRAWS = 200_000


@pytest.mark.parametrize("a", [-3.0, -0.5, 0.0, 2.0])
def test_gates_have_the_hard_concrete_distribution(a):
    """P(g ≤ t) of the paper's closed form; with 200,000 draws, 0.008 is over seven standard deviations."""
    gates = sample_gates(torch.full((DRAWS,), a), generator=torch.Generator().manual_seed(0))

    def above(t: float) -> float:
        return expit(a - 2 / 3 * logit((t + 0.1) / 1.2))

    assert ((gates > 0).double().mean() - above(0.0)).abs() < 0.008
    assert ((gates == 1).double().mean() - above(1.0)).abs() < 0.008
    assert ((gates > 0.3).double().mean() - above(0.3)).abs() < 0.008
    assert (gates.mean() - quad(above, 0, 1)[0]).abs() < 0.008
    assert open_probability(torch.tensor(a)).item() == pytest.approx(above(0.0), rel=1e-5)


def test_gates_of_large_logits_are_hard():
    logits = torch.tensor([-40.0, 40.0])
    assert noiseless_gates(logits).tolist() == sample_gates(logits).tolist() == [0.0, 1.0]
    assert open_probability(logits).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


def test_gates_have_derivatives():
    logits = torch.linspace(-2, 2, 6, dtype=torch.float64).requires_grad_()
    draw = lambda x: sample_gates(x, generator=torch.Generator().manual_seed(3))  # noqa: E731
    for function in (draw, noiseless_gates, open_probability):
        assert gradcheck(function, logits)
        assert gradgradcheck(function, logits)


def test_hard_gates_pool_each_token_into_the_one_kept_before_it():
    gates = torch.tensor([[0.0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    expected = torch.zeros(3, 6, 6)
    for token, component in enumerate([1, 1, 1, 1, 4, 4]):
        expected[0, component, token] = 1
    expected[1, 0] = 1
    assert torch.equal(assign_tokens(gates), expected)
    hidden = torch.randn(3, 6, SIZE)
    pooled = pool_dropped(gates, hidden, torch.ones(3, 6).bool())
    torch.testing.assert_close(pooled[0, 1], hidden[0, :4].mean(0))
    torch.testing.assert_close(pooled[0, 4], hidden[0, 4:].mean(0))
    torch.testing.assert_close(pooled[1, 0], hidden[1].mean(0))
    assert (pooled[2] == 0).all()


def test_soft_gates_pool_by_the_expected_assignment():
    """The average over all 2⁵ ways of opening gates, each as probable as independent gates make it."""
    torch.manual_seed(0)
    gates, expected = torch.rand(1, 5).double(), torch.zeros(1, 5, 5).double()
    for pattern in range(2**5):
        opened = torch.tensor([[(pattern >> i) & 1 for i in range(5)]]).double()
        expected += torch.where(opened == 1, gates, 1 - gates).prod() * assign_tokens(opened)
    torch.testing.assert_close(assign_tokens(gates), expected)


def test_pooling_has_derivatives_and_ignores_padding():
    torch.manual_seed(1)
    gates = torch.rand(2, 4).double().requires_grad_()
    hidden, mask = torch.randn(2, 4, 3).double().requires_grad_(), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()

    def pool(gates, hidden):
        return pool_dropped(gates * mask, hidden, mask)[mask]

    assert gradcheck(pool, (gates, hidden))
    assert gradgradcheck(pool, (gates, hidden))
    cropped = pool_dropped(gates[1:, :2], hidden[1:, :2], mask[1:, :2])
    torch.testing.assert_close(pool(gates, hidden)[4:], cropped[0])
    hard = torch.tensor([[0.0, 1.0, 0.0, 1.0]]).requires_grad_()
    pool_dropped(hard, hidden[:1].float(), mask[:1]).sum().backward()
    assert hard.grad is not None
    assert hard.grad.isfinite().all()


def test_top_gates_open_the_number_asked_for():
    torch.manual_seed(2)
    logits, mask = 3 * torch.randn(BATCH, N), torch.ones(BATCH, N).bool()
    mask[1, 3:] = False
    for number in (1, 2, 5, N, N + 3):
        gates = top_gates(logits, mask, torch.full((1, 1), number))
        assert (gates > 0).sum(-1).tolist() == torch.full((BATCH,), number).minimum(mask.sum(-1)).tolist()
        assert (gates[~mask] == 0).all()
        for text in range(BATCH):
            closed = mask[text] & (gates[text] == 0)
            if closed.any():
                assert logits[text][gates[text] > 0].min() >= logits[text][closed].max()


@pytest.fixture
def layer():
    torch.manual_seed(3)
    layer = nv.NVIB(SIZE, alpha_activation="gate", gate_count=2.0, gate_share=0.5, delta=0.3)
    torch.nn.init.normal_(layer.to_alpha.weight, std=2.0)
    return layer


def test_a_layer_counts_open_gates_in_units_of_delta(layer):
    hidden = torch.randn(BATCH, N, SIZE)
    posterior = layer(hidden)
    gates = noiseless_gates(layer.gate_logits(hidden))
    torch.testing.assert_close(posterior.alpha[:, :-1], 0.6 * gates)
    torch.testing.assert_close(layer.pseudo_counts(hidden), 0.6 * gates)
    assert torch.equal(posterior.kept, (gates > 0).sum(-1) / N)
    assert 0 < posterior.kept.mean() < 1
    assert torch.equal(layer(hidden).alpha, posterior.alpha)  # no noise unless asked for, in training mode as well
    fresh = nv.NVIB(SIZE, alpha_activation="gate", gate_share=0.25).pseudo_counts(torch.zeros(1, 1, SIZE))
    torch.testing.assert_close(fresh, torch.full((1, 1), 2 * (1.2 * 0.25 - 0.1)))


def test_the_noise_of_a_layer_is_asked_for_and_seeded(layer):
    hidden = torch.randn(BATCH, N, SIZE, requires_grad=True)
    draw = lambda seed: layer(hidden, gate_noise=True, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    posterior = draw(0)
    assert torch.equal(posterior.alpha, draw(0).alpha)
    assert not torch.equal(posterior.alpha, draw(1).alpha)
    # the sample and the KL are those of the same draw
    dropped = posterior.alpha == 0
    assert dropped.any()
    for kappa in (1, 3):
        gone = posterior.sample(kappa).log_pi.isneginf()
        assert torch.equal(gone.view(BATCH, N + 1, kappa).all(-1), dropped)
    posterior.loss(lambda_g=0.1, lambda_d=1.0).backward()
    assert layer.to_alpha.weight.grad.isfinite().all()
    assert layer.to_alpha.weight.grad.abs().sum() > 0
    assert posterior.prune(0.0).mean().compact().mu.shape[1] <= N + 1


def test_a_shift_is_a_dial_and_a_request_a_number(layer):
    hidden, mask = torch.randn(BATCH, N, SIZE), torch.ones(BATCH, N).bool()
    mask[0, 4:] = False
    kept = [layer(hidden, mask, gate_shift=shift).kept.mean().item() for shift in (-30.0, -2.0, 0.0, 2.0, 30.0)]
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert kept[-1] == 1
    each = layer(hidden, mask, gate_shift=torch.tensor([-30.0, 0.0, 30.0])).kept
    assert each[0] == 0
    assert each[2] == 1
    for number in (1, 3):
        posterior = layer(hidden, mask, nv.VectorRequest(vectors=number))
        assert ((posterior.alpha[:, :-1] > 0).sum(-1) == number).all()
    half = layer(hidden, mask, nv.VectorRequest(share=0.5))
    assert (half.alpha[:, :-1] > 0).sum(-1).tolist() == layer_numbers(mask, 0.5)


def layer_numbers(mask, share):
    prior = nv.NVIB(SIZE, keep_share=share).prior
    return prior.vectors(mask.sum(-1)).tolist()


@pytest.mark.parametrize("pooling", [False, True])
def test_padding_changes_nothing_of_a_layer_with_gates(layer, pooling):
    layer.gate_pooling = pooling
    hidden, mask = torch.randn(BATCH, N, SIZE), torch.ones(BATCH, N).bool()
    mask[1, 3:] = False
    posterior = layer(hidden.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)[1]
    cropped = layer(hidden[1:2, :3])
    torch.testing.assert_close(posterior.alpha[:, :3], cropped.alpha[:, :3])
    torch.testing.assert_close(posterior.mu[:, :3], cropped.mu[:, :3])
    torch.testing.assert_close(posterior.kl().gaussian, cropped.kl().gaussian)


def test_a_pooling_layer_says_where_tokens_went(layer):
    layer.gate_pooling = True
    hidden = torch.randn(BATCH, N, SIZE)
    with torch.no_grad():
        layer.to_alpha.weight.mul_(100)  # hard gates
    gates, found = layer(hidden).alpha[:, :-1] > 0, layer.component_of_token(hidden)
    for text in range(BATCH):
        kept = gates[text].nonzero().flatten().tolist()
        for token in range(N):
            before = [i for i in kept if i <= token]
            assert found[text, token] == (before[-1] if before else kept[0] if kept else -1)


def test_gates_run_in_bf16_vmap_and_with_merging(layer):
    hidden = torch.randn(BATCH, N, SIZE)
    half = nv.NVIB(SIZE, alpha_activation="gate", gate_pooling=True).bfloat16()
    assert half(hidden.bfloat16(), gate_noise=True).alpha.dtype == torch.float32
    drawn = torch.func.vmap(lambda _: layer(hidden, gate_noise=True).alpha, randomness="different")(torch.arange(3))
    assert not torch.equal(drawn[0], drawn[1])
    merging = nv.NVIB(SIZE, alpha_activation="gate", keep_share=0.5)
    assert merging(hidden, gate_noise=True).alpha.isfinite().all()


def test_mistakes_with_gates_are_explained(layer):
    hidden = torch.randn(1, 2, SIZE)
    with pytest.raises(ValueError, match="gate_shift"):
        nv.NVIB(SIZE)(hidden, gate_shift=1.0)
    with pytest.raises(ValueError, match="gate_share"):
        nv.NVIB(SIZE, alpha_activation="gate", gate_share=1.0)
    with pytest.raises(ValueError, match="delta"):
        nv.NVIB(SIZE, alpha_activation="gate", delta=0.0)
    with pytest.raises(ValueError, match="gates"):
        nv.NVIB(SIZE).gate_logits(hidden)


def test_noise_does_not_replace_the_number_that_is_asked_for(layer):
    hidden = torch.randn(2, 4, SIZE)
    for request in (nv.VectorRequest(vectors=1), nv.VectorRequest(share=0.5)):
        with pytest.raises(ValueError, match="gate_noise"):
            layer(hidden, None, request, gate_noise=True)


@pytest.mark.parametrize("pooling", [True, False])
def test_texts_without_tokens_have_no_gates(pooling):
    layer, hidden = nv.NVIB(SIZE, alpha_activation="gate", gate_pooling=pooling), torch.zeros(2, 0, SIZE)
    for request in (None, nv.VectorRequest(vectors=2), nv.VectorRequest(share=0.5)):
        assert layer(hidden, None, request).lengths.tolist() == [0, 0]
        assert layer.component_of_token(hidden, None, request).shape == (2, 0)
