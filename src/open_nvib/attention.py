"""Denoising attention: the query is a noisy observation of a vector, the mixture its prior, the result its mean."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from open_nvib._tensors import BatchRecord, at_least_float32, check, in_transform, without_autocast
from open_nvib.process import GaussianMixture, ImpulseMixture

LOG_RATIO_MAX = 80.0
"""Largest log(σ²/√d): its exp and the reciprocal of that are finite in float32. Beyond it, a component returns the
query itself to 34 digits."""

BLOCK_ELEMENTS = {"cpu": 2**19}
"""Entries in a block of (queries × n) weights or (queries × p) vectors at test time, by device: 2 MiB fit into a core's
cache."""
BLOCK_ELEMENTS_ELSEWHERE = 2**25
MIN_BLOCK_QUERIES = 32

ALL = slice(None)
"""All heads."""

ALIGNMENT = 8
"""Feature sizes are padded to a multiple of this, which fused kernels on accelerators need."""

NO_WEIGHT = -1e30
"""Replaces a bias of -inf: its exp is exactly 0 too, and 0 times it is not NaN."""


def attend_impulses(
    u: Float[Tensor, "*#batch queries p"],
    z: Float[Tensor, "*#batch n p"],
    log_pi: Float[Tensor, "*#batch n"],
    *,
    d: int,
) -> Float[Tensor, "*batch queries p"]:
    """Attend to a sampled mixture F = Σᵢ πᵢ δ(zᵢ) by denoising attention.

    Equation `eq:dattn` with f = F: the integral becomes a sum and the factor in ‖u‖² cancels, leaving
    softmaxᵢ(u·zᵢ/√d + log πᵢ − ‖zᵢ‖²/2√d) zᵢ: ordinary attention with a bias for each key.
    """
    weights = log_pi, "... n; log, some > -inf"
    check("attend_impulses", u=(u, "... queries p"), z=(z, "... n p"), log_pi=weights, d=(d, int))
    # The fused kernel wants equal batch axes; the bias goes into the keys as two more features.
    batch = torch.broadcast_shapes(u.shape[:-2], z.shape[:-2], log_pi.shape[:-1])
    u, z, log_pi = u.expand(*batch, -1, -1), z.expand(*batch, -1, -1), log_pi.expand(*batch, -1)
    scale = d**-0.5
    return attend_biased(u, bias_keys(z, impulse_bias(z, log_pi, scale)), pad_values(z), scale=scale)


def attend_gaussians(
    u: Float[Tensor, "*#batch queries p"],
    mu: Float[Tensor, "*#batch n p"],
    log_sigma: Float[Tensor, "*#batch n p"],
    log_alpha: Float[Tensor, "*#batch n"],
    *,
    d: int,
) -> Float[Tensor, "*batch queries p"]:
    """Attend to the mean of a Dirichlet process, G₀ = Σᵢ αᵢ/α₀ N(μᵢ, σᵢ²): equation `eq:TestDAttn`.

    Let r = σ²/(√d + σ²), the share of the query in a component's answer, and m = (1 − r) μ. The posterior mean of a
    component is then m + r u. Its log-weight is log α + log N(u; μ, √d + σ²). Expanded, and without the terms that all
    components share (−‖u‖²/2√d and −¼ p log 2πd), it is

        u·m/√d + u²·r/2√d + [log α − μ·m/2√d + ½ Σ log(1 − r)].

    This takes two matrix products and a bias, and no (queries × n × p) tensor. As σ → 0, r → 0 and the result is that
    of `attend_impulses`.
    """
    gaussians = {
        "mu": (mu, "... n p"),
        "log_sigma": (log_sigma, "... n p"),
        "log_alpha": (log_alpha, "... n; log, some > -inf"),
    }
    check("attend_gaussians", u=(u, "... queries p"), **gaussians, d=(d, int))
    m, r, bias = gaussian_features(mu, log_sigma, log_alpha, d=d)
    scale = d**-0.5
    log_weights = scale * (u @ m.mT) + 0.5 * scale * (u.square() @ r.mT) + bias.unsqueeze(-2)
    weights = log_weights.softmax(-1).to(m.dtype)  # (*batch, queries, n)
    return weights @ m + u * (weights @ r)


def impulse_bias(z: Tensor, log_pi: Tensor, scale: float, spread: Tensor | None = None) -> Tensor:
    """Compute log π − (‖z‖² + spread)/2√d for each vector, (*batch, n)."""
    squared_norm = z.square().sum(-1)
    return log_pi - 0.5 * scale * (squared_norm if spread is None else squared_norm + spread)


def gaussian_features(mu: Tensor, log_sigma: Tensor, log_alpha: Tensor, *, d: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute m, r (*batch, n, p) and the bias (*batch, n) of `attend_gaussians`."""
    ratio = (2 * log_sigma - 0.5 * math.log(d)).clamp(max=LOG_RATIO_MAX).exp()  # σ²/√d = r/(1 − r)
    one_minus_r = (1 + ratio).reciprocal()
    m = one_minus_r * mu
    bias = log_alpha - 0.5 * d**-0.5 * (mu * m).sum(-1) - 0.5 * ratio.log1p().sum(-1)
    return m, ratio * one_minus_r, bias


@dataclass(frozen=True, eq=False)
class ProjectedImpulses(BatchRecord):
    """An ImpulseMixture projected for the heads of one attention; the keys contain the bias.

    >>> attention, posterior = DenoisingAttention(8, heads=2), NVIB(8)(torch.randn(2, 5, 8))
    >>> memory = attention.project(posterior.points())  # once
    >>> outputs = [attention(torch.randn(2, 1, 8), memory) for _ in range(3)]  # many times
    """

    keys: Float[Tensor, "batch heads n key"]
    values: Float[Tensor, "batch heads n key"]


@dataclass(frozen=True, eq=False)
class ProjectedGaussians(BatchRecord):
    """A GaussianMixture projected for the heads of one attention: m in head space, r shared by all heads.

    >>> memory = DenoisingAttention(8, heads=2).project(NVIB(8)(torch.randn(2, 5, 8)).mean())
    """

    keys: Float[Tensor, "batch heads n key"]
    values: Float[Tensor, "batch heads n key"]
    r: Float[Tensor, "batch n p"]
    bias: Float[Tensor, "batch n"]


Mixture = ImpulseMixture | GaussianMixture
Linear = tuple[Tensor, Tensor | None]
Projected = ProjectedImpulses | ProjectedGaussians


class DenoisingAttention(nn.Module):
    """Multi-head denoising attention over either kind of mixture.

    Each head maps the query to the space of Z, u = u′ W^Q (W^K)ᵀ, and denoises it there; the results go through W^V and
    the output projection. The projections of keys and values have no bias: a bias of the keys would cancel in the
    softmax, and one of the values is part of the output's.

    Args:
        p: size of the vectors attended to.
        heads: number of heads.
        query_size: size of the queries and of the output; default `p`.
        head_size: d, the size of one head's key; default `p // heads`.
        bias: whether the query and output projections have a bias.
        bound_queries: whether to keep the norm of each latent query below R = √(p√d), by u R/√(R² + ‖u‖²). The noise
            N(0, √d I) has the norm R, so an observation is seldom much longer. The mean, the points and samples of a
            posterior then agree (docs/theory.md).

    >>> attention = DenoisingAttention(8, heads=2)
    >>> posterior = NVIB(8)(torch.randn(2, 5, 8))
    >>> attention(torch.randn(2, 3, 8), posterior.sample()).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        p: int,
        heads: int = 1,
        *,
        query_size: int | None = None,
        head_size: int | None = None,
        bias: bool = True,
        bound_queries: bool = False,
    ) -> None:
        super().__init__()
        query_size = p if query_size is None else query_size
        sizes = {"p": p, "heads": heads, "query_size": query_size, "head_size": 1 if head_size is None else head_size}
        check("DenoisingAttention", **{name: (size, int) for name, size in sizes.items()})
        if head_size is None and p % heads:
            raise ValueError(f"DenoisingAttention: p is {p}, expected a multiple of heads = {heads}, or a head_size.")
        self.p, self.heads, self.d = p, heads, p // heads if head_size is None else head_size
        self.bound_queries = bound_queries
        self.to_query = nn.Linear(query_size, heads * self.d, bias=bias)
        self.to_key = nn.Linear(p, heads * self.d, bias=False)
        self.to_value = nn.Linear(p, heads * self.d, bias=False)
        self.to_output = nn.Linear(heads * self.d, query_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as torch.nn.MultiheadAttention does, and the biases at zero."""
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @torch.no_grad()
    def copy_projections(self, q: Linear, k: Linear, v: Linear, output: Linear) -> None:
        """Copy the projections of ordinary attention, each a weight and a bias or None.

        The bias of the keys cancels in the softmax; that of the values, whose weights sum to 1, goes to the output's.
        """
        mine = (self.to_query, self.to_key, self.to_value, self.to_output)
        for linear, (weight, bias) in zip(mine, (q, k, v, output), strict=True):
            linear.weight.copy_(weight)
            if linear.bias is not None and bias is not None:
                linear.bias.copy_(bias)
        if v[1] is not None:
            self.to_output.bias.add_(output[0] @ v[1])

    def extra_repr(self) -> str:
        return f"p={self.p}, heads={self.heads}, d={self.d}, bound_queries={self.bound_queries}"

    def forward(
        self,
        query: Float[Tensor, "batch queries size"],
        mixture: Mixture | Projected,
        mask: Bool[Tensor, "#batch queries n"] | None = None,
    ) -> Float[Tensor, "batch queries size"]:
        """Attend to a mixture, or to one that `project` returned. `mask` is True where a query may attend."""
        q, memory = self._prepare(query, mixture)
        if mask is not None:
            seen = mask, "bool #batch queries n", "Give one entry for each vector that `mixture` has."
            known = {"query": (query, "batch queries size"), "mixture": (memory.keys, "real batch heads n key")}
            check("DenoisingAttention", **known, mask=seen)
        if isinstance(memory, ProjectedImpulses):
            attended = attend_biased(q, memory.keys, memory.values, scale=self.d**-0.5, mask=mask)
        else:
            attended = self._attend_gaussians(q, memory, mask).to(q.dtype)
        return self.to_output(attended.transpose(1, 2).flatten(2))

    def weights(
        self, query: Float[Tensor, "batch queries size"], mixture: Mixture | Projected
    ) -> Float[Tensor, "batch heads queries n"]:
        """Compute the weight of each vector or component in each result, all at once, for inspection."""
        q, memory = self._prepare(query, mixture)
        if isinstance(memory, ProjectedImpulses):
            return (_biased_queries(q, self.d**-0.5) @ memory.keys.mT).softmax(-1)
        with without_autocast(memory.r):
            q = q.to(memory.r.dtype)
            return self._gaussian_weights(q, self._latent_queries(q, ALL), ALL, memory)

    def latent_queries(self, query: Float[Tensor, "batch queries size"]) -> Float[Tensor, "batch heads queries p"]:
        """Compute u = u′ W^Q (W^K)ᵀ of each head: the queries as denoising attention sees them, in the space of Z."""
        q = self._queries(query)
        return self._latent_queries(q, ALL).unflatten(1, q.shape[1:3])

    def project(self, mixture: Mixture) -> Projected:
        """Compute everything that does not depend on the query: project once, attend many times."""
        check("DenoisingAttention", mixture=(mixture, Mixture, "Call .sample() or .mean() on a posterior."))
        fix = "Build the attention with the p of the mixture."
        check("DenoisingAttention", p=(self.p, int), mixture=(mixture.vectors, "real batch n p", fix))
        dtype = self.to_key.weight.dtype
        if isinstance(mixture, ImpulseMixture):
            bias = impulse_bias(mixture.z, mixture.log_pi, self.d**-0.5, mixture.spread)
            z = mixture.z.to(dtype)
            keys, values = self._split(self.to_key(z)), self._split(self.to_value(z))
            return ProjectedImpulses(keys=bias_keys(keys, bias.unsqueeze(1)), values=pad_values(values))
        with without_autocast(mixture.mu):
            wide = mixture.to(dtype=at_least_float32(mixture.mu.dtype))
            m, r, bias = gaussian_features(wide.mu, wide.log_sigma, wide.log_alpha, d=self.d)
            if self.heads == 1:  # W^K and W^V act on fewer queries than vectors: leave m as it is
                return ProjectedGaussians(keys=m.unsqueeze(1), values=m.unsqueeze(1), r=r, bias=bias)
            keys, values = (F.linear(m, to.weight.to(m.dtype)) for to in (self.to_key, self.to_value))
            return ProjectedGaussians(keys=self._split(keys), values=self._split(values), r=r, bias=bias)

    def _prepare(self, query: Tensor, mixture: Mixture | Projected) -> tuple[Tensor, Projected]:
        projected = isinstance(mixture, (ProjectedImpulses, ProjectedGaussians))
        memory = mixture if projected else self.project(mixture)
        keys = memory.keys, "real batch heads n key", "Project the mixture with the attention that reads it."
        weight = self.to_query.weight, "heads·d size"
        queries = query, "batch queries size", "Index or expand the query to the batch of the mixture."
        check("DenoisingAttention", heads=(self.heads, int), mixture=keys, weight=weight, query=queries)
        return self._queries(query), memory

    def _queries(self, query: Tensor) -> Tensor:
        """Project the queries for each head, and bound them if asked for: (batch, heads, queries, d)."""
        q = self._split(self.to_query(query))
        if not self.bound_queries:
            return q
        # u = q (W^K)ᵀ is linear in q, so a factor on q is one on u, and ‖u‖² = q (W^K)ᵀ W^K qᵀ needs no u.
        with without_autocast(q):
            wide = q.to(at_least_float32(q.dtype))
            keys = self._head_weights(self.to_key, ALL, wide.dtype)
            squared_norm = ((wide @ (keys @ keys.mT)) * wide).sum(-1, keepdim=True)
            squared_bound = self.p * self.d**0.5
            return (wide * (squared_bound / (squared_bound + squared_norm.clamp(min=0.0))).sqrt()).to(q.dtype)

    def _attend_gaussians(self, q: Tensor, memory: ProjectedGaussians, mask: Tensor | None) -> Tensor:
        """Attend in blocks of heads and queries, which bounds the memory: (batch, heads, queries, d)."""
        # Size of a block: all queries of as many heads as fit, or else some of the queries of one head.
        batch, _, queries, _ = q.shape
        per_query = batch * max(memory.r.shape[1:])
        elements = BLOCK_ELEMENTS.get(q.device.type, BLOCK_ELEMENTS_ELSEWHERE)
        heads_at_once = max(1, min(self.heads, elements // max(1, per_query * queries)))
        largest = max(MIN_BLOCK_QUERIES, elements // max(1, per_query * heads_at_once))
        queries_at_once = max(1, math.ceil(queries / max(1, math.ceil(queries / largest))))  # blocks of even size
        # Attend block by block, and put the results together: queries first, then heads.
        with without_autocast(memory.r):
            q = q.to(memory.r.dtype)
            rows = []
            for first in range(0, self.heads, heads_at_once):
                heads = slice(first, min(first + heads_at_once, self.heads))
                blocks = q[:, heads].split(queries_at_once, dim=2)
                masks = [None] * len(blocks) if mask is None else mask.split(queries_at_once, dim=1)
                results = [self._attend_block(*each, heads, memory) for each in zip(blocks, masks, strict=True)]
                rows.append(torch.cat(results, 2))
            return torch.cat(rows, 1)

    def _attend_block(self, q: Tensor, mask: Tensor | None, heads: slice, memory: ProjectedGaussians) -> Tensor:
        """Compute `eq:TestDAttn` for a block of heads and queries, with the terms linear in m in head space."""
        heads_and_queries = q.shape[1:3]
        u = self._latent_queries(q, heads)
        # The part of the answer that is the query itself, Σᵢ wᵢ rᵢ u, exists in the space of Z only.
        weights = self._gaussian_weights(q, u, heads, memory, mask).flatten(1, 2)  # (batch, count·queries, n)
        denoised = u * (weights @ memory.r)
        w_v = self._head_weights(self.to_value, heads, u.dtype)
        # The rest, Σᵢ wᵢ mᵢ: before W^V with one head, where m is not projected, and after it with several.
        if self.heads == 1:
            denoised = denoised + weights @ memory.values[:, 0]
        values = torch.einsum("bhqp,hdp->bhqd", denoised.unflatten(1, heads_and_queries), w_v)
        if self.heads > 1:
            values = values + weights.unflatten(1, heads_and_queries) @ memory.values[:, heads]
        return values

    def _gaussian_weights(
        self, q: Tensor, u: Tensor, heads: slice, memory: ProjectedGaussians, mask: Tensor | None = None
    ) -> Tensor:
        """Compute the softmax of `attend_gaussians`, (batch, count, queries, n)."""
        batch, count, queries, _ = q.shape
        scale = self.d**-0.5
        # The bias and u²·r/2√d, in the space of Z, (batch, count·queries, n).
        squared = torch.baddbmm(memory.bias.unsqueeze(1), u.square(), memory.r.mT, alpha=0.5 * scale)
        # u·m/√d: a product of sizes d with several heads, whose keys are projected, and of size p with one.
        keys = memory.keys[:, heads].flatten(0, 1)
        n, size = keys.shape[1:]
        linear = (u if self.heads == 1 else q).reshape(batch * count, queries, size)
        log_weights = torch.baddbmm(squared.view(batch * count, queries, n), linear, keys.mT, alpha=scale)
        log_weights = log_weights.view(batch, count, queries, n)
        return (log_weights if mask is None else log_weights.masked_fill(~mask.unsqueeze(1), -torch.inf)).softmax(-1)

    def _latent_queries(self, q: Tensor, heads: slice) -> Tensor:
        """Compute u = q (W^K)ᵀ of some heads, in the space of Z, (batch, count·queries, p)."""
        return torch.einsum("bhqd,hdp->bhqp", q, self._head_weights(self.to_key, heads, q.dtype)).flatten(1, 2)

    def _head_weights(self, linear: nn.Linear, heads: slice, dtype: torch.dtype) -> Tensor:
        return linear.weight.unflatten(0, (self.heads, self.d))[heads].to(dtype)

    def _split(self, x: Tensor) -> Tensor:
        """Reshape (batch, n, heads·d) to (batch, heads, n, d)."""
        return x.unflatten(-1, (self.heads, self.d)).transpose(1, 2)


# softmax(q·k + bias) v on torch's fused kernels, with a learned bias for each key. `scaled_dot_product_attention` takes
# an additive bias, but on the CPU it uses its slow path for a bias that needs a gradient and keeps the (queries × n)
# weights; in half precision it rounds the bias to three digits. So the bias becomes two more features of the key, a
# rounded part and its remainder, and the query has a constant 1 for each.


def extra_features(size: int) -> int:
    """Count the features to append to a vector of `size`: at least two, up to a multiple of ALIGNMENT."""
    return 2 + (-(size + 2)) % ALIGNMENT


def bias_keys(keys: Tensor, bias: Tensor) -> Tensor:
    """Append the bias (…, n) to the keys (…, n, size) as features: (…, n, size + extra)."""
    bias = bias - bias.amax(-1, keepdim=True).detach()  # the softmax is the same, and small numbers keep more digits
    bias = bias.clamp(min=max(NO_WEIGHT, torch.finfo(keys.dtype).min / 4))
    rounded = bias.to(keys.dtype)
    remainder = (bias - rounded).to(keys.dtype)
    features = F.pad(torch.stack([rounded, remainder], -1), (0, extra_features(keys.shape[-1]) - 2))
    return torch.cat([keys, features.expand(*keys.shape[:-1], -1)], -1)


def pad_values(values: Tensor) -> Tensor:
    """Pad values (…, n, size) to (…, n, size + extra): fused kernels need keys and values of one size."""
    return F.pad(values, (0, extra_features(values.shape[-1])))


def attend_biased(
    q: Tensor, biased_keys: Tensor, padded_values: Tensor, *, scale: float, mask: Tensor | None = None
) -> Tensor:
    """Compute softmaxᵢ(scale·q·kᵢ + biasᵢ) vᵢ, (…, queries, size), from `bias_keys` and `pad_values`.

    `mask` (batch, queries, n), the same for all heads, is True where a query may attend.
    """
    biased = _biased_queries(q, scale)
    if mask is None:
        attended = _attend(biased, biased_keys, padded_values)
    else:
        q_k_v = (x.to(biased_keys.dtype) for x in (biased, biased_keys, padded_values))
        attended = F.scaled_dot_product_attention(*q_k_v, attn_mask=mask.unsqueeze(1), scale=1.0)
    return attended[..., : q.shape[-1]].view(q.shape)


def _biased_queries(q: Tensor, scale: float) -> Tensor:
    extra = extra_features(q.shape[-1])
    ones = (torch.arange(extra, device=q.device) < 2).to(q.dtype)
    return torch.cat([q * scale, ones.expand(*q.shape[:-1], extra)], -1)


def widen_for_cpu(*q_k_v: Tensor) -> tuple[Tensor, ...]:
    """Convert bf16 to float32 for training on the CPU, whose fused kernel has a slow backward pass in bf16."""
    slow = q_k_v[0].device.type == "cpu" and q_k_v[0].dtype == torch.bfloat16 and torch.is_grad_enabled()
    return tuple(x.float() for x in q_k_v) if slow else q_k_v


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dtype = k.dtype
    q, k, v = widen_for_cpu(q.to(dtype), k, v.to(dtype))
    if in_transform():
        return _attend_in_plain_operations(q, k, v).to(dtype)
    on_cpu = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and q.numel() > 0
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not on_cpu:
        return F.scaled_dot_product_attention(q, k, v, scale=1.0).to(dtype)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(-1, 1, *x.shape[-2:]) for x in (q, k, v))
    return _TwiceDifferentiable.apply(q, k, v).to(dtype)  # pyright: ignore[reportOptionalMemberAccess]


def _attend_in_plain_operations(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


class _TwiceDifferentiable(torch.autograd.Function):
    """The CPU's fused kernel, with plain operations for the second derivative, which the kernel does not have.

    On other devices torch chooses between several kernels; there a second derivative needs torch's own
    `sdpa_kernel(SDPBackend.MATH)`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
        ctx.save_for_backward(q, k, v, output, log_sum)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, log_sum = ctx.saved_tensors
        (grad,) = grad_outputs
        if torch.is_grad_enabled():  # that is, create_graph=True
            inputs = [x for x in (q, k, v) if x.requires_grad]
            grads = iter(torch.autograd.grad(_attend_in_plain_operations(q, k, v), inputs, grad, create_graph=True))
            return tuple(next(grads) if x.requires_grad else None for x in (q, k, v))
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(grad, q, k, v, output, log_sum, 0.0, False, scale=1.0)
