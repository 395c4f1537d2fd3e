"""softmax(q·k + bias) v on torch's fused kernels, with a bias for each key that is learned.

`scaled_dot_product_attention` takes an additive bias, but on the CPU a bias that needs a gradient sends it to its slow
path, which keeps the (queries × n) weights, and in half precision the bias is rounded to three digits. So the bias
rides along as features of the key that meet a constant 1 in the query, as a rounded part and its remainder.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from open_nvib._checks import in_transform

ALIGNMENT = 8
"""Feature sizes are padded to a multiple of this: what fused kernels on accelerators ask for."""

NO_WEIGHT = -1e30
"""Stands for a bias of -inf: exp of it is exactly 0, but 0 times it is not NaN."""


def extra_features(size: int) -> int:
    """Features to append to a vector of `size`: at least two, up to a multiple of ALIGNMENT."""
    return 2 + (-(size + 2)) % ALIGNMENT


def bias_keys(keys: Tensor, bias: Tensor) -> Tensor:
    """(…, n, size) and (…, n) to (…, n, size + extra): keys that carry their bias."""
    floor = max(NO_WEIGHT, torch.finfo(keys.dtype).min / 4)
    bias = bias.clamp(min=floor)
    rounded = bias.to(keys.dtype)
    remainder = (bias - rounded).to(keys.dtype)
    features = F.pad(torch.stack([rounded, remainder], -1), (0, extra_features(keys.shape[-1]) - 2))
    return torch.cat([keys, features.expand(*keys.shape[:-1], -1)], -1)


def pad_values(values: Tensor) -> Tensor:
    """(…, n, size) to (…, n, size + extra): fused kernels want keys and values of one size."""
    return F.pad(values, (0, extra_features(values.shape[-1])))


def attend_biased(q: Tensor, biased_keys: Tensor, padded_values: Tensor, *, scale: float) -> Tensor:
    """softmaxᵢ(scale·q·kᵢ + biasᵢ) vᵢ, (…, queries, size), with `biased_keys` and `padded_values` as made above."""
    return _attend(_biased_queries(q, scale), biased_keys, padded_values)[..., : q.shape[-1]]


def biased_weights(q: Tensor, biased_keys: Tensor, *, scale: float) -> Tensor:
    """softmaxᵢ(scale·q·kᵢ + biasᵢ), (…, queries, n): the weights that `attend_biased` gives to the values."""
    return (_biased_queries(q, scale) @ biased_keys.mT).softmax(-1)


def _biased_queries(q: Tensor, scale: float) -> Tensor:
    extra = extra_features(q.shape[-1])
    ones = (torch.arange(extra, device=q.device) < 2).to(q.dtype)
    return torch.cat([q * scale, ones.expand(*q.shape[:-1], extra)], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    if in_transform():
        return _attend_in_plain_operations(q, k, v)
    return _TwiceDifferentiable.apply(q, k, v)


def _attend_in_plain_operations(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


class _TwiceDifferentiable(torch.autograd.Function):
    """The fused kernel, whose backward has no derivative of its own, and plain operations where one is asked for."""

    @staticmethod
    def forward(ctx, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(needed) for x, needed in zip(inputs, ctx.needs_input_grad, strict=True)]
            q, k, v = leaves
            output = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        ctx.save_for_backward(*inputs)
        ctx.kernel = leaves, output
        return output.detach()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        leaves, output = ctx.kernel
        twice = torch.is_grad_enabled()  # that is, create_graph=True
        if twice:
            leaves = ctx.saved_tensors
            output = _attend_in_plain_operations(*leaves).to(grad_output.dtype)
        wanted = [leaf for leaf, needed in zip(leaves, ctx.needs_input_grad, strict=True) if needed]
        grads = iter(torch.autograd.grad(output, wanted, grad_output, create_graph=twice, retain_graph=True))
        return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad)
