"""What the core shares: precision, noise, logarithms of weights that may be zero, and frozen records of tensors."""

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, SupportsIndex, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.utils import _pytree as pytree

Record = TypeVar("Record", bound="TensorRecord")
Batch = TypeVar("Batch", bound="BatchRecord")
Index = SupportsIndex | slice | list[int] | Tensor

# Shapes of which many arguments are.
Hidden = Float[Tensor, "batch n size"]
PerToken = Float[Tensor, "batch n"]
TokenMask = Bool[Tensor, "batch n"]


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


# Frozen dataclasses of tensors, which functions return where one tensor is not enough


def flatten(record: "TensorRecord") -> tuple[list[Any], Any]:
    """Split a record into its tensors and its context: the class, the names, and fields that are None or plain numbers.

    None is part of the context because torch.func.vmap accepts no leaves but tensors.
    """
    values = values_of(record)
    plain = {field.name for field in fields(record) if field.type is int}  # pyright: ignore[reportArgumentType]
    plain |= {name for name, value in values.items() if value is None}
    names = tuple(name for name in values if name not in plain)
    return [values[name] for name in names], (type(record), names, tuple((name, values[name]) for name in plain))


def unflatten(parts: Any, context: Any) -> "TensorRecord":
    """Undo `flatten`."""
    kind, names, rest = context
    return unchecked(kind, **dict(zip(names, parts, strict=True)), **dict(rest))


class TensorRecord:
    """Base of a frozen dataclass of tensors and of other records. torch.func and torch.export see the tensors."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = f"{cls.__module__}.{cls.__qualname__}"
        pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)

    def map(self: Record, function: Callable[[Tensor], Tensor]) -> Record:
        """Apply `function` to each tensor, also to those of nested records."""

        def apply(value: Any) -> Any:
            if isinstance(value, TensorRecord):
                return value.map(function)
            return function(value) if isinstance(value, Tensor) else value

        return unchecked(type(self), **{name: apply(value) for name, value in values_of(self).items()})

    def to(self: Record, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None) -> Record:
        """Move to another device, or convert floating tensors to another dtype (masks stay boolean)."""
        return self.map(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype))

    def detach(self: Record) -> Record:
        """Detach every tensor from the graph."""
        return self.map(Tensor.detach)


class BatchRecord(TensorRecord):
    """Base of a record whose tensors share their first axis, the batch."""

    def map_rows(self: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply `function` to the record's own tensors, which have a batch axis; nested records stay as they are."""
        own = {name: function(x) if isinstance(x, Tensor) else x for name, x in values_of(self).items()}
        return unchecked(type(self), **own)

    def __len__(self) -> int:
        return len(next(iter(values_of(self).values())))

    def __getitem__(self: Batch, index: Index) -> Batch:
        """Select rows of the batch by slice, list, index tensor or mask; a single index keeps the batch axis."""
        if isinstance(index, tuple) or index is None:
            raise TypeError(f"{type(self).__name__}: the index is {index}, expected one axis, such as 1:3 or [0, 2].")
        if isinstance(index, SupportsIndex) and getattr(index, "ndim", 0) == 0:
            row = operator.index(index)
            if not -len(self) <= row < len(self):
                raise IndexError(f"{type(self).__name__}: the index is {row}, expected one in a batch of {len(self)}.")
            index = slice(row, row + 1 or None)
        return self.map_rows(lambda tensor: tensor[index])


def values_of(record: TensorRecord) -> dict[str, Any]:
    """Return the fields by name, as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}  # pyright: ignore[reportArgumentType]


def unchecked(kind: type[Record], **tensors: Any) -> Record:
    """Build a record of values that are right by construction, without checks (to read them stalls an accelerator)."""
    record = object.__new__(kind)
    for name, value in tensors.items():
        object.__setattr__(record, name, value)
    return record
