"""Denoising self-attention: against one query at a time, causal masks, stacks of layers."""

from itertools import pairwise

import pytest
import torch

from open_nvib import NVIB, DenoisingAttention, NVIBEncoder, NVIBEncoderLayer, Posterior
from open_nvib.transformer import causal_mask

B, N, SIZE, HEADS = 3, 7, 10, 2
MASK = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 1 + [False] * 6])


@pytest.fixture
def x():
    return torch.randn(B, N, SIZE, generator=torch.Generator().manual_seed(0))


def spread(nvib: NVIB) -> None:
    """Make α differ between tokens; some are dropped."""
    with torch.no_grad():
        nvib.to_alpha.weight.normal_(std=0.7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["mean", "sample"])
def test_a_masked_query_attends_to_what_it_may_see(x, kind):
    """Query t alone over components 1 … t and the prior's, which a mixture without the others has."""
    torch.manual_seed(0)
    nvib, attention = NVIB(SIZE), DenoisingAttention(SIZE, HEADS)
    posterior = nvib(x)
    mixture = posterior.mean() if kind == "mean" else posterior.sample()
    found = attention(x, mixture, causal_mask(x, N))
    for t in range(N):
        seen = [*range(t + 1), N]
        part = mixture.map(lambda tensor, seen=seen: tensor[:, seen])
        torch.testing.assert_close(found[:, t : t + 1], attention(x[:, t : t + 1], part), atol=1e-5, rtol=1e-5)


def test_a_mask_of_all_changes_nothing(x):
    torch.manual_seed(0)
    attention, posterior = DenoisingAttention(SIZE, HEADS), NVIB(SIZE)(x, MASK)
    everything = torch.ones(B, N, N + 1, dtype=torch.bool)
    for mixture in (posterior.mean(), posterior.sample()):
        torch.testing.assert_close(attention(x, mixture, everything), attention(x, mixture))


def test_a_causal_encoder_sees_no_later_token(x):
    torch.manual_seed(0)
    encoder = NVIBEncoder(3, SIZE, HEADS, causal=True).eval()
    changed = torch.cat([x[:, :4], x[:, 4:].flip(0)], 1)
    a, b = (encoder(each, sample=False).hidden for each in (x, changed))
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])
    both = NVIBEncoder(3, SIZE, HEADS).eval()
    assert not torch.allclose(both(x, sample=False).hidden[:, :4], both(changed, sample=False).hidden[:, :4])


@pytest.mark.parametrize("steps", [[1] * N, [3, 1, 3]], ids=str)
def test_a_causal_encoder_reads_step_by_step(x, steps):
    torch.manual_seed(0)
    encoder = NVIBEncoder(3, SIZE, HEADS, causal=True).eval()
    for layer in encoder.layers:
        spread(layer.nvib)  # pyright: ignore[reportArgumentType]
    whole, encoded, hidden = encoder(x, MASK, sample=False), None, []
    for part, mask in zip(x.split(steps, 1), MASK.split(steps, 1), strict=True):
        encoded = encoder(part, mask, sample=False, past=encoded)
        hidden.append(encoded.hidden)
    torch.testing.assert_close(torch.cat(hidden, 1), whole.hidden, atol=1e-5, rtol=1e-5)
    assert encoded is not None
    for a, b in zip(encoded.posteriors, whole.posteriors, strict=True):
        assert a.mu.shape == (B, N + 1, SIZE)  # one component of the prior
        torch.testing.assert_close((a.alpha, a.mu, a.mask), (b.alpha, b.mu, b.mask), atol=1e-5, rtol=1e-5)
    for options in ({"sample": True}, {"sample": False}):
        wrong = encoder if options["sample"] else NVIBEncoder(3, SIZE, HEADS)
        with pytest.raises(ValueError, match="past"):
            wrong(x, past=whole, **options)


def test_padding_changes_nothing(x):
    torch.manual_seed(0)
    encoder = NVIBEncoder(2, SIZE, HEADS).eval()
    padded = encoder(x, MASK, sample=False)
    alone = encoder(x[1:2, :4], sample=False)
    torch.testing.assert_close(padded.hidden[1:2, :4], alone.hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(padded.kl().gaussian[1:2], alone.kl().gaussian, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(padded.kl().dirichlet[1:2], alone.kl().dirichlet, atol=1e-4, rtol=1e-4)


def test_a_dropped_token_stays_dropped(x):
    torch.manual_seed(0)
    encoder = NVIBEncoder(3, SIZE, HEADS).eval()
    for layer in encoder.layers:
        spread(layer.nvib)  # pyright: ignore[reportArgumentType]
    posteriors = encoder(x, MASK, sample=False).posteriors
    assert all(isinstance(posterior, Posterior) for posterior in posteriors)
    kept = [posterior.kept.mean() for posterior in posteriors]
    assert kept[0] > kept[-1]
    for below, above in pairwise(posteriors):
        assert not (above.alpha[:, :-1] > 0)[below.alpha[:, :-1] == 0].any()
        assert (above.alpha[:, -1] == 1).all()


def test_log_alpha_adds_to_that_of_the_layer_below(x):
    torch.manual_seed(0)
    layer = NVIBEncoderLayer(SIZE, HEADS).eval()
    _, below = NVIBEncoderLayer(SIZE, HEADS).eval()(x, sample=False)
    _, alone = layer(x, sample=False)
    _, stacked = layer(x, sample=False, below=below)
    expected = alone.mean().log_alpha[:, :-1] + below.mean().log_alpha[:, :-1]
    torch.testing.assert_close(stacked.mean().log_alpha[:, :-1], expected)


def test_the_kl_of_a_stack_has_weights_by_layer(x):
    torch.manual_seed(0)
    encoded = NVIBEncoder(2, SIZE, HEADS).eval()(x, MASK, sample=False)
    first, second = (posterior.kl() for posterior in encoded.posteriors)
    torch.testing.assert_close(encoded.kl([1.0, 2.0]).gaussian, first.gaussian + 2 * second.gaussian)
    torch.testing.assert_close(encoded.kl([1.0, 2.0]).dirichlet, first.dirichlet + 2 * second.dirichlet)
    with pytest.raises(ValueError, match="weights"):
        encoded.kl([1.0])


def test_gradients_reach_every_parameter(x):
    torch.manual_seed(0)
    encoder = NVIBEncoder(2, SIZE, HEADS, alpha_activation="softplus")
    encoded = encoder(x, MASK, sample=True)
    kl = encoded.kl()
    (encoded.hidden[MASK].square().mean() + (kl.gaussian + kl.dirichlet).mean()).backward()
    assert [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


def test_a_layer_refuses_tokens_that_share_components():
    with pytest.raises(ValueError, match="keep_share"):
        NVIBEncoderLayer(SIZE, HEADS, keep_share=0.5)


def test_a_layer_refuses_to_pool_tokens_into_those_before_them():
    """A causal query would read tokens after its own, and the cache of a causal encoder would be wrong."""
    with pytest.raises(ValueError, match="gate_pooling"):
        NVIBEncoderLayer(SIZE, HEADS, causal=True, alpha_activation="gate", gate_pooling=True)


def test_the_past_of_another_encoder_or_batch_is_refused(x):
    encoder, deeper = (NVIBEncoder(layers, SIZE, HEADS, causal=True) for layers in (1, 2))
    with pytest.raises(ValueError, match="past has 2 layers, expected 1"):
        encoder(x, sample=False, past=deeper(x, sample=False))
    with pytest.raises(ValueError, match="past has shape"):
        encoder(x, sample=False, past=encoder(x[:1], sample=False))


def test_weights_of_layers_are_numbers_of_at_least_zero(x):
    encoded = NVIBEncoder(2, SIZE, HEADS)(x, MASK, sample=True)
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match=r"weights\[1\]"):
            encoded.kl([1.0, wrong])
