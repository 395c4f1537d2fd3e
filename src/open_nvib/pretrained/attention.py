"""Denoising attention inside an attention of transformers: its projections, and the function that it calls.

A converted attention keeps its own forward method, with its caches and masks. What passes where in a forward pass:

    x ──► Projection "query" ───────── q before rotation ────────────┐
    x ──► Projection "key" ──► read(x) = vectors z, biases of keys ─┐│  Handover of the attention's NVIB
    x ──► Projection "value" ◄──────────────────────────────────────┘▼
                └── values, with the biases as one more head ──► nvib_attention ──► attend

Transformers finds `nvib_attention` by its NAME in a registry.

All tokens share one σ. So u²·r of `attend_gaussians` is the same for all tokens of a head. For the prior's component it
is qᵀ A q with A = W^K diag(r) (W^K)ᵀ of size d × d, since u = q (W^K)ᵀ: no query needs a vector of full size. In the
same way r∘u, projected by W^V, is B q with B = W^V diag(r) (W^K)ᵀ.

Rotary keys (Llama, Qwen): a token sees u = q Rₜ (W^K)ᵀ, where the rotation Rₜ depends on its distance t to the query.
With σ = 0 a token needs no u. With σ > 0 each pair of positions needs its own: this is refused. The prior's component
has no position. It is put at that of each query, t = 0: its key is not rotated, and it reads the query from before the
rotation. Keys with a norm (Qwen3) are not linear in x; the prior's component uses the norm's factor for its mean square
key.
"""

import math
import threading
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.pytorch_utils import Conv1D

from open_nvib._tensors import at_least_float32, normal_like, without_autocast
from open_nvib.attention import ALIGNMENT, gaussian_features
from open_nvib.distributions import log_gamma
from open_nvib.pretrained.families import HEAD_SIZES, ROTARY, Parts
from open_nvib.pretrained.identity import LOG_ALPHA_MAX, IdentityNVIB

NAME = "nvib"
"""Name of the attention function and of the conversion in transformers' registries."""

FEATURES = 4
"""Features that carry biases through the product of queries and keys: two for the bias of a key and two for the prior's
score of a query, each a rounded part and its remainder, so that half precision loses nothing."""


@dataclass(frozen=True)
class PriorComponent:
    """The prior's component as one attention sees it, relative to its tokens.

    The score of a query q is scale·q·key + ½ scale·qᵀ A q + bias, and the value is `value` + B q; `matrices` has A, B
    and, if they have noise, the B of all tokens, one after another.
    """

    key: Tensor  # (batch or 1, heads, 1, d), where heads are those of the queries
    value: Tensor  # (batch or 1, heads, 1, d)
    bias: Tensor  # (batch or 1,)
    matrices: Tensor | None  # (heads, d, 2d or 3d)

    def products(self, q: Tensor) -> Tensor:
        """Multiply queries by the matrices, (batch, heads, queries, 2d or 3d)."""
        assert self.matrices is not None
        return torch.einsum("bhqd,hde->bhqe", q.to(self.matrices.dtype), self.matrices)


class Handover:
    """What the parts of a forward pass hand to each other."""

    vectors: tuple[Tensor, Tensor] | None = None  # in place of the hidden states, and biases of their keys
    query: Tensor | None = None  # before rotation
    seen: tuple[Tensor, Tensor | None] | None = None  # hidden states and mask of the last forward pass

    def __reduce__(self) -> tuple[type["Handover"], tuple[()]]:
        """Copy as a new one: tensors inside a graph cannot be copied."""
        return type(self), ()


class ThreadHandover(Handover, threading.local):
    """One for each thread: several may call one model. torch.compile does not trace it."""


class AttentionNVIB(IdentityNVIB):
    """The NVIB of one attention, whose projections are instances of `Projection`; its section is one of SECTIONS."""

    def __init__(self, attention: Any, section: str) -> None:
        weight, _ = find_projection(attention, "key").weight_of("key")
        scale = float(attention.scaling)
        super().__init__(weight.shape[1], d=scale**-2)
        self.section, self.scale, self.rotary = section, scale, type(attention).__name__ in ROTARY
        self.head_size: int = next(getattr(attention, name) for name in HEAD_SIZES if hasattr(attention, name))
        self.heads = weight.shape[0] // self.head_size
        self.groups: int = getattr(attention, "num_key_value_groups", 1)  # heads of the queries for one of the keys
        self.largest_odds: Tensor | None = None  # noted while it is a tensor: see `prior_odds`
        self._eager, self._compiled = ThreadHandover(), Handover()
        self._component: tuple[Any, PriorComponent] | None = None
        self.to(weight)

    def train(self, mode: bool = True) -> Any:
        """Also forget the prior's component: a change of weights through `.data` leaves no trace."""
        self._component = None
        return super().train(mode)

    @property
    def handover(self) -> Handover:
        """The handover of this call."""
        return self._compiled if torch.compiler.is_compiling() else self._eager

    @property
    def seen(self) -> tuple[Tensor, Tensor | None] | None:
        """Hidden states and mask of the last forward pass: a compiled one, or one of this thread."""
        return self._compiled.seen or self._eager.seen

    def forget(self) -> None:
        """Drop what the last forward pass left."""
        self._compiled.seen = self._eager.seen = None

    def set_tau(self, *, alpha: float | None = None, sigma: float | None = None, delta: float | None = None) -> None:
        """Change τ_α, τ_σ or Δ; what is not given stays. With rotary keys τ_σ is 0."""
        if sigma and self.rotary:
            raise ValueError(
                f"set_tau: tau_sigma is {sigma:g}, but the model has rotary keys, which need another query for each "
                f"pair of positions if σ > 0. Give tau_sigma = 0."
            )
        super().set_tau(alpha=alpha, sigma=sigma, delta=delta)

    @property
    def samples(self) -> bool:
        """Whether a sample is drawn: in training, if there is noise to draw."""
        return self.training and self.tau_sigma > 0 and self.has_prior

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors to project in place of x, and the biases of their keys, (batch, n).

        The bias is log π − ‖z‖²/2√d of a sample, or log α − μ·m/2√d of the mean, without what all tokens share.
        """
        if not torch.compiler.is_compiling():
            self._compiled.seen = None
        self.handover.seen = x, None
        if self.samples:
            z = x + self.log_sigma.exp().to(x.dtype) * normal_like(x, None)
            return z, self._log_gamma(self.log_alpha(x).clamp(max=LOG_ALPHA_MAX).exp()) - self.height(z)
        learned = self.to_log_alpha(x).squeeze(-1).to(at_least_float32(x.dtype))
        if self.tau_sigma == 0:
            return x, learned
        ratio = self._ratio(self.log_sigma.dtype)
        r = ratio / (1 + ratio)
        bias = learned + 0.5 * self.scale * (x.to(learned.dtype).square() @ r.to(learned.dtype))
        return (1 - r).to(x.dtype) * x, bias

    def take_query(self, attention: nn.Module) -> Tensor | None:
        """Return the query before rotation, (batch, heads, queries, d), and forget it; None if nothing is rotated."""
        if self.handover.query is None:
            return None
        query, self.handover.query = self.handover.query.unflatten(-1, (-1, self.head_size)), None
        norm = getattr(attention, "q_norm", None)
        return (query if norm is None else norm(query)).transpose(1, 2)

    def component(self, attention: nn.Module, batch: int) -> PriorComponent:
        """Compute the prior's component: a sample for each text, or its Gaussian, kept while nothing changes."""
        to_key, to_value = find_projection(attention, "key"), find_projection(attention, "value")
        if to_key.weight.is_meta or to_value.weight.is_meta:
            raise ValueError("weights of a converted model are offloaded, expected in memory. Load it without offload.")
        if self.samples:
            z = self.prior_mu.to(to_key.weight.dtype).expand(batch, 1, -1)
            z = z + self.prior_log_sigma.exp().to(z.dtype) * normal_like(z, None)
            bias = self._log_gamma(torch.ones_like(z[:, 0, 0])) - self.height(z)[:, 0]
            key, value = self._split(to_key.project("key", z)), self._split(to_value.project("value", z))
            return PriorComponent(key, value, bias, None)
        norm = getattr(attention, "k_norm", None)
        parts = [*to_key.parameters(), *to_value.parameters(), self.log_sigma_factor, *self.buffers()]
        tensors = parts if norm is None else [*parts, norm.weight]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or any(x.is_inference() for x in tensors):
            return self._mean_component(to_key, to_value, norm)
        state = self.tau_alpha, self.tau_sigma, *((x.data_ptr(), x._version) for x in tensors)
        if self._component is None or self._component[0] != state:
            self._component = state, self._mean_component(to_key, to_value, norm)
        return self._component[1]

    def _mean_component(self, to_key: "Projection", to_value: "Projection", norm: Any) -> PriorComponent:
        dtype = at_least_float32(to_key.weight.dtype)
        with without_autocast(to_key.weight):
            (w_k, b_k), (w_v, b_v) = to_key.weight_of("key", dtype), to_value.weight_of("value", dtype)
            mu, log_sigma = self.prior_mu.to(dtype), self.prior_log_sigma.to(dtype)
            m, r, bias = gaussian_features(mu, log_sigma, self.log_alpha0.to(dtype), d=self.d)  # pyright: ignore
            ratio = self._ratio(dtype)
            r_tokens = ratio / (1 + ratio)
            bias = bias - self.shift + 0.5 * ratio.log1p().sum()
            k, v = (w.unflatten(0, (self.heads, self.head_size)) for w in (w_k, w_v))  # (heads, d, p)
            key, value = (self._split(F.linear(m.view(1, 1, -1), w, b)) for w, b in ((w_k, b_k), (w_v, b_v)))
            if norm is not None:
                square = F.linear(mu, w_k, b_k).square() + w_k.square() @ (2 * log_sigma).exp()
                square = square.unflatten(0, (self.heads, self.head_size)).mean(-1, keepdim=True)
                factor = norm.weight * (square + norm.variance_epsilon).rsqrt()  # (heads, d)
                key, k = key * factor.repeat_interleave(self.groups, 0).unsqueeze(1), k * factor.unsqueeze(-1)
            relative = (k * (r - r_tokens)).mT  # (heads, p, d)
            parts = [k @ relative, (v @ relative).mT]
            if self.tau_sigma > 0:
                parts.append((v @ (k * r_tokens).mT).mT)
            matrices = torch.cat(parts, -1).repeat_interleave(self.groups, 0)
            return PriorComponent(key, value, bias.reshape(1), matrices)

    def _split(self, x: Tensor) -> Tensor:
        """Reshape (batch, 1, heads·d) to (batch, heads, 1, d), with as many heads as queries have."""
        return x.unflatten(-1, (self.heads, self.head_size)).transpose(1, 2).repeat_interleave(self.groups, 1)

    def _ratio(self, dtype: torch.dtype) -> Tensor:
        """σ²/√d of the tokens, (p,)."""
        return (2 * self.log_sigma.to(dtype) - 0.5 * math.log(self.d)).exp()

    def _log_gamma(self, alpha: Tensor) -> Tensor:
        """Draw log γ. Divided by their sum, the γ are a Dirichlet sample; so are those that a query may see."""
        return log_gamma(alpha, method="paper", generator=None).to(at_least_float32(alpha.dtype))


class Projection(nn.Module):
    """A linear projection of a converted attention, which projects the vectors of the process.

    Values get one more head, which holds the bias of each key, and keys one of zeros: caches need as many of both, and
    zeros stay zeros if they are normed and rotated.

    Args:
        original: the projection, whose weights it takes over under their names.
        attention: the attention, which has the NVIB.
        parts: what the projection computes, in order: of "query", "key" and "value".
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, original: Any, attention: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.weight, self.bias, self.parts = original.weight, original.bias, parts
        self.transposed = isinstance(original, Conv1D)
        self._attention: tuple[Any] = (attention,)  # in a tuple: it is no module of this one

    def extra_repr(self) -> str:
        return f"parts={self.parts}, size={tuple(self.weight.shape)}"

    def weight_of(self, part: str, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the weight (heads·d, p) and the bias of a part."""
        index, count = self.parts.index(part), len(self.parts)
        weight = (self.weight.T if self.transposed else self.weight).chunk(count)[index].to(dtype or self.weight.dtype)
        return weight, None if self.bias is None else self.bias.chunk(count)[index].to(weight.dtype)

    def project(self, part: str, x: Tensor) -> Tensor:
        """Multiply by the weight of a part, and add its bias."""
        return F.linear(x, *self.weight_of(part))

    def forward(self, x: Tensor) -> Tensor:
        (attention,) = self._attention
        if (called := attention.config._attn_implementation) != NAME:
            raise ValueError(
                f"the attention implementation of a converted model is {called!r}, expected {NAME!r}. "
                f"Call model.set_attn_implementation({NAME!r})."
            )
        nvib: AttentionNVIB = attention.nvib
        results = []
        for part in self.parts:
            if part == "query":
                results.append(self.project(part, x))
                nvib.handover.query = results[-1] if nvib.rotary else None
            elif part == "key":
                nvib.handover.vectors = nvib.read(x)
                results.append(F.pad(self.project(part, nvib.handover.vectors[0]), (0, nvib.head_size)))
            else:
                assert nvib.handover.vectors is not None, "keys are projected before values"
                (z, bias), nvib.handover.vectors = nvib.handover.vectors, None
                values = self.project(part, z)
                head = F.pad(_two_parts(bias, values.dtype), (0, nvib.head_size - 2))
                results.append(torch.cat([values, head], -1))
        return results[0] if len(results) == 1 else torch.cat(results, -1)


def find_projection(attention: nn.Module, part: str) -> Projection:
    """Find the projection of a converted attention that computes its "query", "key" or "value"."""
    return next(x for x in attention.children() if isinstance(x, Projection) and part in x.parts)


def nvib_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend to the tokens and to the prior's component, with transformers' interface; (batch, queries, heads, d).

    Keys and values are those of `Projection`. An attention that is not converted is left to transformers.
    """
    nvib: AttentionNVIB | None = getattr(module, "nvib", None)
    if nvib is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    bias = value[:, -1, :, :2].sum(-1, dtype=at_least_float32(value.dtype))  # (batch, n)
    key, value = key[:, :-1], value[:, :-1]
    if (causal := kwargs.get("is_causal")) is None:
        causal = getattr(module, "is_causal", False)
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool).tril()
    if nvib.handover.seen is not None:
        nvib.handover.seen = nvib.handover.seen[0], attention_mask
    mask = _with_position_bias(attention_mask, kwargs.get("position_bias"), key.dtype)
    unrotated = nvib.take_query(module)
    component = None
    if nvib.has_prior or nvib.tau_sigma > 0 or nvib.largest_odds is not None:
        component = nvib.component(module, len(key))
    if nvib.largest_odds is not None and component is not None:
        odds = prior_odds(nvib, component, query, unrotated, key, mask)
        nvib.largest_odds = torch.maximum(odds.max(), nvib.largest_odds)
    return attend(nvib, component, query, unrotated, key, value, bias, mask, kwargs.get("dropout", 0.0)), None


def attend(
    nvib: AttentionNVIB,
    component: PriorComponent | None,
    q: Tensor,
    unrotated: Tensor | None,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    """Attend to keys that have a bias each, and to the prior's component; (batch, queries, heads, d).

    Several heads of the queries may share one of the keys. The prior's component reads the `unrotated` queries, if they
    are given.
    """
    # Keys and values with room for the prior's component, and for the features that carry biases.
    (batch, key_heads, n, d), heads, dtype, prior = k.shape, q.shape[1], k.dtype, nvib.has_prior
    extra = FEATURES + (-(d + FEATURES)) % ALIGNMENT
    keys = k.new_zeros(batch, heads, n + prior, d + extra)  # one copy of the cache for each call, and not two
    values = torch.zeros_like(keys)
    for to, x in ((keys, k), (values, v)):
        to.view(batch, key_heads, -1, n + prior, d + extra)[..., :n, :d] = x.unsqueeze(2)
    keys[:, :, :n, d : d + 2] = _two_parts(bias, dtype).unsqueeze(1)

    # The prior's component is the last key. Unrotated queries have its whole score in their own features.
    if prior and component is not None:
        values[:, :, n, :d] = component.value[:, :, 0].to(dtype)
        if unrotated is None:
            keys[:, :, n, :d] = component.key[:, :, 0].to(dtype)
        keys[:, :, n, d : d + 2] = _two_parts(component.bias, dtype).unsqueeze(1)
        keys[:, :, n, d + 2 : d + FEATURES] = 1.0
        values[:, :, n, d] = 1.0  # its weight is a feature of the result
        mask = None if mask is None else F.pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)

    # What the keys' product leaves out of the prior's score: ½ qᵀ A q, and q·key for unrotated queries.
    products, score = None, q.new_zeros(q.shape[:-1])
    if component is not None and component.matrices is not None:
        with without_autocast(q):
            wide = (q if unrotated is None else unrotated).to(component.matrices.dtype)
            products = component.products(wide)
            half = 0.5 * products[..., :d]
            score = nvib.scale * (wide * (half if unrotated is None else half + component.key)).sum(-1)

    # Queries with a 1 for the biases of keys, and the rest of the score for the prior's component.
    features = k.new_zeros(*q.shape[:-1], extra)
    features[..., :2] = 1.0
    features[..., 2:FEATURES] = _two_parts(score, dtype)
    q = torch.cat([q * nvib.scale, features], -1).to(dtype)
    attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout, scale=1.0)

    # B q, with the weight of the prior's component for its own B, and in full for the B of all tokens.
    result = attended[..., :d]
    if products is not None:
        result = result + (attended[..., d : d + 1] * products[..., d : 2 * d]).to(dtype)
        if nvib.tau_sigma > 0:
            result = result + products[..., 2 * d :].to(dtype)
    return result.transpose(1, 2)


def prior_odds(
    nvib: AttentionNVIB, component: PriorComponent, q: Tensor, unrotated: Tensor | None, k: Tensor, mask: Tensor | None
) -> Tensor:
    """Compute the logarithm of the prior's weight over all tokens' with τ_α = 0; −∞ for a query without tokens.

    It is of size (batch, heads, queries).
    """
    dtype = component.key.dtype
    q, k = q.to(dtype), k.to(dtype).repeat_interleave(nvib.groups, 1)
    unrotated = q if unrotated is None else unrotated.to(dtype)
    scores = nvib.scale * (q @ k.mT)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    tokens = scores.logsumexp(-1)
    half = 0.5 * component.products(unrotated)[..., : q.shape[-1]]
    prior = nvib.scale * (unrotated * (component.key + half)).sum(-1) + component.bias
    return torch.where(tokens > torch.finfo(tokens.dtype).min / 2, prior - tokens, -torch.inf)


def nvibs(model: nn.Module) -> list[tuple[str, AttentionNVIB]]:
    """Find the NVIBs of a converted model, by the name of their attention, in the order of its modules."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, AttentionNVIB)]
    return [(name.removesuffix(".nvib"), module) for name, module in found]


def real_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Whether any query may attend to a token, (batch, n)."""
    if mask is None or mask.shape[-1] != x.shape[1]:
        return x.new_ones(x.shape[:2], dtype=torch.bool)
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.flatten(1, 2).any(1).expand(x.shape[:2])


def _two_parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Split x into its rounded value and the remainder, (…, 2). What the dtype cannot hold is its largest number."""
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    rounded = x.to(dtype)
    return torch.stack([rounded, (x - rounded).to(dtype)], -1)


def _with_position_bias(mask: Tensor | None, position_bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if position_bias is None or mask is None:
        return mask if position_bias is None else position_bias
    if mask.dtype == torch.bool:
        return torch.where(mask, position_bias, torch.finfo(dtype).min)
    return position_bias + mask


AttentionInterface.register(NAME, nvib_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
