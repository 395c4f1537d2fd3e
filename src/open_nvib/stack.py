"""Denoising self-attention: an encoder with an NVIB inside each layer.

The queries are the hidden states themselves; keys and values are the Dirichlet process that an NVIB makes of the same
states, with the prior's component. A token that a layer drops has no weight in any layer above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor, nn

from open_nvib._checks import check
from open_nvib._tensors import Hidden, TokenMask, unchecked, values_of
from open_nvib.attention import DenoisingAttention
from open_nvib.layer import NVIB
from open_nvib.process import KL, KLForm, Posterior


@dataclass(frozen=True)
class Encoded:
    """Hidden states of the last layer, and the posterior of each layer, the first one first.

    The posteriors are also the cache of a causal encoder: μ, σ and α of each token that was read, in each layer.

    >>> encoded = NVIBEncoder(2, 8, 2)(torch.randn(2, 5, 8), sample=True)
    >>> encoded.kl(weights=[1, 2]).gaussian.shape
    torch.Size([2])
    """

    hidden: Hidden
    posteriors: tuple[Posterior, ...]

    def kl(self, weights: Sequence[float] | None = None, form: KLForm = "expected") -> KL:
        """Sum the KL of the layers, with a weight for each, such as 1, 2, …, L; 1 for each if not given."""
        weights = [1.0] * len(self.posteriors) if weights is None else list(weights)
        if len(weights) != len(self.posteriors):
            raise ValueError(
                f"kl: weights has {len(weights)} numbers, expected {len(self.posteriors)}, one for a layer."
            )
        kls = [posterior.kl(form) for posterior in self.posteriors]
        dirichlet = sum(weight * kl.dirichlet for weight, kl in zip(weights, kls, strict=True))
        gaussian = sum(weight * kl.gaussian for weight, kl in zip(weights, kls, strict=True))
        return KL(dirichlet=torch.as_tensor(dirichlet), gaussian=torch.as_tensor(gaussian))


class NVIBEncoderLayer(nn.Module):
    """A Transformer encoder layer, norm first, whose self-attention reads a Dirichlet process.

    >>> hidden, posterior = NVIBEncoderLayer(8, 2)(torch.randn(2, 5, 8), sample=True)

    Args:
        size: size of the hidden states, and p of the process.
        heads: number of heads; divides `size`.
        ffn_size: size of the feed-forward layer; default 4·`size`.
        dropout: probability of dropout after attention and in the feed-forward layer.
        causal: whether query t sees components 1 … t and the prior's only.
        options: options of `NVIB`, such as `delta`; not `keep_share`, as each token has its own component here.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        *,
        ffn_size: int | None = None,
        dropout: float = 0.1,
        causal: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if "keep_share" in options:
            raise ValueError("NVIBEncoderLayer: keep_share is given, expected none: each token has its own component.")
        self.causal = causal
        self.nvib = NVIB(size, **options)
        self.attention = DenoisingAttention(size, heads)
        self.attention_norm, self.ffn_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.widen = nn.Linear(size, 4 * size if ffn_size is None else ffn_size)
        self.narrow = nn.Linear(self.widen.out_features, size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Hidden,
        mask: TokenMask | None = None,
        *,
        sample: bool,
        below: Posterior | None = None,
        past: Posterior | None = None,
    ) -> tuple[Hidden, Posterior]:
        """Compute the new hidden states and the posterior, of which attention reads a sample or the mean.

        Args:
            x: hidden states.
            mask: True for real tokens; without it, all are real.
            sample: whether attention reads a sample; otherwise the mean.
            below: posterior of the layer below: log α = that of this layer's NVIB + log α below.
            past: this layer's posterior of the tokens before x, for a causal layer that reads the mean.
        """
        if past is not None and (sample or not self.causal):
            raise ValueError("NVIBEncoderLayer: past is given, expected none unless causal is True and sample False.")
        normed = self.attention_norm(x)
        posterior = self.nvib(normed, mask, gate_noise=sample)
        if below is not None:
            posterior = stack_on(posterior, below)
        if past is not None:
            posterior = _append(past, posterior)
        mixture = posterior.sample() if sample else posterior.mean()
        seen = causal_mask(x, posterior.alpha.shape[1] - 1) if self.causal else None
        x = x + self.dropout(self.attention(normed, mixture, seen))
        hidden = self.dropout(F.gelu(self.widen(self.ffn_norm(x))))
        return x + self.dropout(self.narrow(hidden)), posterior


class NVIBEncoder(nn.Module):
    """A stack of `NVIBEncoderLayer`, each of which multiplies its α by that of the layer below.

    >>> encoder = NVIBEncoder(layers=2, size=8, heads=2, delta=0.5)
    >>> encoder(torch.randn(2, 5, 8), sample=False).hidden.shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, layers: int, size: int, heads: int, **options: Any) -> None:
        super().__init__()
        check("NVIBEncoder", layers=(layers, int))
        self.layers = nn.ModuleList([NVIBEncoderLayer(size, heads, **options) for _ in range(layers)])
        self.norm = nn.LayerNorm(size)

    def forward(
        self, x: Hidden, mask: TokenMask | None = None, *, sample: bool, past: Encoded | None = None
    ) -> Encoded:
        """Encode embeddings.

        Args:
            x: embeddings.
            mask: True for real tokens; without it, all are real.
            sample: whether attention reads a sample of each posterior; otherwise the mean.
            past: what a causal encoder returned for the tokens before x. The posteriors are then those of all tokens,
                and the hidden states those of x.
        """
        posteriors: list[Posterior] = []
        for index, layer in enumerate(self.layers):
            below = posteriors[-1] if posteriors else None
            before = None if past is None else past.posteriors[index]
            x, posterior = layer(x, mask, sample=sample, below=below, past=before)
            posteriors.append(posterior)
        return Encoded(self.norm(x), tuple(posteriors))


def stack_on(posterior: Posterior, below: Posterior) -> Posterior:
    """Add log α of the layer below to that of each token; `below` may begin with more tokens."""
    n = posterior.alpha.shape[1] - 1
    tokens = posterior.alpha[:, :-1] * below.alpha[:, -n - 1 : -1]
    alpha = torch.cat([tokens, posterior.alpha[:, -1:]], 1)
    return unchecked(Posterior, **(values_of(posterior) | {"alpha": alpha}))


def causal_mask(x: Hidden, components: int) -> Bool[Tensor, "1 n m"]:
    """Which components the last n of `components` tokens may read: those up to their own, and the prior's (last)."""
    n = x.shape[1]
    seen = x.new_ones(n, components, dtype=torch.bool).tril(components - n)
    return F.pad(seen, (0, 1), value=True).unsqueeze(0)


def _append(past: Posterior, posterior: Posterior) -> Posterior:
    """Put the tokens of `past` before those of `posterior`; the prior's component stays last."""
    names = ("alpha", "mu", "log_sigma", "mask")
    joined = {name: torch.cat([getattr(past, name)[:, :-1], getattr(posterior, name)], 1) for name in names}
    return unchecked(Posterior, **joined, prior=posterior.prior)
