"""Argument checks. An error says where, which argument, what it is, what was expected, and how to fix it.

Checks of types and shapes cost microseconds and always run. Checks of values read the tensor, which torch.compile
cannot trace and torch.func.vmap forbids: there they are skipped (`can_read`).
"""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from open_nvib._tensors import can_read

FLOAT32 = torch.finfo(torch.float32)
Known = dict[str, tuple[Any, str]]  # size of an axis, or the dtype, and the argument that it comes from

# Kind of a tensor: the test of its dtype, what is expected, and the fix.
KINDS: dict[str, tuple[Callable[[torch.dtype], bool], str, str]] = {
    "float": (lambda dtype: dtype.is_floating_point, "a floating dtype", "Convert it with .float()."),
    "bool": (lambda dtype: dtype == torch.bool, "torch.bool, True = real", "Convert it with .bool()."),
    "int": (lambda dtype: not dtype.is_floating_point and dtype != torch.bool, "whole numbers", "Use .long()."),
    "real": (lambda dtype: not dtype.is_complex, "real numbers", "Use .real."),
    "number": (lambda dtype: not dtype.is_complex, "real numbers", "Use .real."),
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
