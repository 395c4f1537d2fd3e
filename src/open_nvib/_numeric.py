"""Precision, and logarithms of weights that may be zero."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def widen(value: Tensor | float, like: Tensor | None = None) -> Tensor:
    """In float64, or in float32 on the one device type that has none; a number goes to the device of `like`."""
    device = (like if like is not None else torch.as_tensor(value)).device
    return torch.as_tensor(value, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def uniform_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform noise of the shape, dtype and device of `like`."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def normal_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gaussian noise of the shape, dtype and device of `like`."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def _given(generator: torch.Generator | None) -> dict[str, Any]:
    """torch.compile has no symbolic shapes for a call that names the generator, even one that is None."""
    return {} if generator is None else {"generator": generator}


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def log_weight(alpha: Tensor) -> Tensor:
    """log α, -inf where α = 0, with a zero gradient there instead of a NaN (the mask comes before the logarithm)."""
    gone = alpha == 0
    return torch.where(gone, -torch.inf, torch.where(gone, 1.0, alpha).log())


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which operations keep the dtype they are given."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
