"""The Transformer around the bottleneck: tokens to a latent, and a latent to the hidden states that predict tokens.

Layers norm first; those of the decoder read the latent by denoising attention.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.generic import ModelOutput

from open_nvib._tensors import Hidden, TokenMask, unchecked
from open_nvib.attention import DenoisingAttention, Mixture, Projected, widen_for_cpu
from open_nvib.merging import VectorRequest
from open_nvib.process import GaussianMixture, ImpulseMixture
from open_nvib.text.model.bottlenecks import Bottleneck, Latent, make_bottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig


class Embedding(nn.Module):
    """Tokens and positions to vectors."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.max_positions, config.d_model) if learned else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Int[Tensor, "batch n"], *, first: int = 0) -> Hidden:
        """Embed tokens; `first` is the position of the first one, above 0 in the middle of decoding."""
        tokens = self.tokens(ids) * math.sqrt(self.tokens.embedding_dim)
        where = torch.arange(first, first + ids.shape[1], device=ids.device)
        positions = sinusoids(where, tokens.shape[-1]) if self.positions is None else self.positions(where)
        return self.dropout(tokens + positions.to(tokens.dtype))


def sinusoids(where: Int[Tensor, " n"], size: int) -> Float[Tensor, "n size"]:
    """Encode positions as sines and cosines of geometrically spaced frequencies."""
    half = (size + 1) // 2
    rates = torch.exp(torch.arange(half, device=where.device) * (-math.log(10_000.0) / max(1, half)))
    angles = where.unsqueeze(-1) * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :size]


class SelfAttention(nn.Module):
    """Multi-head self-attention, with a cache of keys and values when decoding."""

    def __init__(self, config: TextAutoencoderConfig, index: int = 0) -> None:
        super().__init__()
        self.heads, self.index = config.heads, index
        self.to_qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.to_output = nn.Linear(config.d_model, config.d_model)

    def forward(
        self, x: Hidden, *, mask: TokenMask | None = None, causal: bool = False, cache: Cache | None = None
    ) -> Hidden:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (batch, heads, n, d)
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        new, seen = q.shape[2], k.shape[2]
        allowed = None if mask is None else mask[:, None, None, :]
        if causal and 1 < new < seen:  # a query also sees the cached tokens
            allowed, causal = torch.ones(new, seen, dtype=torch.bool, device=q.device).tril(seen - new), False
        q, k, v = widen_for_cpu(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal and new > 1)
        return self.to_output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between them."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.ffn_size), nn.ReLU(), nn.Linear(config.ffn_size, config.d_model)
        )


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then a feed-forward layer."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Hidden, mask: TokenMask) -> Hidden:
        x = x + self.dropout(self.attention(self.norms[0](x), mask=mask))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class ReadingLayer(GradientCheckpointingLayer, ABC):
    """A decoder layer: `recall` attends to what was written, `read` to the latent."""

    cross_attention: DenoisingAttention

    def forward(self, x: Hidden, memory: Mixture | Projected, cache: Cache | None = None) -> Hidden:
        return self.read(self.recall(x, cache), memory)

    @abstractmethod
    def recall(self, x: Hidden, cache: Cache | None = None) -> Hidden:
        """Attend to what was written, which does not depend on the latent."""

    @abstractmethod
    def read(self, x: Hidden, memory: Mixture | Projected) -> Hidden:
        """Attend to the latent, each position for itself."""

    def query(self, x: Hidden) -> Hidden:
        """Return the queries of the attention to the latent."""
        return x

    def weights(self, x: Hidden, memory: Mixture | Projected) -> Float[Tensor, "batch heads n vectors"]:
        """Compute the weight of each vector in what `read` reads."""
        return self.cross_attention.weights(self.query(x), memory)


def make_attention(config: TextAutoencoderConfig) -> DenoisingAttention:
    """Build the attention of a decoder layer to the latent."""
    size, bounded = config.d_model, config.bound_queries
    return DenoisingAttention(
        config.p, config.heads, query_size=size, head_size=config.head_size, bound_queries=bounded
    )


class DecoderLayer(ReadingLayer):
    """Causal self-attention, denoising attention over the latent, then a feed-forward layer."""

    def __init__(self, config: TextAutoencoderConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.cross_attention = make_attention(config)
        self.feed_forward = FeedForward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout)

    def recall(self, x: Hidden, cache: Cache | None = None) -> Hidden:
        return x + self.dropout(self.attention(self.norms[0](x), causal=True, cache=cache))

    def read(self, x: Hidden, memory: Mixture | Projected) -> Hidden:
        x = x + self.dropout(self.cross_attention(self.query(x), memory))
        return x + self.dropout(self.feed_forward(self.norms[2](x)))

    def query(self, x: Hidden) -> Hidden:
        return self.norms[1](x)


@dataclass
class LatentOutput(ModelOutput):
    """A mixture as `generate()` passes it on: tensors with a batch axis.

    Args:
        last_hidden_state: the vectors of an ImpulseMixture or the means of a GaussianMixture, (batch, n, p).
        log_weight: their log π or log α, (batch, n).
        log_sigma: of a GaussianMixture, (batch, n, p).
        spread: of the points of a GaussianMixture, (batch, n).
    """

    last_hidden_state: Tensor | None = None
    log_weight: Tensor | None = None
    log_sigma: Tensor | None = None
    spread: Tensor | None = None

    @staticmethod
    def of(mixture: Mixture) -> "LatentOutput":
        """Convert a mixture."""
        if isinstance(mixture, ImpulseMixture):
            return LatentOutput(last_hidden_state=mixture.z, log_weight=mixture.log_pi, spread=mixture.spread)
        return LatentOutput(last_hidden_state=mixture.mu, log_weight=mixture.log_alpha, log_sigma=mixture.log_sigma)

    def mixture(self) -> Mixture:
        """Convert back."""
        if self.log_sigma is None:
            return unchecked(ImpulseMixture, z=self.last_hidden_state, log_pi=self.log_weight, spread=self.spread)
        return unchecked(
            GaussianMixture, mu=self.last_hidden_state, log_sigma=self.log_sigma, log_alpha=self.log_weight
        )


class TextEncoder(nn.Module, ABC):
    """Tokens to latent. `generate()` calls it and decodes from the mean, as is done at test time."""

    main_input_name = "input_ids"
    embedding: Any
    bottleneck: Bottleneck

    @abstractmethod
    def hidden_states(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the bottleneck, a vector for each token."""

    def posterior(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        request: VectorRequest | None = None,
        *,
        explore: bool = False,
    ) -> Latent:
        """Return the latent of each text; all tokens are real without a mask. Training explores: `Bottleneck`."""
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        encode = self.bottleneck.explore if explore else self.bottleneck
        return encode(self.hidden_states(input_ids, mask), mask, request)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> LatentOutput:
        return LatentOutput.of(self.posterior(input_ids, attention_mask).mean().compact())


class TextDecoder(nn.Module):
    """The embedded tokens so far and a mixture to the hidden states that predict the next tokens.

    `reading` is what it reads of a Gaussian mixture, `head_bias` whether logits have a bias.
    """

    head_bias: bool = False
    layers: Any  # an nn.ModuleList, whose items the type checker would take for modules without methods

    def __init__(self, layers: Iterable[ReadingLayer], norm: nn.Module, reading: str) -> None:
        super().__init__()
        self.layers, self.norm, self.reading = nn.ModuleList(layers), norm, reading

    def embed(self, embedding: Any, ids: Tensor, *, first: int = 0) -> Tensor:
        """Embed written tokens with the encoder's embedding; `first` is the position of the first one."""
        return embedding(ids, first=first)

    def project(self, mixture: Mixture) -> list[Projected]:
        """Project the mixture for each layer, once for a whole sequence."""
        if self.reading == "points" and isinstance(mixture, GaussianMixture):
            mixture = mixture.points()
        return [layer.cross_attention.project(mixture) for layer in self.layers]

    def forward(self, hidden: Tensor, memories: list[Projected], cache: Cache | None = None) -> Tensor:
        for layer, memory in zip(self.layers, memories, strict=True):
            hidden = layer(hidden, memory, cache)
        return self.norm(hidden)


class NewEncoder(TextEncoder):
    """An encoder that is trained from nothing."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.bottleneck = make_bottleneck(config)

    def hidden_states(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.norm(hidden)


def make_new(config: TextAutoencoderConfig) -> tuple[TextEncoder, TextDecoder]:
    """Build an encoder and a decoder that are trained from nothing."""
    encoder = NewEncoder(config)
    layers = [DecoderLayer(config, index) for index in range(config.decoder_layers)]
    return encoder, TextDecoder(layers, nn.LayerNorm(config.d_model), config.reading)


CHUNK = 2**19
"""Logits at a time on the CPU: they stay in its cache. Accelerators take 64 times as many."""


def cross_entropy_of_head(
    hidden: Float[Tensor, "tokens size"],
    weight: Float[Tensor, "vocabulary size"],
    labels: Int[Tensor, " tokens"],
    bias: Float[Tensor, " vocabulary"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the sum of -log softmax(hidden weightᵀ + bias) at the labels, without ever holding all the logits."""
    return _CrossEntropyOfHead.apply(hidden, weight, labels, bias, torch.is_grad_enabled())  # pyright: ignore[reportReturnType]


class _CrossEntropyOfHead(torch.autograd.Function):
    """The gradient is computed with the loss, chunk by chunk, as both need the same softmax."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, needs_gradient: bool
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        rows = max(64, CHUNK * (1 if device == "cpu" else 64) // len(weight))
        w, total = weight.to(dtype), hidden.new_zeros((), dtype=torch.float32)
        grad_hidden, grad_weight = [], torch.zeros_like(weight, dtype=total.dtype)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=total.dtype)
        for h, label in zip(hidden.to(dtype).split(rows), labels.unsqueeze(-1).split(rows), strict=True):
            logits = (h @ w.T).float() if bias is None else (h @ w.T).float() + bias
            p = logits.softmax(-1)
            log_sum = logits.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()
            total += (log_sum - logits.gather(-1, label)).sum()
            if needs_gradient:
                p = p.scatter_add_(-1, label, p.new_full((1, 1), -1.0).expand_as(label))
                if grad_bias is not None:
                    grad_bias += p.sum(0)
                p = p.to(dtype)
                grad_hidden.append(p @ w)
                grad_weight += p.T @ h
        if needs_gradient:
            ctx.save_for_backward(torch.cat(grad_hidden).to(hidden.dtype), grad_weight.to(weight.dtype), grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias = (None if x is None else x * grad.to(x.dtype) for x in ctx.saved_tensors)
        return hidden, weight, None, bias, None
