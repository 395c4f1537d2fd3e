import pytest
import torch

from open_nvib.mixtures import GaussianMixture
from open_nvib.store.files import InputError
from open_nvib.text.model.decoding import decode
from open_nvib.text.using.inspection import attention_map, reweight


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
    ("factors", "wanted"), [({99: 1.0}, "does not exist"), ({0: -1.0}, "at least 0"), ({0: float("nan")}, "at least 0")]
)
def test_what_cannot_be_weighed_is_an_error(trained, known, factors, wanted):
    with pytest.raises(InputError, match=wanted):
        reweight(trained.encode(known[:1]), factors)


def test_the_component_of_the_prior_is_not_a_tokens(trained, known):
    latent = trained.encode(known[:1])
    with pytest.raises(InputError, match="does not exist"):
        reweight(latent, {latent.mask.shape[-1] - 1: 0.0})
