"""Precision, noise, and logarithms of weights that may be zero."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack


def in_transform() -> bool:
    """Whether a torch.func transform (vmap, grad, jvp, …) is active."""
    return peek_interpreter_stack() is not None


def can_read(tensor: Tensor) -> bool:
    """Whether Python may read the values: not in a compiled graph, under a torch.func transform, or on meta."""
    return not (torch.compiler.is_compiling() or tensor.is_meta or in_transform())


def widen(value: Tensor | float, like: Tensor | None = None) -> Tensor:
    """Convert to float64, or to float32 on mps, which has no float64; a number goes to the device of `like`."""
    device = (like if like is not None else torch.as_tensor(value)).device
    return torch.as_tensor(value, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def uniform_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw uniform noise of the shape, dtype and device of `like`."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def normal_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw standard Gaussian noise of the shape, dtype and device of `like`."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def _given(generator: torch.Generator | None) -> dict[str, Any]:
    """Leave out a generator of None: torch.compile has no symbolic shapes for a call that names one."""
    return {} if generator is None else {"generator": generator}


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Promote half precision and integers to float32."""
    return torch.promote_types(dtype, torch.float32)


def log_weight(alpha: Tensor) -> Tensor:
    """Compute log α, -inf where α = 0, with a gradient of 0 there and not NaN: the mask precedes the logarithm."""
    gone = alpha == 0
    return torch.where(gone, -torch.inf, torch.where(gone, 1.0, alpha).log())


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Make a context in which operations keep the dtype of their inputs."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
