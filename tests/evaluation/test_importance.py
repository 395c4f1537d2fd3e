"""The bound on the likelihood against numerical integration over the latent of small models."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from open_nvib.evaluation.densities import densities
from open_nvib.evaluation.latent import importance_bound, log_likelihood, log_weights
from open_nvib.process import ImpulseMixture
from open_nvib.text.model.autoencoder import LatentOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import plain_mixture
from open_nvib.text.model.configuration import TextAutoencoderConfig

PAD, BOS, EOS = 0, 1, 2
TEXT = [5, 3, 9, 7]


def make_model(kind: Any, *, seed: int = 0, latent_size: int = 1, **changes) -> Any:
    """A model of a few numbers whose decoder listens to the latent."""
    torch.manual_seed(seed)
    config = TextAutoencoderConfig(
        vocab_size=11,
        d_model=8,
        latent_size=latent_size,
        ffn_size=7,
        max_positions=23,
        bottleneck=kind,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        **changes,
    )
    model = TextAutoencoder(config).eval()
    bottleneck: Any = getattr(model.encoder.bottleneck, "nvib", model.encoder.bottleneck)
    attention: Any = model.decoder.layers[0].cross_attention
    bottleneck.reset_parameters()
    with torch.no_grad():
        attention.to_value.weight.mul_(3)
        bottleneck.to_log_sigma.bias.fill_(0.15)  # wider than the prior, so that weights are bounded
    return model


def posterior_of(model: Any, text: list[int]) -> Any:
    with torch.no_grad():
        return model.encoder.posterior(torch.tensor([text]))


def likelihoods(model: Any, text: list[int], mixture: ImpulseMixture) -> torch.Tensor:
    """log p(x | F) through the logits that `generate` reads, (batch,)."""
    inputs = torch.tensor([[BOS, *text]]).expand(len(mixture), -1)
    with torch.no_grad():
        logits = model(encoder_outputs=LatentOutput.of(mixture), decoder_input_ids=inputs).logits
    log_p = logits.double().log_softmax(-1)
    return sum((log_p[:, i, token] for i, token in enumerate([*text, EOS])), torch.zeros(len(mixture)).double())


def estimate(model: Any, text: list[int], count: int, seed: int = 0) -> torch.Tensor:
    (pair,) = densities(posterior_of(model, text), kappa=model.config.kappa)
    sets = pair.posterior.sample(count, torch.Generator().manual_seed(seed))
    return log_weights(model, text, pair, sets, batch_size=256)


def gaussian_rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of an expectation over N(0, 1): a fine grid, as a decoder of ReLUs has kinks."""
    points = np.linspace(-6, 6, nodes)
    weights = np.exp(-0.5 * points**2)
    return points, weights / weights.sum()


def log_expectation(log_values: torch.Tensor, weights: np.ndarray) -> float:
    return (log_values + torch.from_numpy(weights).log()).logsumexp(0).item()


@pytest.mark.parametrize("bottleneck", ["vt", "vtp", "vts", "nvae"])
def test_likelihood_is_that_of_the_logits(bottleneck):
    model = make_model(bottleneck, latent_size=5, heads=2)
    mixture = model.encoder.bottleneck.sample(posterior_of(model, TEXT)[[0] * 6], torch.Generator().manual_seed(0))
    expected = likelihoods(model, TEXT, mixture)
    torch.testing.assert_close(log_likelihood(model, TEXT, mixture).double(), expected, rtol=1e-5, atol=1e-5)  # float32


def close_to(log_truth: float, weights: torch.Tensor) -> bool:
    """Within five standard errors of the mean weight: by chance it is not once in two million seeds."""
    relative = (weights - log_truth).exp()
    error = 5 * relative.std().item() / math.sqrt(len(relative))
    assert error < 0.05
    return abs(relative.mean().item() - 1) < error


@pytest.mark.parametrize("p", [1, 2])
def test_bound_of_a_pooled_latent_reaches_the_integral(p):
    """log p(x | n) = log E_z p(x | z) over z ~ N(0, I), on a grid."""
    model = make_model("vtp", latent_size=p)
    fine, coarse = {1: (2000, 1000), 2: (160, 110)}[p]

    def integral(nodes: int) -> tuple[float, torch.Tensor]:
        points, weights = gaussian_rule(nodes)
        grid = np.array(list(itertools.product(points, repeat=p)))
        mass = np.array([math.prod(combination) for combination in itertools.product(weights, repeat=p)])
        z = torch.from_numpy(grid).float().unsqueeze(1)
        values = likelihoods(model, TEXT, plain_mixture(z, torch.ones(len(z), 1, dtype=torch.bool), 8))
        return log_expectation(values, mass), values

    truth, values = integral(fine)
    assert values.max() - values.min() > 1  # the latent matters
    assert integral(coarse)[0] == pytest.approx(truth, abs=1e-3)
    weights = estimate(model, TEXT, 20_000)
    assert close_to(truth, weights)
    assert weights.mean() < importance_bound(weights) == pytest.approx(truth, abs=0.05)


def test_bound_of_an_nvae_reaches_the_integral():
    """One token: its vector and the prior's, with weights (w, 1 − w), w ~ Beta(a, a), a = (α₀^p + Δ)/2.

    A grid over the two vectors and quantiles of the weight. That one vector of at most one is kept has probability ½.
    """
    model = make_model("nvae", delta=0.6, alpha0_p=1.2)
    text = [6]
    posterior = posterior_of(model, text)
    assert posterior.alpha[0, 0] > 0.2

    def integral(nodes: int) -> tuple[float, torch.Tensor]:
        points, weights = gaussian_rule(nodes)
        a = (1.2 + 0.6) / 2
        quantiles = scipy.stats.beta.ppf((np.arange(nodes) + 0.5) / nodes, a, a)
        first, second, w = (x.ravel() for x in np.meshgrid(points, points, quantiles, indexing="ij"))
        mass = np.einsum("i,j,k->ijk", weights, weights, np.full(nodes, 1 / nodes)).ravel()
        mixture = ImpulseMixture(
            z=torch.from_numpy(np.stack([first, second], -1)).float().unsqueeze(-1),
            log_pi=torch.from_numpy(np.log(np.stack([w, 1 - w], -1))).float(),
        )
        values = likelihoods(model, text, mixture)
        return log_expectation(values, mass), values

    truth, values = integral(48)
    assert values.max() - values.min() > 1
    assert integral(36)[0] == pytest.approx(truth, abs=2e-3)
    assert close_to(truth + math.log(0.5), estimate(model, text, 40_000))


def test_bound_of_a_text_without_vectors_is_what_the_decoder_says_alone():
    """All dropped: the prior's component is left, one unit Gaussian vector with all of the weight."""
    model = make_model("nvae")
    with torch.no_grad():
        model.encoder.bottleneck.nvib.to_alpha.bias.fill_(-100)
    points, weights = gaussian_rule(2000)
    z = torch.from_numpy(points).float()[:, None, None]
    mixture = ImpulseMixture(z=z, log_pi=torch.zeros(len(z), 1))
    truth = log_expectation(likelihoods(model, TEXT, mixture), weights)
    assert close_to(truth - math.log(len(TEXT) + 1), estimate(model, TEXT, 20_000))


@pytest.mark.parametrize("bottleneck", ["vt", "vtp", "nvae"])
def test_bound_grows_with_samples(bottleneck):
    """In expectation; over groups of the same draws always, by Jensen's inequality."""
    weights = estimate(make_model(bottleneck, latent_size=3), TEXT, 1024)
    by_count = [np.mean([importance_bound(group) for group in weights.view(-1, k)]) for k in (1, 4, 16, 64)]
    assert by_count == sorted(by_count)
    assert by_count[-1] > by_count[0]
    assert by_count[0] == pytest.approx(weights.mean().item())


def test_batches_of_samples_change_nothing():
    model = make_model("nvae", latent_size=3)
    (pair,) = densities(posterior_of(model, TEXT))
    sets = pair.posterior.sample(10, torch.Generator().manual_seed(1))
    whole = log_weights(model, TEXT, pair, sets, batch_size=10)
    torch.testing.assert_close(log_weights(model, TEXT, pair, sets, batch_size=3), whole)
