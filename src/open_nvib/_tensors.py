"""What the core shares: precision, noise, logarithms of zero weights, records of tensors, and argument checks."""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, NoReturn, SupportsIndex, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.utils import _pytree as pytree

Record = TypeVar("Record", bound="TensorRecord")
Batch = TypeVar("Batch", bound="BatchRecord")
Index = SupportsIndex | slice | list[int] | Tensor

Noise = torch.Generator | None
"""Where noise comes from; None for torch's own generator."""

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


def uniform_like(like: Tensor, generator: Noise) -> Tensor:
    """Draw uniform noise of the shape, dtype and device of `like`."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def normal_like(like: Tensor, generator: Noise) -> Tensor:
    """Draw standard Gaussian noise of the shape, dtype and device of `like`."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, **_given(generator))


def _given(generator: Noise) -> dict[str, Any]:
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


def join(records: Sequence[Batch], axis: int = 0) -> Batch:
    """Join the tensors of several records along an axis; nested records are those of the last one."""
    values = values_of(records[-1])
    own = [name for name, value in values.items() if isinstance(value, Tensor)]
    joined = {name: torch.cat([getattr(record, name) for record in records], axis) for name in own}
    return unchecked(type(records[-1]), **values | joined)


def values_of(record: TensorRecord) -> dict[str, Any]:
    """Return the fields by name, as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}  # pyright: ignore[reportArgumentType]


def unchecked(kind: type[Record], **tensors: Any) -> Record:
    """Build a record of values that are right by construction, without checks (to read them stalls an accelerator)."""
    record = object.__new__(kind)
    for name, value in tensors.items():
        object.__setattr__(record, name, value)
    return record


# Argument checks. An error says where, which argument, what it is, what was expected, and how to fix it.
#
# Checks of types and shapes cost microseconds and always run. Checks of values read the tensor, which torch.compile
# cannot trace and torch.func.vmap forbids: there they are skipped (`can_read`).

FLOAT32 = torch.finfo(torch.float32)
Known = dict[str, tuple[Any, str]]  # size of an axis, or the dtype, and the argument that it comes from

# Kind of a tensor: the test of its dtype, what is expected, and the fix.
KINDS: dict[str, tuple[Callable[[torch.dtype], bool], str, str]] = {
    "float": (lambda dtype: dtype.is_floating_point, "a floating dtype", "Convert it with .float()."),
    "bool": (lambda dtype: dtype == torch.bool, "torch.bool, True = real", "Convert it with .bool()."),
    "int": (lambda dtype: not dtype.is_floating_point and dtype != torch.bool, "whole numbers", "Use .long()."),
    "real": (lambda dtype: not dtype.is_complex, "real numbers", "Use .real."),
    "number": (lambda dtype: not dtype.is_complex and dtype != torch.bool, "real numbers", "Use .float()."),
}

# Domain of values: the test of an entry, what is expected, and the fix.
DOMAINS: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "finite": (Tensor.isfinite, "finite", ""),
    "> 0": (lambda x: (x > 0) & x.isfinite(), "finite and above 0", "Drop rows without a pseudo-count."),
    ">= 0": (lambda x: (x >= 0) & x.isfinite(), "finite and at least 0", "Apply a ReLU or softplus to it."),
    "float32 > 0": (lambda x: (x >= FLOAT32.tiny) & (x <= FLOAT32.max), "above 0 and in float32's range", ""),
    "float32 >= 0": (lambda x: (x >= 0) & (x <= FLOAT32.max), "at least 0 and in float32's range", ""),
    ">= 1": (lambda x: (x >= 1) & x.isfinite(), "at least 1", ""),
    "0 or >= 1": (lambda x: ((x >= 1) & x.isfinite()) | (x == 0), "at least 1, or 0 for the layer's share", ""),
    "whole": (lambda x: x == x.round(), "whole numbers", "Round it: vectors are counted."),
    "0 to below 1": (lambda x: (x >= 0) & (x < 1), "from 0 to below 1", ""),
    "0 to 1": (lambda x: (x >= 0) & (x <= 1), "from 0 to 1", ""),
    "share": (lambda x: (x >= FLOAT32.tiny) & (x <= 1), "above 0 and at most 1", ""),
    "log": (lambda x: x < torch.inf, "logarithms, -inf for a weight of 0", "Look for an overflow or a division by 0."),
    "> -inf": (lambda x: x > -torch.inf, "to attend to", "Keep the prior component, or drop empty sentences."),
}


def check(where: str, **arguments: Any) -> None:
    """Check arguments, each given as `name=(value, expected)` or `name=(value, expected, fix)`.

    What is expected can be

    - a pattern "kind axes; domains" for a tensor, such as "... queries p", "bool batch n" or "n; >= 0, some > 0". The
      kind is one of KINDS ("float" by default: all of one dtype, except under autocast) or "number", which also accepts
      a Python number or a tensor without axes. An axis has one size throughout the call, or 1 if written `#n`. `*batch`
      stands for the same leading axes throughout, and `...` for leading axes that broadcast. Each domain is one of
      DOMAINS, for all entries, or with "some" for at least one entry of each row;
    - `int`: a whole number of at least 1, which is also the size of the axis of that name;
    - a tuple of strings, for one of them; a class or a union of classes, for an instance.
    """
    known: Known = {}
    for name, (value, expected, *fix) in arguments.items():
        label = f"{where}: {name}"
        if isinstance(expected, str):
            _check_tensor(label, name, value, expected, known, *fix)
        elif expected is int:
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not whole or value < 1:
                _fail(label, f"is {value!r}", "a whole number above 0", *fix, error=ValueError if whole else TypeError)
            known[name] = value, where
        elif isinstance(expected, tuple):
            if value not in expected:
                _fail(label, f"is {value!r}", f"one of {', '.join(map(repr, expected))}", *fix)
        elif not isinstance(value, expected):
            kind = getattr(expected, "__name__", f"{expected}")
            _fail(label, f"is a {type(value).__name__}", kind, *fix, error=TypeError)


def _fail(label: str, got: str, expected: str, fix: str = "", *, error: type[Exception] = ValueError) -> NoReturn:
    raise error(f"{label} {got}, expected {expected}. {fix}".rstrip())


def _check_tensor(label: str, name: str, value: Any, pattern: str, known: Known, *fix: str) -> None:
    words, _, domains = pattern.partition("; ")
    axes = words.split()
    kind, axes = (axes[0], axes[1:]) if axes and axes[0] in KINDS else ("float", axes)
    if isinstance(value, Tensor):
        accepts, expected, conversion = KINDS[kind]
        if not accepts(value.dtype):
            _fail(label, f"is {value.dtype}", expected, conversion)
        dtype, source = known.setdefault("dtype", (value.dtype, name)) if kind == "float" else (value.dtype, name)
        if value.dtype != dtype and not torch.is_autocast_enabled(value.device.type):
            _fail(label, f"is {value.dtype}", f"{dtype} as in {source}", "Convert one, or use torch.autocast.")
        if value.ndim or kind != "number":
            _check_shape(label, name, tuple(value.shape), axes, known, *fix)
    elif kind != "number" or isinstance(value, bool) or not isinstance(value, Real):
        expected = "a number" if kind == "number" else "a Tensor: use torch.tensor"
        _fail(label, f"is a {type(value).__name__}", expected, error=TypeError)
    for domain in domains.split(", ") if domains else ():
        _check_values(label, value, domain, *fix)


def _check_shape(label: str, name: str, shape: tuple[int, ...], axes: list[str], known: Known, *fix: str) -> None:
    leading = len(axes) > 0 and axes[0][0] in "*."
    count = len(shape) - len(axes) + leading
    got, pattern = f"has shape {shape}", f"({', '.join(axes)})"
    if count < 0 or (count and not leading):
        _fail(label, got, pattern, *fix)
    sizes: tuple[Any, ...] = (shape[:count], *shape[count:]) if leading else shape
    for axis, size in zip(axes, sizes, strict=True):
        expected, source = known.setdefault(axis.lstrip("#"), (size, name))
        if size == expected or (axis[0] == "#" and size == 1):
            continue
        if axis != "..." or any(a != b and 1 not in (a, b) for a, b in zip(expected[::-1], size[::-1], strict=False)):
            rule = "broadcasts with" if axis == "..." else "="
            _fail(label, got, f"{pattern} where {axis} {rule} {expected} as in {source}", *fix)
        known[axis] = torch.broadcast_shapes(expected, size), name


def _check_values(label: str, value: Tensor | Real, domain: str, *fix: str) -> None:
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64, device="cpu")
    if not can_read(tensor):
        return
    some, (contains, expected, usual_fix) = domain.startswith("some "), DOMAINS[domain.removeprefix("some ")]
    good = contains(tensor).any(-1) if some else contains(tensor)
    if not good.all():
        bad = torch.atleast_1d(~good).nonzero().squeeze(-1).tolist()
        unit, more = "rows" if some else "entries", f" and {len(bad) - 8} more" if len(bad) > 8 else ""
        got = f"{tuple(tensor.shape)} is wrong in {unit} {bad[:8]}{more}" if tensor.ndim else f"is {value}"
        _fail(label, got, f"at least one entry in each row {expected}" if some else expected, *(fix or (usual_fix,)))
