"""Errors that say what, where, what was got, what was wanted, and the fix.

Shape checks cost microseconds and always run. Value checks read the tensor, which torch.compile cannot trace and
torch.func.vmap forbids: there they are skipped, see `can_read`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

RELU = "Pass what the encoder emits through a ReLU or softplus."


def in_transform() -> bool:
    """Whether a torch.func transform (vmap, grad, jvp, …) is active."""
    return peek_interpreter_stack() is not None


def can_read(tensor: Tensor) -> bool:
    """Whether Python may look at the values: not in a compiled graph, under a torch.func transform, or on meta."""
    return not (torch.compiler.is_compiling() or tensor.is_meta or in_transform())


def check_axes(where: str, **tensors: tuple[Tensor, str]) -> None:
    """Match every tensor against its axes, such as `u=(u, "... queries p")`, one size per name throughout.

    Leading dimensions under `...` must broadcast against each other. All must be floating and, outside autocast, of one
    dtype.
    """
    sizes: dict[str, int] = {}
    seen_in: dict[str, str] = {}
    batch: tuple[int, ...] = ()
    batch_from: list[str] = []
    dtype: torch.dtype | None = None
    dtype_from = ""
    for name, (tensor, pattern) in tensors.items():
        check_floating(where, name, tensor)
        if dtype is None:
            dtype, dtype_from = tensor.dtype, name
        elif tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
            raise ValueError(
                f"{where}: {name} is {tensor.dtype} but {dtype_from} is {dtype}; wanted one dtype. "
                f"Convert one with .to(dtype), or run under torch.autocast."
            )
        axes = pattern.split()
        leading = axes[:1] == ["..."]
        named = axes[1:] if leading else axes
        shape = tuple(tensor.shape)
        if len(shape) < len(named) or (not leading and len(shape) != len(named)):
            fix = "Add the missing axis." if len(shape) < len(named) else "Take away what is too much."
            raise ValueError(f"{where}: {name} has shape {shape}, wanted ({', '.join(axes)}). {fix}")
        for axis, size in zip(named, shape[len(shape) - len(named) :], strict=True):
            if axis not in sizes:
                sizes[axis], seen_in[axis] = size, name
            elif sizes[axis] != size:
                other = seen_in[axis]
                raise ValueError(
                    f"{where}: {name} has shape {shape}, wanted ({', '.join(axes)}) with {axis} = {sizes[axis]} as in "
                    f"{other} {tuple(tensors[other][0].shape)}. Make the two agree."
                )
        if leading:
            lead = shape[: len(shape) - len(named)]
            try:
                batch = torch.broadcast_shapes(batch, lead)
            except RuntimeError:
                raise ValueError(
                    f"{where}: the leading dimensions {lead} of {name} {shape} do not broadcast against {batch} of "
                    f"{', '.join(batch_from)}. Give all of them the same batch."
                ) from None
            batch_from.append(name)


def check_floating(where: str, name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: {name} is a {type(tensor).__name__}, wanted a Tensor. Wrap it in torch.tensor.")
    if not tensor.is_floating_point():
        raise ValueError(f"{where}: {name} is {tensor.dtype}, wanted a floating dtype. Convert it with .float().")


def check_same_dtype(where: str, name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Of the dtype of the layer's parameters, unless autocast takes care of it."""
    if tensor.dtype != parameter.dtype and not torch.is_autocast_enabled(tensor.device.type):
        raise ValueError(
            f"{where}: {name} is {tensor.dtype} but the layer's parameters are {parameter.dtype}. Convert one with "
            f".to(dtype), or run under torch.autocast."
        )


def check_batch(where: str, **tensors: tuple[Tensor, int]) -> None:
    """The leading dimensions, all but the last few, are the same throughout; each with how many those few are."""
    first, (tensor, own) = next(iter(tensors.items()))
    batch = tuple(tensor.shape[: tensor.ndim - own])
    for name, (other, own) in tensors.items():
        if tuple(other.shape[: other.ndim - own]) != batch:
            raise ValueError(
                f"{where}: {name} has shape {tuple(other.shape)}, wanted the batch {batch} of {first} "
                f"{tuple(tensor.shape)}. Use expand to repeat it."
            )


def check_mask(where: str, mask: Tensor, like: Tensor) -> None:
    """Boolean, of the first two axes of `like`."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"{where}: mask is a {type(mask).__name__}, wanted a Tensor. Wrap it in torch.tensor.")
    if mask.dtype != torch.bool:
        raise ValueError(f"{where}: mask is {mask.dtype}, wanted torch.bool, True = real. Convert it with .bool().")
    if mask.shape != like.shape[:2]:
        raise ValueError(
            f"{where}: mask has shape {tuple(mask.shape)}, wanted (batch, n) = {tuple(like.shape[:2])}. Give one entry "
            f"for each token."
        )


def check_choice(where: str, name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        quoted = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{where}: {name} is {value!r}, wanted one of {quoted}.")


def check_count(where: str, name: str, value: object) -> None:
    """A positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where}: {name} is {value!r}, wanted a whole number such as 1.")
    if value < 1:
        raise ValueError(f"{where}: {name} is {value}, wanted at least 1.")


def check_pseudo_counts(where: str, name: str, alpha: Tensor, *, positive: bool = False, fix: str = RELU) -> None:
    """Every entry finite and at least 0 (above 0 if `positive`)."""
    if not can_read(alpha):
        return
    good = ((alpha > 0) if positive else (alpha >= 0)) & alpha.isfinite()
    if not good.all():
        raise ValueError(
            f"{where}: {_count(~good)} of {name} {tuple(alpha.shape)} are negative{', zero' if positive else ''} "
            f"or not finite; wanted pseudo-counts {'above' if positive else 'of at least'} 0. {fix}"
        )


def check_log_weights(where: str, name: str, log_weights: Tensor) -> None:
    """No NaN, no +inf, and in every row something to attend to."""
    if not can_read(log_weights):
        return
    bad = log_weights.isnan() | log_weights.isposinf()
    if bad.any():
        raise ValueError(
            f"{where}: {_count(bad)} of {name} {tuple(log_weights.shape)} are NaN or +inf; wanted logarithms of "
            f"weights, -inf for none. Look for a division by zero or an overflow upstream."
        )
    empty = log_weights.isneginf().all(-1)
    if empty.any():
        rows = [row[0] if len(row) == 1 else tuple(row) for row in empty.nonzero().tolist()]
        shown = f"{rows[:8]}" + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        raise ValueError(
            f"{where}: rows {shown} of {name} {tuple(log_weights.shape)} have no finite entry, so there is nothing to "
            f"attend to. Keep the prior component, or drop empty sentences before encoding."
        )


def _count(bad: Tensor) -> str:
    return f"{int(bad.sum())} of {bad.numel()} entries"
