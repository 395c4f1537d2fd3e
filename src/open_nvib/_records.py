"""Frozen records of tensors: what the library returns where a tensor is not enough."""

import operator
from collections.abc import Callable
from dataclasses import fields
from typing import Any, SupportsIndex, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Record = TypeVar("Record", bound="TensorRecord")
Batch = TypeVar("Batch", bound="BatchRecord")
Index = SupportsIndex | slice | list[int] | Tensor


def flatten(record: "TensorRecord") -> tuple[list[Any], Any]:
    """Every field as a part, but for plain numbers, which with the class are context."""
    plain = {field.name for field in fields(record) if field.type is int}  # pyright: ignore[reportArgumentType]
    values = values_of(record)
    names = tuple(name for name in values if name not in plain)
    return [values[name] for name in names], (type(record), names, tuple((name, values[name]) for name in plain))


def unflatten(parts: Any, context: Any) -> "TensorRecord":
    kind, names, rest = context
    return trusted(kind, **dict(zip(names, parts, strict=True)), **dict(rest))


class TensorRecord:
    """A frozen dataclass of tensors and of further such records. torch.func and torch.export see the tensors."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = f"{cls.__module__}.{cls.__qualname__}"
        pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)

    def map(self: Record, function: Callable[[Tensor], Tensor]) -> Record:
        """The record with `function` applied to each tensor, nested ones too."""

        def apply(value: Any) -> Any:
            if isinstance(value, TensorRecord):
                return value.map(function)
            return function(value) if isinstance(value, Tensor) else value

        return trusted(type(self), **{name: apply(value) for name, value in values_of(self).items()})

    def to(self: Record, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None) -> Record:
        """On another device, or with its floating tensors of another dtype (masks stay boolean)."""
        return self.map(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype))

    def detach(self: Record) -> Record:
        return self.map(Tensor.detach)


class BatchRecord(TensorRecord):
    """A record whose tensors share their first axis, the batch."""

    def map_rows(self: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
        """The record with `function` applied to its own tensors, which have a batch axis; nested records stay."""
        own = {name: function(x) if isinstance(x, Tensor) else x for name, x in values_of(self).items()}
        return trusted(type(self), **own)

    def __len__(self) -> int:
        return len(next(iter(values_of(self).values())))

    def __getitem__(self: Batch, index: Index) -> Batch:
        """Rows of the batch, by slice, list, index tensor or mask; a single index keeps the batch axis."""
        if isinstance(index, tuple) or index is None:
            raise TypeError(
                f"{type(self).__name__}: got the index {index}, wanted one for the batch: 2, 1:3 or [0, 2]."
            )
        if isinstance(index, SupportsIndex) and getattr(index, "ndim", 0) == 0:
            row = operator.index(index)
            if not -len(self) <= row < len(self):
                raise IndexError(f"{type(self).__name__}: index {row} is out of range for a batch of {len(self)}.")
            index = slice(row, row + 1 or None)
        return self.map_rows(lambda tensor: tensor[index])


def values_of(record: TensorRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}  # pyright: ignore[reportArgumentType]


def trusted(kind: type[Record], **tensors: Any) -> Record:
    """Build a record whose values are right by construction, without reading them (a read stalls an accelerator)."""
    record = object.__new__(kind)
    for name, value in tensors.items():
        object.__setattr__(record, name, value)
    return record
