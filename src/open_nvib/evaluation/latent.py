"""What the latent holds: how much it is paid for, which of its dimensions are used, and what that says of the text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib.evaluation.densities import FAINT, TextDensities, WeightedSets, densities, mutual_information
from open_nvib.evaluation.importance import bounds, log_weights
from open_nvib.process import Posterior
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import PlainLatent, VectorLatent, latent_kl
from open_nvib.text.model.decoding import Collator, in_batches

ACTIVE_VARIANCE = 0.01
"""A dimension is active if the posterior mean varies by more than this over the data (Burda et al., 2016)."""


@dataclass(frozen=True)
class LatentDiagnosis:
    """Means over texts. What samples are needed for is None without samples.

    Args:
        kl_dirichlet, kl_gaussian: L_D and L_G in nats per text, in the form and with the κ of the model's loss.
        kl_dirichlet_scaled, kl_gaussian_scaled: L_D/n and L_G/(n d), as in the loss.
        alpha0: α₀^q, of NVAE.
        active_units: dimensions whose posterior mean varies, of `units`.
        mutual_information: lower bound on I(x; F) in nats, at most the logarithm of the number of texts; see
            `densities.mutual_information`.
        importance_nll: upper bound on −log p(x | n) in nats per text; see `importance` and, for NVAE's prior,
            `densities`.
        importance_perplexity: the same for each token, ends included; None, too, where no float can hold it.
        elbo: the lower bound on log p(x | n) of one sample, a mean over the same samples.
    """

    kl_dirichlet: float
    kl_gaussian: float
    kl_dirichlet_scaled: float
    kl_gaussian_scaled: float
    alpha0: float | None
    active_units: int
    units: int
    mutual_information: float | None
    importance_nll: float | None
    importance_perplexity: float | None
    elbo: float | None


@dataclass(frozen=True)
class _Encoded:
    """Of all texts: the parts of the KL and lengths, α₀ of NVAE, the means of their vectors, and their densities."""

    kl_dirichlet: Float[Tensor, " texts"]
    kl_gaussian: Float[Tensor, " texts"]
    lengths: Float[Tensor, " texts"]
    alpha0: Float[Tensor, " texts"] | None
    means: Float[Tensor, "vectors p"]
    densities: list[TextDensities]


@dataclass(frozen=True)
class _Sampled:
    mutual_information: float
    importance_nll: float
    importance_perplexity: float | None
    elbo: float


def diagnose(
    model: TextAutoencoder,
    texts: Sequence[Sequence[int]],
    *,
    importance_samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
    faint: float = FAINT,
) -> LatentDiagnosis:
    """Diagnose the latent of a VAE on texts of token ids, without special tokens; the model in evaluation mode.

    Every text has samples of its own, which the seed and its place decide; `batch_size`, in texts to encode and in
    samples to decode, changes nothing. `importance_samples=0` leaves out what needs samples.
    """
    if model.config.bottleneck == "t":
        raise ValueError(
            "diagnose: a plain Transformer has no prior to compare its latent with. Use a vt, vts or nvae."
        )
    if not texts:
        raise ValueError("diagnose: got no texts, wanted at least one.")
    found = _encode(model, texts, batch_size, faint)
    sampled = None
    if importance_samples:
        sets = [
            pair.posterior.sample(importance_samples, torch.Generator().manual_seed(seed * 1_000_003 + index))
            for index, pair in enumerate(found.densities)
        ]
        sampled = _sampled(model, texts, found.densities, sets, batch_size)
    n = found.lengths.clamp(min=1)
    return LatentDiagnosis(
        kl_dirichlet=found.kl_dirichlet.mean().item(),
        kl_gaussian=found.kl_gaussian.mean().item(),
        kl_dirichlet_scaled=(found.kl_dirichlet / n).mean().item(),
        kl_gaussian_scaled=(found.kl_gaussian / (n * model.config.p)).mean().item(),
        alpha0=None if found.alpha0 is None else found.alpha0.mean().item(),
        active_units=active_units(found.means),
        units=model.config.p,
        mutual_information=None if sampled is None else sampled.mutual_information,
        importance_nll=None if sampled is None else sampled.importance_nll,
        importance_perplexity=None if sampled is None else sampled.importance_perplexity,
        elbo=None if sampled is None else sampled.elbo,
    )


def active_units(means: Float[Tensor, "vectors p"]) -> int:
    """Number of dimensions with Var(μ) > ACTIVE_VARIANCE over the vectors of all texts."""
    return int((means.double().var(0, correction=0) > ACTIVE_VARIANCE).sum()) if len(means) else 0


def kept_means(latent: VectorLatent | Posterior) -> Float[Tensor, "vectors p"]:
    """μ of every vector that is kept; the prior's component is not one of them."""
    if isinstance(latent, Posterior):
        return latent.mu[:, :-1][(latent.mask & (latent.alpha > 0))[:, :-1]]
    return latent.mu[latent.mask]


@torch.no_grad()
def _encode(model: TextAutoencoder, texts: Sequence[Sequence[int]], batch_size: int, faint: float) -> _Encoded:
    collator = Collator(model.config.pad_token_id, model.config.eos_token_id)
    bottleneck = model.encoder.bottleneck
    columns = {name: torch.zeros(len(texts), dtype=torch.float64) for name in ("dirichlet", "gaussian", "n", "alpha0")}
    pairs: dict[int, TextDensities] = {}
    means = []
    for indices, batch in in_batches(texts, batch_size, len):
        inputs = collator([{"input_ids": text} for text in batch])
        ids, mask = (inputs[name].to(model.device) for name in ("input_ids", "attention_mask"))
        latent = model.encoder.posterior(ids, mask)
        assert not isinstance(latent, PlainLatent)
        kl = latent_kl(bottleneck, latent)
        rows = {"dirichlet": kl.dirichlet, "gaussian": kl.gaussian, "n": latent.lengths}
        if isinstance(latent, Posterior):
            rows["alpha0"] = latent.alpha0
        for name, values in rows.items():
            columns[name][indices] = values.double().cpu()
        means.append(kept_means(latent).cpu())
        pairs.update(zip(indices, densities(latent, kappa=model.config.kappa, faint=faint), strict=True))
    return _Encoded(
        kl_dirichlet=columns["dirichlet"],
        kl_gaussian=columns["gaussian"],
        lengths=columns["n"],
        alpha0=columns["alpha0"] if model.config.bottleneck == "nvae" else None,
        means=torch.cat(means),
        densities=[pairs[index] for index in range(len(texts))],
    )


def _sampled(
    model: TextAutoencoder,
    texts: Sequence[Sequence[int]],
    pairs: list[TextDensities],
    sets: list[WeightedSets],
    batch_size: int,
) -> _Sampled:
    """What is estimated from samples of each text's posterior."""
    found = [
        bounds(log_weights(model, text, pair, drawn, batch_size=batch_size))
        for text, pair, drawn in zip(texts, pairs, sets, strict=True)
    ]
    nll = -sum(bound.importance for bound in found)
    return _Sampled(
        mutual_information=mutual_information([pair.posterior for pair in pairs], sets),
        importance_nll=nll / len(texts),
        importance_perplexity=perplexity(nll, sum(len(text) + 1 for text in texts)),
        elbo=sum(bound.elbo for bound in found) / len(texts),
    )


def perplexity(nll: float, tokens: int) -> float | None:
    """exp(nll/tokens); None where no float can hold it."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return None
