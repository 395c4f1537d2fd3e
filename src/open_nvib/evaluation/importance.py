"""How probable a text is under a model that is a VAE: the importance-weighted bound on log p(x | n).

log p(x | n) ≥ E log 1/K Σₖ p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x) with Fₖ ~ q(F | x) (Burda et al., 2016): the ELBO at K = 1,
never lower in expectation with more samples, and log p(x | n) in the limit. The length n is given, as the priors of all
of the models are conditional on it; a generator of texts of all lengths needs −log p(n) more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from open_nvib._records import trusted
from open_nvib.attention import Mixture
from open_nvib.evaluation.densities import TextDensities, WeightedSets
from open_nvib.mixtures import ImpulseMixture
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import plain_mixture


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on log p(x | n) of one text, in nats: the ELBO, and the tighter one of all K samples."""

    elbo: float
    importance: float


def bounds(log_weights: Float[Tensor, " samples"]) -> Bounds:
    """From log p(x | Fₖ) p(Fₖ | n)/q(Fₖ | x): the mean, and the logarithm of the mean of the weights themselves."""
    importance = log_weights.logsumexp(0) - math.log(len(log_weights))
    return Bounds(elbo=log_weights.mean().item(), importance=importance.item())


def log_weights(
    model: TextAutoencoder, text: Sequence[int], densities: TextDensities, sets: WeightedSets, *, batch_size: int = 64
) -> Float[Tensor, " samples"]:
    """log p(x | Fₖ) + log p(Fₖ | n) − log q(Fₖ | x) of each sample of the text's posterior, in float64."""
    mixture = as_mixture(model, sets)
    parts = [
        log_likelihood(model, text, mixture[first : first + batch_size]) for first in range(0, len(sets), batch_size)
    ]
    return torch.cat(parts).double().cpu() + densities.log_ratio(sets)


def as_mixture(model: TextAutoencoder, sets: WeightedSets) -> ImpulseMixture:
    """The samples as the decoder reads them."""
    z = sets.z.to(model.device, model.dtype)
    if sets.log_pi is None:
        real = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        return plain_mixture(z, real, model.config.d_model // model.config.heads)
    return trusted(ImpulseMixture, z=z, log_pi=sets.log_pi.to(z))


@torch.no_grad()
def log_likelihood(model: TextAutoencoder, text: Sequence[int], mixture: Mixture) -> Float[Tensor, " samples"]:
    """log p(x | F) of one text, its end included, given each mixture of a batch."""
    labels = torch.tensor([[*text, model.config.eos_token_id]], device=model.device)
    hidden = model.encoder.embedding(model.shift_right(labels)).expand(len(mixture), -1, -1)
    logits = model.head(model.decoder(hidden, model.decoder.project(mixture)))  # (samples, n + 1, vocabulary)
    every = labels.expand(len(mixture), -1)
    return -F.cross_entropy(logits.float().flatten(0, 1), every.flatten(), reduction="none").view_as(every).sum(-1)
