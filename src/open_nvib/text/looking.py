"""Looking into a latent and changing it by hand: what each output token attended to, and other weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib.attention import Mixture
from open_nvib.errors import InputError
from open_nvib.mixtures import ImpulseMixture
from open_nvib.process import Posterior
from open_nvib.text.bottlenecks import Latent
from open_nvib.text.model import TextAutoencoder


@torch.no_grad()
def attention_map(model: TextAutoencoder, mixture: Mixture, ids: Sequence[int]) -> Float[Tensor, "outputs n"]:
    """The share of each vector in what the decoder read when it wrote each token of `ids`, and then its end.

    `mixture` is of one text, such as `latent.mean()`; of an NVAE the last column is the prior's component. The mean
    over layers and heads: each row sums to 1.
    """
    device, config = model.device, model.config
    written = torch.tensor([[config.decoder_start_token_id, *ids]], device=device)
    hidden = model.encoder.embedding(written)
    maps = []
    for layer, memory in zip(model.decoder.layers, model.decoder.project(mixture), strict=True):
        own = hidden + layer.attention(layer.norms[0](hidden), causal=True)  # pyright: ignore
        maps.append(layer.cross_attention.weights(layer.norms[1](own), memory)[0].mean(0))  # pyright: ignore
        hidden = layer(hidden, memory, None)
    return torch.stack(maps).mean(0)


def reweight(latent: Latent, factors: Mapping[int, float]) -> Mixture:
    """The mean of a latent of one text, the weight of some of its vectors multiplied: by 0, a vector is switched off.

    In an NVAE the pseudo-count α is multiplied. In the others, where the weights follow from the norms of the vectors,
    the weight π.
    """
    count = latent.mask.shape[-1] - isinstance(latent, Posterior)  # the prior's component is not a token's
    scale = torch.ones(latent.mask.shape[-1], device=latent.mask.device)
    for index, factor in factors.items():
        if not 0 <= index < count:
            raise InputError(f"vector {index} does not exist, wanted 0 to {count - 1}.")
        if not 0 <= factor < float("inf"):
            raise InputError(f"the weight of vector {index} is multiplied by {factor}, wanted a number of at least 0.")
        scale[index] = factor
    if isinstance(latent, Posterior):
        return replace(latent, alpha=latent.alpha * scale.to(latent.alpha.dtype)).mean()
    mean = latent.mean()
    log_pi = mean.log_pi + scale.log().to(mean.log_pi.dtype)
    if not log_pi.isfinite().any():
        raise InputError("all vectors are switched off, and this model has no prior to fall back on. Leave one on.")
    return ImpulseMixture(z=mean.z, log_pi=log_pi)
