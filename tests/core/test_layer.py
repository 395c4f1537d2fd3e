from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import open_nvib as nv
from open_nvib.merging import Cuts, split_tokens
from open_nvib.process import MAX_JOINED_REMAINDER

BATCH, N, SIZE, P = 3, 5, 11, 7


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nv.NVIB(P, input_size=SIZE, alpha0_p=1.5, delta=0.25, prior_mu=0.5, prior_sigma=2.0)


@pytest.fixture
def hidden():
    return torch.randn(BATCH, N, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def mask():
    return torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()


def test_posterior_is_three_projections_and_the_prior(layer, hidden, mask):
    posterior = layer(hidden, mask)
    assert posterior.alpha.shape == (BATCH, N + 1)
    for b, i in mask.nonzero().tolist():
        h = hidden[b, i]
        torch.testing.assert_close(
            posterior.alpha[b, i], (layer.to_alpha.weight[0] @ h + layer.to_alpha.bias[0]).relu()
        )
        torch.testing.assert_close(posterior.mu[b, i], layer.to_mu.weight @ h + layer.to_mu.bias)
        torch.testing.assert_close(posterior.log_sigma[b, i], layer.to_log_sigma.weight @ h + layer.to_log_sigma.bias)
    assert (posterior.alpha[:, :-1][~mask] == 0).all()
    assert (posterior.alpha[:, -1] == 1.5).all()
    assert (posterior.mu[:, -1] == 0.5).all()
    torch.testing.assert_close(posterior.log_sigma[:, -1].exp(), torch.full((BATCH, P), 2.0))
    assert posterior.mask[:, -1].all()
    assert posterior.lengths.tolist() == [5, 2, 0]


def test_every_token_is_alive_at_the_start(layer, hidden):
    for activation in ("relu", "softplus"):
        alpha = nv.NVIB(SIZE, alpha_activation=activation)(hidden).alpha[:, :-1]
        assert (alpha > 0.3).all()
        assert (alpha < 1.7).all()


def test_relu_reaches_zero_and_softplus_does_not(hidden):
    for activation, reaches in (("relu", True), ("softplus", False)):
        layer = nv.NVIB(P, input_size=SIZE, alpha_activation=activation)
        torch.nn.init.constant_(layer.to_alpha.bias, -5.0)
        assert (layer(hidden).kept == 0).all() == reaches


def test_padding_changes_nothing(layer, hidden, mask):
    """A padded batch equals the cropped one, and what stands on padding, NaN too, does not matter."""
    garbage = hidden.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    padded, cropped = layer(garbage, mask)[1], layer(hidden[1:2, :2])
    attention = nv.DenoisingAttention(P)
    query = torch.randn(1, 4, P)
    torch.testing.assert_close(attention(query, padded.mean()), attention(query, cropped.mean()))
    for form in ("expected", "exact"):
        for part in ("dirichlet", "gaussian"):
            torch.testing.assert_close(getattr(padded.kl(form), part), getattr(cropped.kl(form), part))
    posterior = layer(garbage, mask)
    loss = posterior.kl().gaussian.sum() + posterior.sample().z.sum() + posterior.mean().mu.sum()
    loss.backward()
    assert all(x.grad.isfinite().all() for x in layer.parameters() if x.grad is not None)
    assert garbage.grad[mask].isfinite().all()
    assert (garbage.grad[~mask] == 0).all()


def test_the_state_holds_the_prior_and_safetensors_saves_it(layer, tmp_path):
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = nv.NVIB(P, input_size=SIZE)
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    for name in ("prior_mu", "prior_log_sigma", "alpha0_p", "delta"):
        assert torch.equal(getattr(other, name), getattr(layer, name))
        assert name in layer.state_dict()
    assert torch.equal(
        other.prior.sample([2], generator=torch.Generator().manual_seed(0)).z,
        layer.prior.sample([2], generator=torch.Generator().manual_seed(0)).z,
    )


def test_delta_can_follow_a_schedule(layer, hidden):
    before = layer(hidden).kl().dirichlet
    layer.set_delta(0.75)
    assert layer.delta.item() == 0.75
    assert not torch.allclose(layer(hidden).kl().dirichlet, before)
    torch.testing.assert_close(layer.prior.alpha0(torch.tensor([4])), torch.tensor([1.5 + 4 * 0.75]).double())


def test_a_prior_of_ones_own(hidden):
    mu, sigma = torch.arange(P).float(), torch.arange(1, P + 1).float()
    layer = nv.NVIB(P, input_size=SIZE, prior_mu=mu, prior_sigma=sigma)
    posterior = layer(hidden)
    torch.testing.assert_close(posterior.mu[0, -1], mu)
    torch.testing.assert_close(posterior.log_sigma[0, -1].exp(), sigma)
    exact = posterior.kl("exact").gaussian
    each = torch.distributions.kl_divergence(
        torch.distributions.Normal(posterior.mu, posterior.log_sigma.exp()), torch.distributions.Normal(mu, sigma)
    )
    torch.testing.assert_close(exact, each.sum((-2, -1)))


def test_training_learns_to_drop_tokens_that_say_nothing():
    """Half of the tokens are the same noise for every text: with L_D pressed, their α falls to 0; the others stay."""
    torch.manual_seed(0)
    layer, attention = nv.NVIB(8, delta=0.0), nv.DenoisingAttention(8)
    readout, query = torch.nn.Linear(8, 4), torch.nn.Parameter(torch.randn(1, 2, 8))
    modules = torch.nn.ModuleList([layer, attention, readout])
    optimiser = torch.optim.Adam([*modules.parameters(), query], lr=0.02)
    meaning = torch.randn(4, 8)

    def draw():
        label = torch.randint(4, (64, 2))
        noise = 0.1 * torch.randn(64, 8)
        return label, torch.stack([meaning[label[:, 0]], noise, meaning[label[:, 1]], torch.zeros(64, 8)], 1)

    for _ in range(300):
        label, hidden = draw()
        posterior = layer(hidden)
        logits = readout(attention(query.expand(64, -1, -1), posterior.sample(method="implicit"))).sum(1)
        target = torch.nn.functional.one_hot(label, 4).sum(1) / 2
        loss = torch.nn.functional.cross_entropy(logits, target) + 0.05 * posterior.kl().dirichlet.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    alpha = layer(draw()[1]).alpha.mean(0)
    assert alpha[[1, 3]].max() < 0.05
    assert alpha[[0, 2]].min() > 0.2


def merging_layer(**options):
    torch.manual_seed(0)
    return nv.NVIB(P, input_size=SIZE, **({"delta": 2.0, "alpha_unit": "delta", "keep_share": 0.4} | options))


def test_keep_share_merges_before_the_projections(hidden, mask):
    """What comes out is what a layer without it makes of the merged hidden states, token by token."""
    layer = merging_layer()
    posterior = layer(hidden, mask)
    counts = (hidden @ layer.to_alpha.weight[0] + layer.to_alpha.bias).relu() * 2.0
    cuts = Cuts(2.0 / 0.4)
    split = split_tokens(counts.masked_fill(~mask, 0.0), cuts, max_joined_remainder=MAX_JOINED_REMAINDER)
    merged = split.merge(hidden)
    torch.testing.assert_close(posterior.alpha[:, :-1], merged.alpha.to(hidden.dtype))
    torch.testing.assert_close(posterior.mu[:, :-1], layer.to_mu(merged.hidden))
    torch.testing.assert_close(posterior.log_sigma[:, :-1], layer.to_log_sigma(merged.hidden))
    assert posterior.lengths.tolist() == [5, 2, 0]
    assert 0 < posterior.kept[0] < 1


def test_a_merged_posterior_is_one_of_fewer_tokens(hidden):
    """Its KL in both forms is that of the components alone: tokens that were merged are not counted."""
    posterior = merging_layer()(hidden[:1])
    kept = posterior.alpha[0] > 0
    assert kept.sum() < len(kept)
    alone = nv.Posterior(
        alpha=posterior.alpha[:, kept],
        mu=posterior.mu[:, kept],
        log_sigma=posterior.log_sigma[:, kept],
        mask=posterior.mask[:, kept],
        prior=nv.ConditionalBDP(
            posterior.prior.mu,
            posterior.prior.log_sigma,
            alpha0_p=posterior.prior.alpha0(torch.tensor(N)).float(),
            delta=torch.tensor(0.0),
        ),
    )
    for form in ("expected", "exact"):
        for part in ("dirichlet", "gaussian"):
            torch.testing.assert_close(getattr(posterior.kl(form), part), getattr(alone.kl(form), part))


def test_padding_changes_nothing_in_a_layer_that_merges(hidden, mask):
    layer = merging_layer()
    garbage = hidden.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    padded, cropped = layer(garbage, mask)[1], layer(hidden[1:2, :2])
    torch.testing.assert_close(padded.kept, cropped.kept)
    for form in ("expected", "exact"):
        for part in ("dirichlet", "gaussian"):
            torch.testing.assert_close(getattr(padded.kl(form), part), getattr(cropped.kl(form), part))
    posterior = layer(garbage, mask)
    (posterior.kl().gaussian.sum() + posterior.kl().dirichlet.sum() + posterior.sample().z.sum()).backward()
    assert garbage.grad[mask].isfinite().all()
    assert (garbage.grad[~mask] == 0).all()


def test_a_smaller_share_keeps_fewer_vectors_and_the_evidence(hidden):
    layer = merging_layer(keep_share=1.0)
    hidden = hidden.repeat(1, 8, 1)
    shares, evidence = [], []
    for share in (1.0, 0.75, 0.5, 0.25, 0.2):
        layer.set_keep_share(share)
        shares.append(layer(hidden).kept.mean().item())
        evidence.append(layer(hidden).alpha0)
        assert abs(shares[-1] - share) < 0.12
    assert shares == sorted(shares, reverse=True)
    for alpha0 in evidence:
        torch.testing.assert_close(alpha0, evidence[0])


def test_the_prior_has_as_many_vectors_as_a_merged_text():
    layer = merging_layer(keep_share=0.25)
    mixture = layer.prior.sample([8, 9, 1], generator=torch.Generator().manual_seed(0))
    assert mixture.log_pi.isfinite().sum(-1).tolist() == [3, 4, 2]
    for share in (1.0, 0.7, 0.5, 0.35, 0.2):
        layer = merging_layer(keep_share=share, alpha_contrast=0.0)
        for n in range(1, 40):
            kept = (layer(torch.randn(1, n, SIZE)).alpha[0, :-1] > 0).sum()
            assert layer.prior.vectors(torch.tensor(n)) == kept, (share, n)
    assert merging_layer().prior.vectors(torch.tensor(0)) == 0
    before = layer.prior
    layer.set_keep_share(0.5)
    assert before.vectors(torch.tensor([8])).tolist() == [2]
    assert layer.prior.vectors(torch.tensor([8])).tolist() == [4]


def test_keep_share_is_part_of_the_state():
    layer, other = merging_layer(keep_share=0.25), merging_layer(keep_share=1.0)
    other.load_state_dict(layer.state_dict())
    assert other.state_dict()["keep_share"] == 0.25
    assert "keep_share" not in nv.NVIB(P).state_dict()


def test_alpha_in_deltas_follows_delta(hidden):
    layer = nv.NVIB(P, input_size=SIZE, delta=1.0, alpha_unit="delta")
    before = layer(hidden).alpha[:, :-1]
    layer.set_delta(10.0)
    torch.testing.assert_close(layer(hidden).alpha[:, :-1], 10 * before)


def test_contrast_is_by_how_much_tokens_differ(hidden):
    layer = nv.NVIB(P, input_size=SIZE, alpha_contrast=1.0, alpha_activation="softplus")
    plain = nv.NVIB(P, input_size=SIZE, alpha_activation="softplus")
    plain.load_state_dict({name: x for name, x in layer.state_dict().items() if name != "alpha_contrast"})
    torch.testing.assert_close(layer(hidden).alpha, plain(hidden).alpha)
    spreads = []
    for contrast in (1.0, 0.5, 0.0):
        layer.set_alpha_contrast(contrast)
        spreads.append(layer(hidden).alpha[:, :-1].std().item())
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[2] == pytest.approx(0.0, abs=1e-6)
    torch.nn.init.constant_(layer.to_alpha.bias, 3.0)
    torch.testing.assert_close(layer(hidden).alpha[:, :-1], torch.ones(BATCH, N))
    assert layer.state_dict()["alpha_contrast"] == 0.0


def test_a_step_moves_the_gates_as_much_further_as_the_contrast(hidden):
    """So gates learn on small hidden states, too: a step of Adam has the size of the learning rate."""
    moved = []
    for contrast in (1.0, 40.0):
        layer = nv.NVIB(P, input_size=SIZE, alpha_activation="gate", alpha_contrast=contrast)
        torch.nn.init.zeros_(layer.to_alpha.weight)
        before = layer.gate_logits(hidden)
        optimiser = torch.optim.Adam(layer.to_alpha.parameters(), lr=1e-3)
        before[:, 0].sum().backward()
        optimiser.step()
        moved.append(layer.gate_logits(hidden) - before)
    torch.testing.assert_close(moved[1], 40 * moved[0], rtol=1e-4, atol=1e-6)


def test_without_contrast_merging_is_a_stride(hidden):
    layer = merging_layer(alpha_contrast=0.0, keep_share=0.5)
    assert (layer(hidden.repeat(1, 2, 1)).alpha[0, :-1] > 0).tolist() == [True, False] * N


def one_by_one(layer, hidden, request):
    """The posteriors of the texts, each encoded alone with its own entry of `request`."""
    rows = range(len(hidden))
    return nv.Posterior.cat([layer(hidden[i : i + 1], None, request[i : i + 1]) for i in rows])


@pytest.mark.parametrize("how", ["share", "vectors"])
def test_a_number_for_each_text_is_that_of_encoding_them_one_by_one(hidden, how):
    layer = merging_layer(keep_share=0.5)
    torch.nn.init.normal_(layer.to_alpha.weight, std=0.2)
    choices = {"share": torch.linspace(0.2, 1.0, BATCH), "vectors": torch.arange(1, BATCH + 1)}
    request = nv.VectorRequest(**{how: choices[how]}, offset=torch.linspace(0.0, 0.9, BATCH))
    found, expected = layer(hidden, None, request), one_by_one(layer, hidden, request)
    for name in ("alpha", "mu", "log_sigma", "mask"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    for name in ("dirichlet", "gaussian"):
        torch.testing.assert_close(getattr(found.kl(), name), getattr(expected.kl(), name))


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.99])
def test_a_text_gets_as_many_vectors_as_asked_for(offset):
    layer, hidden = merging_layer(keep_share=0.5, alpha_contrast=0.0), torch.randn(1, 12, SIZE)
    for vectors in range(1, 15):
        found = layer(hidden, None, nv.VectorRequest(vectors, offset=offset))
        assert (found.alpha[0, :-1] > 0).sum() == min(vectors, 12)
        torch.testing.assert_close(found.alpha0, layer(hidden).alpha0)


def test_the_offset_moves_the_cuts():
    layer, hidden = merging_layer(keep_share=0.25, alpha_contrast=0.0), torch.randn(1, 8, SIZE)
    components = [
        layer.component_of_token(hidden, None, nv.VectorRequest(offset=offset))[0].tolist() for offset in (0.0, 0.5)
    ]
    assert components == [[0, 0, 0, 0, 4, 4, 4, 4], [0, 0, 2, 2, 2, 2, 6, 6]]


def test_mistakes_with_numbers_are_explained(hidden):
    layer = merging_layer(keep_share=0.5)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"share": 0.5, "vectors": 2}, "expected one of them"),
        ({"share": 0.0}, "share"),
        ({"share": torch.full((BATCH + 1,), 0.5)}, "batch"),
        ({"vectors": -1}, "at least 1"),
        ({"offset": 1.0}, "below 1"),
    ]
    for cuts, words in mistakes:
        with pytest.raises(ValueError, match=words):
            layer(hidden, None, nv.VectorRequest(**cuts))
    with pytest.raises(ValueError, match="Build it with keep_share"):
        nv.NVIB(P, input_size=SIZE)(hidden, None, nv.VectorRequest(2))


def test_old_keywords_warn_and_work(hidden):
    layer = merging_layer(keep_share=0.5)
    with pytest.warns(DeprecationWarning, match="VectorRequest"):
        found = layer(hidden, vectors=2, place=0.3)
    torch.testing.assert_close(found.alpha, layer(hidden, None, nv.VectorRequest(2, offset=0.3)).alpha)
    with pytest.raises(TypeError, match="'number'"):
        layer(hidden, number=2)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_an_error(share):
    with pytest.raises(ValueError, match="keep_share"):
        nv.NVIB(P, keep_share=share)
    with pytest.raises(ValueError, match="keep_share"):
        merging_layer().set_keep_share(share)


def test_mistakes_with_merging_are_explained():
    with pytest.raises(ValueError, match="keep_share"):
        nv.NVIB(P).set_keep_share(0.5)
    with pytest.raises(ValueError, match="alpha_contrast"):
        nv.NVIB(P).set_alpha_contrast(0.5)
    with pytest.raises(ValueError, match="alpha_contrast"):
        nv.NVIB(P, alpha_contrast=-0.5)
    with pytest.raises(ValueError, match="alpha_unit"):
        nv.NVIB(P, alpha_unit="two")
    with pytest.raises(ValueError, match="delta"):
        nv.NVIB(P, keep_share=0.5, delta=0.0)
    with pytest.raises(ValueError, match="delta"):
        merging_layer().set_delta(0.0)
    for tiny in ({"keep_share": 1e-50}, {"delta": 1e-50}):
        with pytest.raises(ValueError, match=next(iter(tiny))):
            merging_layer(**tiny)
