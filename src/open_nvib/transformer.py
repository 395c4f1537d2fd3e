"""Transformer layers that read mixtures: with the interface of torch's own modules, and encoders with an NVIB inside.

In `NVIBEncoder` the queries are the hidden states themselves; keys and values are the Dirichlet process that an NVIB
makes of the same states, with the prior's component. A token that a layer drops has no weight in any layer above.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from open_nvib._tensors import Hidden, TokenMask, check, join, unchecked, values_of
from open_nvib.attention import DenoisingAttention, Mixture, Projected, attend_biased, bias_keys, pad_values
from open_nvib.layer import NVIB
from open_nvib.process import KL, ImpulseMixture, KLForm, Posterior

SMALL_SET = 64
"""Vectors up to which, at test time, the kernel's own bias is faster than a bias in the keys (`bias_keys`)."""


class MixtureAttention(DenoisingAttention):
    """`DenoisingAttention` with the interface of `torch.nn.MultiheadAttention`, batch first: the key is a mixture.

    What a mask would hide has no weight in the mixture, so there is no mask. Attention weights have no dropout.

    Args:
        embed_dim: size of the queries and of the output.
        num_heads: number of heads; divides `embed_dim`.
        bias: whether the query and output projections have a bias.
        kdim: p, the size of the vectors of the mixture; default `embed_dim`.
        bound_queries: that of `DenoisingAttention`.

    >>> posterior = NVIB(8)(torch.randn(2, 5, 8))
    >>> attended, weights = MixtureAttention(8, 2)(torch.randn(2, 3, 8), posterior.mean())
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, bias: bool = True, kdim: int | None = None, bound_queries: bool = False
    ) -> None:
        check("MixtureAttention", embed_dim=(embed_dim, int), num_heads=(num_heads, int))
        if embed_dim % num_heads:
            raise ValueError(
                f"MixtureAttention: embed_dim is {embed_dim}, expected a multiple of num_heads, {num_heads}."
            )
        p = embed_dim if kdim is None else kdim
        sizes = {"query_size": embed_dim, "head_size": embed_dim // num_heads}
        super().__init__(p, num_heads, **sizes, bias=bias, bound_queries=bound_queries)

    @classmethod
    def from_torch(cls, attention: nn.MultiheadAttention) -> "MixtureAttention":
        """Copy the weights of an attention. Over the weights of `eq:probZ` the result is the same."""
        check("MixtureAttention", attention=(attention, nn.MultiheadAttention))
        if attention.bias_k is not None or attention.add_zero_attn or attention.kdim != attention.vdim:
            raise ValueError("MixtureAttention: attention has add_bias_kv, add_zero_attn or a vdim, expected none.")
        bias = attention.in_proj_bias is not None
        copy = cls(attention.embed_dim, attention.num_heads, bias=bias, kdim=attention.kdim)
        copy.to(attention.out_proj.weight)
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        else:
            weights = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
        biases = attention.in_proj_bias.chunk(3) if bias else (None, None, None)
        q, k, v = zip(weights, biases, strict=True)
        copy.copy_projections(q, k, v, (attention.out_proj.weight, attention.out_proj.bias))
        return copy

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query: Float[Tensor, "batch queries size"],
        key: Mixture | Projected,
        value: Mixture | Projected | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "batch queries size"], Tensor | None]:
        """Attend to the mixture `key`. The weights are (batch, queries, n), with heads second if not averaged."""
        if value is not None and value is not key:
            raise ValueError("MixtureAttention: value is another mixture than key, expected the same one, or None.")
        if key_padding_mask is not None or attn_mask is not None or is_causal:
            raise ValueError("MixtureAttention: key_padding_mask or attn_mask is given, expected none. Mask in NVIB.")
        memory = self.project(key) if isinstance(key, Mixture) else key
        attended = super().forward(query, memory)
        if not need_weights:
            return attended, None
        weights = self.weights(query, memory)
        return attended, weights.mean(1) if average_attn_weights else weights


class MixtureDecoderLayer(nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer` with a mixture as memory, batch first. `nn.TransformerDecoder` stacks it.

    The other arguments are torch's.

    Args:
        p: size of the vectors of the mixture; default `d_model`.
        bound_queries: that of `DenoisingAttention`.

    >>> decoder = nn.TransformerDecoder(MixtureDecoderLayer(8, 2), num_layers=3)
    >>> decoder(torch.randn(2, 4, 8), NVIB(8)(torch.randn(2, 5, 8)).sample()).shape
    torch.Size([2, 4, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        p: int | None = None,
        bound_queries: bool = False,
    ) -> None:
        # the checks of the attention come first
        attention = MixtureAttention(d_model, nhead, bias=bias, kdim=p, bound_queries=bound_queries)
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, True, norm_first, bias)
        self.multihead_attn = attention  # pyright: ignore


class MixtureSelfAttention(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` over the vectors of a mixture, batch first, which passes their weights on.

    log π is added to the attention scores (proportional attention): a vector of twice the weight is attended to as two
    equal vectors would be, and one without weight not at all. With equal weights it is torch's layer. Stack it before a
    decoder reads the mixture. The arguments are torch's.

    >>> layers = nn.Sequential(MixtureSelfAttention(8, 2), MixtureSelfAttention(8, 2))
    >>> mixture = NVIB(8)(torch.randn(2, 5, 8)).sample()
    >>> torch.equal(layers(mixture).log_weights, mixture.log_weights)
    True
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, True, norm_first, bias)

    def forward(self, mixture: ImpulseMixture) -> ImpulseMixture:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Change the vectors of a mixture: of a sample in training, of the points at test time."""
        fix = "Call .sample() or .points() on a posterior."
        check("MixtureSelfAttention", mixture=(mixture, ImpulseMixture, fix))
        weight = self.self_attn.out_proj.weight
        vectors = mixture.z, "real batch n size", "Build the layer with the size of the vectors; give a batch."
        check("MixtureSelfAttention", weight=(weight, "size size"), mixture=vectors)
        x, log_pi = mixture.z.to(weight.dtype), mixture.log_pi
        if self.norm_first:
            x = x + self._attend(self.norm1(x), log_pi)
            x = x + self._ff_block(self.norm2(x))
        else:
            x = self.norm1(x + self._attend(x, log_pi))
            x = self.norm2(x + self._ff_block(x))
        spread = mixture.spread if self.norm_first else None  # a norm at the end removes the noise's part of ‖z‖²
        return unchecked(ImpulseMixture, z=x, log_pi=log_pi, spread=spread)

    def _ff_block(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or self.activation is not F.relu:
            return super()._ff_block(x)
        hidden = self.linear1(x).relu_()  # the widest tensor of the layer: no second one at test time
        return self.dropout2(self.linear2(self.dropout(hidden)))

    def _attend(self, x: Tensor, log_pi: Tensor) -> Tensor:
        attention = self.self_attn
        heads, d = attention.num_heads, attention.head_dim
        projected = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)  # (batch, n, 3·heads·d)
        q, k, v = (part.unflatten(-1, (heads, d)).transpose(1, 2) for part in projected.chunk(3, -1))
        direct = x.shape[1] <= SMALL_SET and not torch.is_grad_enabled() and q.dtype in (torch.float32, torch.float64)
        if direct:
            attended = F.scaled_dot_product_attention(q, k, v, log_pi.to(q.dtype)[:, None, None], scale=d**-0.5)
        else:
            attended = attend_biased(q, bias_keys(k, log_pi.unsqueeze(1)), pad_values(v), scale=d**-0.5)
        return self.dropout1(attention.out_proj(attended.transpose(1, 2).flatten(2)))


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
        check("kl", **{f"weights[{index}]": (weight, "number; >= 0", "") for index, weight in enumerate(weights)})
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
        options: options of `NVIB`, such as `delta`; not `keep_share` or `gate_pooling`, as each token has its own
            component here, which knows nothing of the tokens after it.
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
        for name in ("keep_share", "gate_pooling"):
            if options.get(name):
                raise ValueError(f"NVIBEncoderLayer: {name} is given, expected none: each token has its own component.")
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
        if past is not None:
            if sample or not self.causal:
                raise ValueError(
                    "NVIBEncoderLayer: past is given, expected none unless causal is True and sample False."
                )
            check("NVIBEncoderLayer", x=(x, "batch n size"), past=(past.mu, "real batch m size", "Give its own past."))
        normed = self.attention_norm(x)
        posterior = self.nvib(normed, mask, gate_noise=sample)
        if below is not None:
            posterior = stack_on(posterior, below)
        if past is not None:
            posterior = join([past.map_rows(lambda x: x[:, :-1]), posterior], 1)  # the prior's component stays last
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
        if past is not None and len(past.posteriors) != len(self.layers):
            raise ValueError(
                f"NVIBEncoder: past has {len(past.posteriors)} layers, expected {len(self.layers)}. Give what this "
                f"encoder returned."
            )
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
