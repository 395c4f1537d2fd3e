"""The latent of a VAE: its KL to the prior, the dimensions in use, its information on the text, and likelihood bounds.

log p(x | n) ≥ E log 1/K Σₖ p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x) with Fₖ ~ q(F | x) (Burda et al., 2016): the ELBO at K = 1,
never lower in expectation with more samples, and log p(x | n) in the limit. The length n is given, as the priors of all
of the models are conditional on it; a generator of texts of all lengths needs −log p(n) more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from open_nvib._records import unchecked
from open_nvib.attention import Mixture
from open_nvib.evaluation.densities import FAINT, TextDensities, WeightedSets, densities, mutual_information
from open_nvib.mixtures import ImpulseMixture
from open_nvib.store.evaluations import LatentDiagnosis
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.batches import Texts, in_batches
from open_nvib.text.model.bottlenecks import plain_mixture
from open_nvib.text.model.decoding import encode

ACTIVE_VARIANCE = 0.01
"""A dimension is active if the posterior mean varies by more than this over the data (Burda et al., 2016)."""


def diagnose(
    model: TextAutoencoder,
    texts: Texts,
    *,
    importance_samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
    faint: float = FAINT,
) -> LatentDiagnosis:
    """Diagnose the latent of a VAE on texts of token ids, without special tokens; the model in evaluation mode.

    The samples of a text depend on the seed and on the text's index alone; `batch_size`, in texts to encode and in
    samples to decode, changes nothing. `importance_samples=0` leaves out what needs samples.
    """
    if not model.encoder.bottleneck.has_prior:
        raise ValueError(
            "diagnose: a plain Transformer has no prior to compare its latent with. Use a vt, vts or nvae."
        )
    if not texts:
        raise ValueError("diagnose: texts is empty, expected at least one.")
    encoded = _encode(model, texts, batch_size, faint)
    n = encoded.lengths.clamp(min=1)
    diagnosis = LatentDiagnosis(
        kl_dirichlet=encoded.kl_dirichlet.mean().item(),
        kl_gaussian=encoded.kl_gaussian.mean().item(),
        kl_dirichlet_scaled=(encoded.kl_dirichlet / n).mean().item(),
        kl_gaussian_scaled=(encoded.kl_gaussian / (n * model.config.p)).mean().item(),
        alpha0=None if encoded.alpha0 is None else encoded.alpha0.mean().item(),
        active_units=active_units(encoded.means),
        units=model.config.p,
        **compare_decoding(model, texts, seed=seed),
    )
    if not importance_samples:
        return diagnosis
    sets = [
        pair.posterior.sample(importance_samples, torch.Generator().manual_seed(seed * 1_000_003 + index))
        for index, pair in enumerate(encoded.densities)
    ]
    each_text = zip(texts, encoded.densities, sets, strict=True)
    found = [
        bounds(log_weights(model, text, pair, drawn, batch_size=batch_size))
        for text, pair, drawn in tqdm(each_text, "bound the likelihood", len(texts), unit="", leave=False, disable=None)
    ]
    nll = -sum(bound.importance for bound in found)
    return replace(
        diagnosis,
        mutual_information=mutual_information([pair.posterior for pair in encoded.densities], sets),
        importance_nll=nll / len(texts),
        importance_perplexity=perplexity(nll, sum(len(text) + 1 for text in texts)),
        elbo=sum(bound.elbo for bound in found) / len(texts),
    )


@dataclass(frozen=True)
class _Encoded:
    """The latents of all texts: their KL, lengths and α₀ (of NVAE), the means of their vectors, and their densities."""

    kl_dirichlet: Float[Tensor, " texts"]
    kl_gaussian: Float[Tensor, " texts"]
    lengths: Float[Tensor, " texts"]
    alpha0: Float[Tensor, " texts"] | None
    means: Float[Tensor, "vectors p"]
    densities: list[TextDensities]


@torch.no_grad()
def _encode(model: TextAutoencoder, texts: Texts, batch_size: int, faint: float) -> _Encoded:
    bottleneck = model.encoder.bottleneck
    columns: dict[str, Tensor] = {}
    pairs: dict[int, TextDensities] = {}
    means = []
    for indices, batch in in_batches(texts, batch_size, len, "encode"):
        latent = encode(model, batch)
        kl = bottleneck.kl(latent)
        rows = {"dirichlet": kl.dirichlet, "gaussian": kl.gaussian, "n": latent.lengths, "alpha0": latent.alpha0}
        for name, values in rows.items():
            if values is not None:
                column = columns.setdefault(name, torch.zeros(len(texts), dtype=torch.float64))
                column[indices] = values.double().cpu()
        means.append(latent.mu[bottleneck.kept_vectors(latent)].cpu())
        pairs.update(zip(indices, densities(latent, kappa=model.config.kappa, faint=faint), strict=True))
    return _Encoded(
        kl_dirichlet=columns["dirichlet"],
        kl_gaussian=columns["gaussian"],
        lengths=columns["n"],
        alpha0=columns.get("alpha0"),
        means=torch.cat(means),
        densities=[pairs[index] for index in range(len(texts))],
    )


@torch.no_grad()
def compare_decoding(model: TextAutoencoder, texts: Texts, *, seed: int = 0) -> dict[str, float]:
    """Measure the cross-entropy per token of decoding from the mean, a sample and the points of the latents."""
    generator = torch.Generator(model.device).manual_seed(seed)
    sums = dict.fromkeys(("mean_nll", "sample_nll", "points_nll"), 0.0)
    for text in texts:
        latent = encode(model, [text])
        sample = model.encoder.bottleneck.sample(latent, generator)
        for name, mixture in zip(sums, (latent.mean(), sample, latent.points()), strict=True):
            sums[name] -= log_likelihood(model, text, mixture).item()
    return {name: total / sum(len(text) + 1 for text in texts) for name, total in sums.items()}


def active_units(means: Float[Tensor, "vectors p"]) -> int:
    """Count the dimensions with Var(μ) > ACTIVE_VARIANCE over the vectors of all texts."""
    return int((means.double().var(0, correction=0) > ACTIVE_VARIANCE).sum()) if len(means) else 0


def perplexity(nll: float, tokens: int) -> float | None:
    """Compute exp(nll/tokens); None where no float can hold it."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return None


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on log p(x | n) of one text, in nats: the ELBO, and the tighter one of all K samples."""

    elbo: float
    importance: float


def bounds(log_weights: Float[Tensor, " samples"]) -> Bounds:
    """Bound log p(x | n) by log p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x): by its mean, and by the logarithm of the mean weight."""
    importance = log_weights.logsumexp(0) - math.log(len(log_weights))
    return Bounds(elbo=log_weights.mean().item(), importance=importance.item())


def log_weights(
    model: TextAutoencoder, text: Sequence[int], densities: TextDensities, sets: WeightedSets, *, batch_size: int = 64
) -> Float[Tensor, " samples"]:
    """Compute log p(x | Fₖ) + log p(Fₖ | n) − log q(Fₖ | x) of each sample of the text's posterior, in float64."""
    mixture = as_mixture(model, sets)
    parts = [
        log_likelihood(model, text, mixture[first : first + batch_size]) for first in range(0, len(sets), batch_size)
    ]
    return torch.cat(parts).double().cpu() + densities.log_ratio(sets)


def as_mixture(model: TextAutoencoder, sets: WeightedSets) -> ImpulseMixture:
    """Convert samples to the mixture that the decoder reads."""
    z = sets.z.to(model.device, model.dtype)
    if sets.log_pi is None:
        real = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        return plain_mixture(z, real, model.config.d_model // model.config.heads)
    return unchecked(ImpulseMixture, z=z, log_pi=sets.log_pi.to(z))


@torch.no_grad()
def log_likelihood(model: TextAutoencoder, text: Sequence[int], mixture: Mixture) -> Float[Tensor, " samples"]:
    """Compute log p(x | F) of one text, its end included, given each mixture of a batch."""
    labels = torch.tensor([[*text, model.config.eos_token_id]], device=model.device)
    hidden = model.encoder.embedding(model.shift_right(labels)).expand(len(mixture), -1, -1)
    logits = model.head(model.decoder(hidden, model.decoder.project(mixture)))  # (samples, n + 1, vocabulary)
    every = labels.expand(len(mixture), -1)
    return -F.cross_entropy(logits.float().flatten(0, 1), every.flatten(), reduction="none").view_as(every).sum(-1)
