"""Denoising attention inside an attention of transformers: its projections, and the function that it calls.

A converted attention keeps its own forward method, with its caches and masks. `Projection` replaces its projections of
keys and values. It projects the vectors of the process and appends to the values a head with the bias of each key, so
that a cache holds the bias, too. The attention then calls `nvib_attention`, which adds the prior's component.

Tokens share one σ. So u²·r of `attend_gaussians` is the same for all tokens of a head, and for the prior's component it
is qᵀ A q with A = W^K diag(r) (W^K)ᵀ of size d × d, where u = q (W^K)ᵀ: no query needs a vector of full size. In the
same way r∘u, projected by W^V, is B q with B = W^V diag(r) (W^K)ᵀ.

Rotary keys (Llama, Qwen): a token sees u = q Rₜ (W^K)ᵀ, where the rotation Rₜ depends on its distance t to the query.
With σ = 0 a token needs no u, only the bias of its key, so that the attention is exact. With σ > 0 each pair of
positions needs its own u: this is refused. The prior's component has no position. It is put at the position of each
query, t = 0: its key is not rotated, and it reads the query from before the rotation. Keys with a norm (Qwen3) are not
linear in x; for the prior's component they are, with the norm's factor for its mean square key.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from open_nvib._fused import ALIGNMENT
from open_nvib._numeric import at_least_float32, normal_like, without_autocast
from open_nvib.attention import gaussian_features
from open_nvib.gamma import log_gamma
from open_nvib.identity import LOG_ALPHA_MAX, IdentityNVIB

NAME = "nvib"
"""Name of the attention function and of the conversion in transformers' registries."""

FEATURES = 4
"""Features that carry biases through the product of queries and keys: two for the bias of a key and two for the prior's
score of a query, each a rounded part and its remainder, so that half precision loses nothing."""

Parts = tuple[str, ...]


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


class Handover(threading.local):
    """What one part of a forward pass hands to another. Each thread has its own: several may call one model."""

    vectors: tuple[Tensor, Tensor, Tensor] | None = None  # hidden states, what replaces them, biases of keys
    query: Tensor | None = None  # before rotation
    seen: tuple[Tensor, Tensor | None] | None = None  # hidden states and mask of the last forward pass

    def __reduce__(self) -> tuple[type["Handover"], tuple[()]]:
        """Copy as a new one: tensors inside a graph cannot be copied."""
        return Handover, ()


class AttentionNVIB(IdentityNVIB):
    """The NVIB of one attention, which its projections and `nvib_attention` share.

    Args:
        p: size of the vectors that the attention reads.
        heads: number of heads of the keys.
        groups: number of heads of the queries for each of the keys.
        head_size: d, the size of a head's key.
        scale: factor of the product of queries and keys.
        section: "encoder", "cross" or "decoder".
        rotary: whether queries and keys are rotated by their positions.
        key_name, value_name: attributes of the attention with its projections.
    """

    rotary = False

    def __init__(
        self,
        p: int,
        *,
        heads: int,
        groups: int,
        head_size: int,
        scale: float,
        section: str,
        rotary: bool,
        key_name: str,
        value_name: str,
    ) -> None:
        super().__init__(p, d=scale**-2)
        self.heads, self.groups, self.head_size, self.scale = heads, groups, head_size, scale
        self.section, self.rotary, self.key_name, self.value_name = section, rotary, key_name, value_name
        self.observer: Callable[..., None] | None = None
        self.handover = Handover()
        self._component: tuple[Any, PriorComponent] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be computed again."""
        return self.__dict__ | dict.fromkeys(("observer", "_component"))

    def train(self, mode: bool = True) -> Any:
        """Also forget the prior's component: a change of weights through `.data` leaves no trace."""
        self._component = None
        return super().train(mode)

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
        """Return the vectors to project in place of x and the biases of their keys, (batch, n), and remember them.

        The bias is log π − ‖z‖²/2√d of a sample, or log α − μ·m/2√d of the mean, without what all tokens share.
        """
        learned = self.to_log_alpha(x).squeeze(-1).to(at_least_float32(x.dtype))
        if self.samples:
            z = x + self.log_sigma.exp().to(x.dtype) * normal_like(x, None)
            alpha = self.log_alpha(x).clamp(max=LOG_ALPHA_MAX).exp()
            bias = self._log_gamma(alpha) - self.height(z)
        elif self.tau_sigma > 0:
            ratio = self._ratio(self.log_sigma.dtype)
            r = ratio / (1 + ratio)
            z = (1 - r).to(x.dtype) * x
            bias = learned + 0.5 * self.scale * (x.to(learned.dtype).square() @ r.to(learned.dtype))
        else:
            z, bias = x, learned
        self.handover.vectors = x, z, bias
        return z, bias

    def take(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `read` made of x, the vectors and the biases of their keys, and forget it."""
        left = self.handover.vectors
        z, bias = left[1:] if left is not None and left[0] is x else self.read(x)
        self.handover.seen, self.handover.vectors = (x, None), None
        return z, bias

    def take_query(self, attention: nn.Module) -> Tensor | None:
        """Return the query before rotation, (batch, heads, queries, d), and forget it; None if nothing is rotated."""
        if self.handover.query is None:
            return None
        query, self.handover.query = self.handover.query.unflatten(-1, (-1, self.head_size)), None
        norm = getattr(attention, "q_norm", None)
        return (query if norm is None else norm(query)).transpose(1, 2)

    def component(self, attention: nn.Module, batch: int) -> PriorComponent:
        """Compute the prior's component: a sample for each text, or its Gaussian, kept while nothing changes."""
        key, value = (getattr(attention, name) for name in (self.key_name, self.value_name))
        (w_k, b_k), (w_v, b_v) = key.weight_of("key"), value.weight_of("value")
        if w_k.is_meta or w_v.is_meta:
            raise ValueError("weights of a converted model are offloaded, expected in memory. Load it without offload.")
        if self.samples:
            z = self.prior_mu.to(w_k.dtype).expand(batch, 1, -1)
            z = z + self.prior_log_sigma.exp().to(z.dtype) * normal_like(z, None)
            bias = self._log_gamma(torch.ones_like(z[:, 0, 0])) - self.height(z)[:, 0]
            return PriorComponent(self._split(F.linear(z, w_k, b_k)), self._split(F.linear(z, w_v, b_v)), bias, None)
        norm = getattr(attention, "k_norm", None)
        parts = [key.weight, value.weight, key.bias, value.bias, self.log_sigma_factor, *self.buffers()]
        tensors = [x for x in (*parts, getattr(norm, "weight", None)) if x is not None]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or any(x.is_inference() for x in tensors):
            return self._mean_component(w_k, b_k, w_v, b_v, norm)
        state = self.tau_alpha, self.tau_sigma, *((x.data_ptr(), x._version) for x in tensors)
        if self._component is None or self._component[0] != state:
            self._component = state, self._mean_component(w_k, b_k, w_v, b_v, norm)
        return self._component[1]

    def _mean_component(
        self, w_k: Tensor, b_k: Tensor | None, w_v: Tensor, b_v: Tensor | None, norm: Any
    ) -> PriorComponent:
        dtype = at_least_float32(w_k.dtype)
        with without_autocast(w_k):
            w_k, w_v = w_k.to(dtype), w_v.to(dtype)
            b_k, b_v = (None if b is None else b.to(dtype) for b in (b_k, b_v))
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
    """A linear projection of a pretrained attention, which projects the vectors of the process.

    Values get one more head, which holds the bias of each key, and keys one of zeros: caches need as many of both, and
    zeros stay zeros if they are normed and rotated.

    Args:
        original: the projection, whose weights it takes over under their names.
        nvib: the NVIB of the attention.
        parts: what the projection computes, in order: of "query", "key" and "value".
        transposed: whether the weight is (in, out), as in GPT-2's Conv1D.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, original: Any, nvib: AttentionNVIB, *, parts: Parts, transposed: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = original.weight, original.bias
        self.parts, self.transposed = parts, transposed
        self._nvib = (nvib,)  # in a tuple: it is a module of the attention, not of its projections

    def extra_repr(self) -> str:
        return f"parts={self.parts}, size={tuple(self.weight.shape)}"

    def weight_of(self, part: str) -> tuple[Tensor, Tensor | None]:
        """Return the weight (heads·d, p) and the bias of a part."""
        index, count = self.parts.index(part), len(self.parts)
        weight = (self.weight.T if self.transposed else self.weight).chunk(count)[index]
        return weight, None if self.bias is None else self.bias.chunk(count)[index]

    def forward(self, x: Tensor) -> Tensor:
        (nvib,) = self._nvib
        results = []
        for part in self.parts:
            weight, bias = self.weight_of(part)
            if part == "query":
                results.append(F.linear(x, weight, bias))
                nvib.handover.query = results[-1] if nvib.rotary else None
            elif part == "key":
                results.append(F.pad(F.linear(nvib.read(x)[0], weight, bias), (0, nvib.head_size)))
            else:
                z, key_bias = nvib.take(x)
                values = F.linear(z, weight, bias)
                head = F.pad(_two_parts(key_bias, values.dtype), (0, nvib.head_size - 2))
                results.append(torch.cat([values, head], -1))
        return results[0] if len(results) == 1 else torch.cat(results, -1)


def nvib_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend to the tokens and to the prior's component, with transformers' interface; (batch, queries, heads, d).

    Keys and values are those of `Projection`. An attention that is not converted is left to transformers.
    """
    nvib: AttentionNVIB | None = getattr(module, "nvib", None)
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    if nvib is None:
        plain = {"dropout": dropout, "scaling": scaling, "is_causal": causal, "position_bias": position_bias}
        plain = {name: x for name, x in plain.items() if x is not None}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **plain, **kwargs)
    bias = value[:, -1, :, :2].sum(-1, dtype=at_least_float32(value.dtype))  # (batch, n)
    key, value = key[:, :-1], value[:, :-1]
    unrotated = nvib.take_query(module)
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool).tril()
    if nvib.handover.seen is not None:
        nvib.handover.seen = nvib.handover.seen[0], attention_mask
    if nvib.observer is not None:
        nvib.observer(module, query, query if unrotated is None else unrotated, key, attention_mask, position_bias)
    mask = _with_position_bias(attention_mask, position_bias, key.dtype)
    component = nvib.component(module, len(key)) if nvib.has_prior or nvib.tau_sigma > 0 else None
    options: dict[str, Any] = {"scale": nvib.scale, "prior": nvib.has_prior, "dropout": dropout}
    return attend(query, key, value, bias, mask, component, unrotated=unrotated, **options), None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    component: PriorComponent | None,
    *,
    unrotated: Tensor | None,
    scale: float,
    prior: bool,
    dropout: float,
) -> Tensor:
    """Attend to keys that have a bias each, and to the prior's component if `prior`; (batch, queries, heads, d).

    Several heads of the queries may share one of the keys. The prior's component reads the `unrotated` queries, if they
    are given.
    """
    (batch, key_heads, n, d), heads, dtype = k.shape, q.shape[1], k.dtype
    extra = FEATURES + (-(d + FEATURES)) % ALIGNMENT
    keys = k.new_zeros(batch, heads, n + prior, d + extra)  # one copy of the cache for each call, and not two
    values = torch.zeros_like(keys)
    for to, x in ((keys, k), (values, v)):
        to.view(batch, key_heads, -1, n + prior, d + extra)[..., :n, :d] = x.unsqueeze(2)
    keys[:, :, :n, d : d + 2] = _two_parts(bias, dtype).unsqueeze(1)
    if prior and component is not None:
        values[:, :, n, :d] = component.value[:, :, 0].to(dtype)
        if unrotated is None:
            keys[:, :, n, :d] = component.key[:, :, 0].to(dtype)
        keys[:, :, n, d : d + 2] = _two_parts(component.bias, dtype).unsqueeze(1)
        keys[:, :, n, d + 2 : d + FEATURES] = 1.0
        values[:, :, n, d] = 1.0  # its weight is a feature of the result
        mask = None if mask is None else F.pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)
    q_features = torch.zeros((), dtype=dtype, device=q.device).expand(*q.shape[:-1], 2)
    products = None
    if component is not None and component.matrices is not None:
        with without_autocast(q):
            wide = (q if unrotated is None else unrotated).to(component.matrices.dtype)
            products = component.products(wide)
            half = 0.5 * products[..., :d]
            q_features = _two_parts(
                scale * (wide * (half if unrotated is None else half + component.key)).sum(-1), dtype
            )
    ones = q_features.new_ones(()).expand(*q.shape[:-1], 2)
    rest = q_features.new_zeros(()).expand(*q.shape[:-1], extra - FEATURES)
    q = torch.cat([q * scale, ones, q_features, rest], -1)
    attended = F.scaled_dot_product_attention(q.to(dtype), keys, values, attn_mask=mask, dropout_p=dropout, scale=1.0)
    result = attended[..., :d]
    if products is not None:
        if prior:
            result = result + (attended[..., d : d + 1] * products[..., d : 2 * d]).to(dtype)
        if products.shape[-1] > 2 * d:
            result = result + products[..., 2 * d :].to(dtype)
    return result.transpose(1, 2)


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
