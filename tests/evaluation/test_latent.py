"""The diagnosis of a latent, against the model's own losses and cases known beforehand."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch.distributions import Dirichlet, Normal

from open_nvib.evaluation.latent import active_units, diagnose, perplexity
from open_nvib.process import ImpulseMixture, Posterior
from open_nvib.store.evaluations import LatentDiagnosis
from open_nvib.text.model.autoencoder import LatentOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import plain_mixture
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import Collator

PAD, BOS, EOS = 0, 1, 2
TEXTS = [[5, 3, 9], [7, 7, 4, 6, 3], [8], [3, 4, 5], [9, 9, 6, 5, 3, 10]]
EACH = pytest.mark.parametrize("bottleneck", ["vt", "vtp", "vts", "nvae"])


def make_model(bottleneck: Any, **changes) -> Any:
    torch.manual_seed(0)
    config = TextAutoencoderConfig(
        vocab_size=13,
        d_model=12,
        latent_size=5,
        ffn_size=7,
        max_positions=23,
        bottleneck=bottleneck,
        delta=0.3,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        **changes,
    )
    model = TextAutoencoder(config).eval()
    inner: Any = model.encoder.bottleneck
    if bottleneck == "nvae":  # tokens of various pseudo-counts, some of them dropped
        with torch.no_grad():
            inner.nvib.to_alpha.weight.mul_(20)
            inner.nvib.to_alpha.bias.zero_()
    elif bottleneck != "t":
        inner.reset_parameters()
    return model


def inputs_of(text: list[int]) -> dict[str, torch.Tensor]:
    return Collator(PAD, EOS)([{"input_ids": text}])


@EACH
def test_readings_are_scored_as_the_loss_scores_them(bottleneck):
    """The mean by the model's own loss at λ′ = 0; the points of a Gaussian latent are its mean."""
    model = make_model(bottleneck)
    found = diagnose(model, TEXTS, importance_samples=0)
    tokens = sum(len(text) + 1 for text in TEXTS)
    expected = sum(model(**inputs_of(text)).cross_entropy.item() * (len(text) + 1) for text in TEXTS) / tokens
    assert found.mean_nll == pytest.approx(expected, rel=1e-4)
    assert found.sample_nll != found.mean_nll
    assert (found.points_nll == found.mean_nll) == (bottleneck != "nvae")


def test_a_mean_that_is_worse_than_a_sample_is_worth_a_warning():
    assert LatentDiagnosis(mean_nll=1.0, sample_nll=0.5).mean_is_worse
    assert not LatentDiagnosis(mean_nll=0.5, sample_nll=0.5).mean_is_worse
    assert not LatentDiagnosis().mean_is_worse


@EACH
def test_kl_is_that_of_the_loss(bottleneck):
    model = make_model(bottleneck)
    found = diagnose(model, TEXTS, importance_samples=0)
    outputs = [model(**inputs_of(text)) for text in TEXTS]
    means = {
        name: sum(output[name].item() for output in outputs) / len(TEXTS) for name in ("kl_gaussian", "kl_dirichlet")
    }
    assert found.kl_gaussian_scaled == pytest.approx(means["kl_gaussian"], rel=1e-5)
    assert found.kl_dirichlet_scaled == pytest.approx(means["kl_dirichlet"], rel=1e-4, abs=1e-6)
    whole = sum(output.kl_gaussian.item() * len(text) * 5 for output, text in zip(outputs, TEXTS, strict=True))
    assert found.kl_gaussian == pytest.approx(whole / len(TEXTS), rel=1e-5)
    if bottleneck == "nvae":
        assert found.alpha0 == pytest.approx(sum(output.alpha0.item() for output in outputs) / len(TEXTS))
    else:
        assert found.alpha0 is None
        assert found.kl_dirichlet == 0
    assert found.units == 5


def samples_with_ratio(latent: Any, count: int) -> tuple[ImpulseMixture, torch.Tensor]:
    """Samples of a posterior and log p − log q of each, by torch's distributions."""
    weighted = isinstance(latent, Posterior)
    real = (latent.mask & (latent.alpha > 0.1) if weighted else latent.mask)[0]
    vectors = Normal(latent.mu[0, real], latent.log_sigma[0, real].exp())
    z = vectors.sample((count,))  # pyright: ignore[reportArgumentType]
    ratio = (Normal(0.0, 1.0).log_prob(z) - vectors.log_prob(z)).sum((-2, -1))
    if not weighted:
        return plain_mixture(z, torch.ones(z.shape[:2], dtype=torch.bool), 12), ratio
    alpha = latent.alpha[0, real]
    assert 2 < len(alpha) < len(real)
    pi = Dirichlet(alpha).sample((count,))  # pyright: ignore[reportArgumentType]
    prior = Dirichlet(torch.full_like(alpha, (1 + 0.3 * len(real[1:])) / len(alpha)))
    ratio += prior.log_prob(pi) - Dirichlet(alpha).log_prob(pi) - math.log(len(real))
    return ImpulseMixture(z=z, log_pi=pi.log()), ratio


@EACH
def test_elbo_is_another_estimate_of_it(bottleneck):
    """The mean of log p(x | F) p(F)/q(F | x), within five standard errors of both: by chance not, once in 2·10⁶."""
    model = make_model(bottleneck)
    text, count = TEXTS[1], 4000
    found = diagnose(model, [text], importance_samples=count)
    torch.manual_seed(3)
    with torch.no_grad():
        mixture, ratio = samples_with_ratio(model.encoder.posterior(torch.tensor([text])), count)
        inputs = torch.tensor([[BOS, *text]]).expand(count, -1)
        logits = model(encoder_outputs=LatentOutput.of(mixture), decoder_input_ids=inputs).logits
        log_weights = logits.log_softmax(-1)[:, range(6), [*text, EOS]].sum(-1) + ratio
    error = 5 * math.sqrt(2 / count) * log_weights.std().item()
    assert error < 1
    assert found.elbo is not None
    assert found.importance_nll is not None
    assert found.elbo == pytest.approx(log_weights.mean().item(), abs=error)
    assert -found.importance_nll > found.elbo + 0.1


@EACH
def test_diagnosis_does_not_depend_on_batches_and_does_on_the_seed(bottleneck):
    model = make_model(bottleneck)
    whole = dataclasses.asdict(diagnose(model, TEXTS, importance_samples=8))
    in_parts = dataclasses.asdict(diagnose(model, TEXTS, importance_samples=8, batch_size=2))
    for name, value in whole.items():
        assert in_parts[name] == (value if value is None else pytest.approx(value, rel=1e-4, abs=1e-5))
    again = dataclasses.asdict(diagnose(model, TEXTS, importance_samples=8))
    assert again == whole
    assert diagnose(model, TEXTS, importance_samples=8, seed=1).elbo != whole["elbo"]
    assert json.loads(json.dumps(whole)) == whole


def test_diagnosis_with_several_vectors_for_a_component():
    found = diagnose(make_model("nvae", kappa=3), TEXTS, importance_samples=4)
    assert found.importance_nll is not None
    assert math.isfinite(found.importance_nll)


def test_perplexity_is_of_all_tokens_and_their_ends():
    found = diagnose(make_model("vt"), TEXTS, importance_samples=4)
    assert found.importance_nll is not None
    assert found.importance_perplexity == pytest.approx(math.exp(5 * found.importance_nll / (3 + 5 + 1 + 3 + 6 + 5)))
    assert perplexity(1e9, 1) is None


def test_collapsed_posterior_says_nothing():
    """Posterior = prior: no KL, no active units, no information, and a bound that is exact in expectation."""
    model = make_model("vtp")
    with torch.no_grad():
        for linear in (model.encoder.bottleneck.to_mu, model.encoder.bottleneck.to_log_sigma):
            linear.weight.zero_()
            linear.bias.zero_()
    found = diagnose(model, TEXTS, importance_samples=16)
    assert (found.kl_gaussian, found.active_units) == (0, 0)
    assert found.mutual_information == pytest.approx(0, abs=1e-9)


def test_information_is_at_most_the_logarithm_of_the_number_of_texts():
    model = make_model("vt")
    with torch.no_grad():
        model.encoder.bottleneck.to_log_sigma.bias.fill_(-12)
    found = diagnose(model, TEXTS, importance_samples=4)
    assert found.mutual_information == pytest.approx(math.log(len(TEXTS)))
    assert found.importance_perplexity is not None


def test_without_samples_there_is_what_needs_none():
    found = diagnose(make_model("nvae"), TEXTS, importance_samples=0)
    assert found.mutual_information is found.importance_nll is found.importance_perplexity is found.elbo is None


def test_active_units_are_counted_by_hand():
    """Variances 0, 0.25, 0.0025 and 0.04."""
    means = torch.tensor([[1.0, 0.5, 0.05, 0.2], [1.0, -0.5, -0.05, -0.2]])
    assert active_units(means) == 2
    assert active_units(means[:0]) == 0


def test_means_are_of_kept_vectors_of_real_tokens():
    batch = Collator(PAD, EOS)([{"input_ids": text} for text in TEXTS])

    def kept_means(model: Any) -> tuple[Any, torch.Tensor]:
        latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"])
        return latent, latent.mu[model.encoder.bottleneck.kept_vectors(latent)]

    for bottleneck, count in (("vt", 18), ("vtp", 5), ("vts", 2 + 3 + 1 + 2 + 3)):
        assert kept_means(make_model(bottleneck))[1].shape == (count, 5)
    latent, means = kept_means(make_model("nvae"))
    kept = [
        latent.mu[row, i] for row, text in enumerate(TEXTS) for i in range(len(text)) if latent.alpha[row, i].item() > 0
    ]
    assert 0 < len(kept) < 18
    torch.testing.assert_close(means, torch.stack(kept))
