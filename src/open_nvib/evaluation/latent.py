"""The latent of a VAE: its KL to the prior, the dimensions in use, its information on the text, and likelihood bounds.

log p(x | n) ≥ E log 1/K Σₖ p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x) with Fₖ ~ q(F | x) (Burda et al., 2016): the ELBO at K = 1,
never lower in expectation with more samples, and log p(x | n) in the limit. The length n is given, as the priors of all
of the models are conditional on it; a generator of texts of all lengths needs −log p(n) more.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from open_nvib.attention import Mixture
from open_nvib.evaluation.densities import TextDensities, densities, mutual_information
from open_nvib.process import ImpulseMixture
from open_nvib.store.evaluations import LatentDiagnosis
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import plain_mixture
from open_nvib.text.model.decoding import Texts, encode

ACTIVE_VARIANCE = 0.01
"""A dimension is active if the posterior mean varies by more than this over the data (Burda et al., 2016)."""


@torch.no_grad()
def diagnose(
    model: TextAutoencoder,
    texts: Texts,
    *,
    importance_samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
) -> LatentDiagnosis:
    """Diagnose the latent of a VAE on texts of token ids, without special tokens; the model in evaluation mode.

    The samples of a text depend on the seed and on the text's index alone; `batch_size`, of samples to decode, changes
    nothing. `importance_samples=0` leaves out what needs samples. The readings are the cross-entropy per token of
    decoding from the mean, a sample and the points of the latents.
    """
    bottleneck = model.encoder.bottleneck
    generator = torch.Generator(model.device).manual_seed(seed)
    rows: list[dict[str, float]] = []
    nll = dict.fromkeys(("mean_nll", "sample_nll", "points_nll"), 0.0)
    means: list[Tensor] = []
    pairs: list[TextDensities] = []
    for text in tqdm(texts, "encode", unit="", leave=False, disable=None):
        latent = encode(model, [text])
        kl, n = bottleneck.kl(latent), max(1, int(latent.lengths))
        dirichlet, gaussian = kl.dirichlet.item(), kl.gaussian.item()
        row = {"kl_dirichlet": dirichlet, "kl_gaussian": gaussian}
        row |= {"kl_dirichlet_scaled": dirichlet / n, "kl_gaussian_scaled": gaussian / (n * model.config.p)}
        rows.append(row if latent.alpha0 is None else {**row, "alpha0": latent.alpha0.item()})
        readings = (latent.mean(), bottleneck.sample(latent, generator), latent.points())
        for name, mixture in zip(nll, readings, strict=True):
            nll[name] -= log_likelihood(model, text, mixture).item()
        means.append(latent.mu[bottleneck.kept_vectors(latent)].cpu())
        pairs += densities(latent, kappa=model.config.kappa)
    tokens = sum(len(text) + 1 for text in texts)
    diagnosis = LatentDiagnosis(
        **{name: statistics.fmean(row[name] for row in rows) for name in rows[0]},
        **{name: total / tokens for name, total in nll.items()},
        active_units=active_units(torch.cat(means)),
        units=model.config.p,
    )
    if not importance_samples:
        return diagnosis
    sets = [
        pair.posterior.sample(importance_samples, torch.Generator().manual_seed(seed * 1_000_003 + index))
        for index, pair in enumerate(pairs)
    ]
    each_text = tqdm(
        zip(texts, pairs, sets, strict=True), "bound the likelihood", len(texts), unit="", leave=False, disable=None
    )
    found = [log_weights(model, text, pair, drawn, batch_size=batch_size) for text, pair, drawn in each_text]
    importance_nll = -sum(importance_bound(weights) for weights in found)
    return replace(
        diagnosis,
        mutual_information=mutual_information([pair.posterior for pair in pairs], sets),
        importance_nll=importance_nll / len(texts),
        importance_perplexity=perplexity(importance_nll, tokens),
        elbo=statistics.fmean(weights.mean().item() for weights in found),
    )


def active_units(means: Float[Tensor, "vectors p"]) -> int:
    """Count the dimensions with Var(μ) > ACTIVE_VARIANCE over the vectors of all texts."""
    return int((means.double().var(0, correction=0) > ACTIVE_VARIANCE).sum()) if len(means) else 0


def perplexity(nll: float, tokens: int) -> float | None:
    """Compute exp(nll/tokens); None where no float can hold it."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return None


def importance_bound(log_weights: Float[Tensor, " samples"]) -> float:
    """Bound log p(x | n) by the logarithm of the mean weight p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x); their mean is the ELBO."""
    return log_weights.logsumexp(0).item() - math.log(len(log_weights))


def log_weights(
    model: TextAutoencoder, text: Sequence[int], densities: TextDensities, sets: ImpulseMixture, *, batch_size: int = 64
) -> Float[Tensor, " samples"]:
    """Compute log p(x | Fₖ) + log p(Fₖ | n) − log q(Fₖ | x) of each sample of the text's posterior, in float64."""
    mixture = sets.to(model.device, dtype=model.dtype)
    if densities.posterior.alpha is None:  # ordinary attention
        real = torch.ones_like(mixture.log_pi, dtype=torch.bool)
        mixture = plain_mixture(mixture.z, real, model.config.head_size)
    starts = range(0, len(sets), batch_size)
    parts = [log_likelihood(model, text, mixture[first : first + batch_size]) for first in starts]
    return torch.cat(parts).double().cpu() + densities.log_ratio(sets)


@torch.no_grad()
def log_likelihood(model: TextAutoencoder, text: Sequence[int], mixture: Mixture) -> Float[Tensor, " samples"]:
    """Compute log p(x | F) of one text, its end included, given each mixture of a batch."""
    labels = torch.tensor([[*text, model.config.eos_token_id]], device=model.device)
    hidden = model.embed(model.shift_right(labels)).expand(len(mixture), -1, -1)
    logits = model.head(model.decoder(hidden, model.decoder.project(mixture)))  # (samples, n + 1, vocabulary)
    every = labels.expand(len(mixture), -1)
    return -F.cross_entropy(logits.float().flatten(0, 1), every.flatten(), reduction="none").view_as(every).sum(-1)
