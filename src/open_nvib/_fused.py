"""softmax(q·k + bias) v on torch's fused kernels, with a learned bias for each key.

`scaled_dot_product_attention` takes an additive bias, but on the CPU it uses its slow path for a bias that needs a
gradient and keeps the (queries × n) weights; in half precision it rounds the bias to three digits. So the bias becomes
two more features of the key, a rounded part and its remainder, and the query has a constant 1 for each.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from open_nvib._numeric import in_transform

ALIGNMENT = 8
"""Feature sizes are padded to a multiple of this, which fused kernels on accelerators need."""

NO_WEIGHT = -1e30
"""Replaces a bias of -inf: its exp is exactly 0 too, and 0 times it is not NaN."""


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


def biased_weights(q: Tensor, biased_keys: Tensor, *, scale: float) -> Tensor:
    """Compute softmaxᵢ(scale·q·kᵢ + biasᵢ), (…, queries, n): the weights of the values in `attend_biased`."""
    return (_biased_queries(q, scale) @ biased_keys.mT).softmax(-1)


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
