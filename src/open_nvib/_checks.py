"""Argument checks. An error says where, which argument, what it is, what was expected, and how to fix it.

Checks of types and shapes cost microseconds and always run. Checks of values read the tensor, which torch.compile
cannot trace and torch.func.vmap forbids: there they are skipped (`can_read`).
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from open_nvib._numeric import can_read

FLOAT32 = torch.finfo(torch.float32)
RELU = "Apply a ReLU or softplus to it."

# Kind of a tensor: the test of its dtype, what is expected, and the fix.
KINDS: dict[str, tuple[Callable[[torch.dtype], bool], str, str]] = {
    "float": (lambda dtype: dtype.is_floating_point, "a floating dtype", "Convert it with .float()."),
    "bool": (lambda dtype: dtype == torch.bool, "torch.bool, True = real", "Convert it with .bool()."),
    "int": (lambda dtype: not dtype.is_floating_point and dtype != torch.bool, "whole numbers", "Use .long()."),
    "real": (lambda dtype: not dtype.is_complex, "real numbers", "Convert it with .float()."),
}

# Domain of values: the test of an entry, what is expected, and the fix.
DOMAINS: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "finite": (Tensor.isfinite, "finite", ""),
    "> 0": (lambda x: (x > 0) & x.isfinite(), "finite and above 0", "Drop rows without a pseudo-count."),
    ">= 0": (lambda x: (x >= 0) & x.isfinite(), "finite and at least 0", RELU),
    "float32 > 0": (lambda x: (x >= FLOAT32.tiny) & (x <= FLOAT32.max), "above 0 and in float32's range", ""),
    "float32 >= 0": (lambda x: (x >= 0) & (x <= FLOAT32.max), "at least 0 and in float32's range", ""),
    "0 to 1": (lambda x: (x >= 0) & (x <= 1), "from 0 to 1", ""),
    "share": (lambda x: (x >= FLOAT32.tiny) & (x <= 1), "above 0 and at most 1", ""),
    "log": (lambda x: x < torch.inf, "logarithms, -inf for a weight of 0", "Look for an overflow or a division by 0."),
    "> -inf": (lambda x: x > -torch.inf, "finite", "Keep the prior component, or drop empty sentences."),
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
    - a tuple of strings, for one of them; a class or a tuple of classes, for an instance.
    """
    known: dict[str, tuple[Any, str]] = {}  # size of an axis, or the dtype, and the argument that it comes from
    for name, (value, expected, *fix) in arguments.items():
        if isinstance(expected, str):
            _check_tensor(where, name, value, expected, known, *fix)
        elif expected is int:
            if isinstance(value, bool) or not isinstance(value, int):
                _fail(where, f"{name} is {value!r}", "a whole number such as 1", *fix, error=TypeError)
            if value < 1:
                _fail(where, f"{name} is {value}", "at least 1", *fix)
            known[name] = value, where
        elif isinstance(expected, tuple) and isinstance(expected[0], str):
            if value not in expected:
                _fail(where, f"{name} is {value!r}", f"one of {', '.join(map(repr, expected))}", *fix)
        elif not isinstance(value, expected):
            kinds = " or ".join(kind.__name__ for kind in (expected if isinstance(expected, tuple) else (expected,)))
            _fail(where, f"{name} is a {type(value).__name__}", kinds, *fix, error=TypeError)


def _fail(where: str, got: str, expected: str, fix: str = "", *, error: type[Exception] = ValueError) -> NoReturn:
    raise error(f"{where}: {got}, expected {expected}. {fix}".rstrip())


def _check_tensor(
    where: str, name: str, value: Any, pattern: str, known: dict[str, tuple[Any, str]], *fix: str
) -> None:
    words, _, domains = pattern.partition("; ")
    axes = words.split()
    kind, axes = (axes[0], axes[1:]) if axes and (axes[0] in KINDS or axes[0] == "number") else ("float", axes)
    if isinstance(value, Tensor):
        accepts, expected, conversion = KINDS["real" if kind == "number" else kind]
        if not accepts(value.dtype):
            _fail(where, f"{name} is {value.dtype}", expected, conversion)
        if kind == "float":
            dtype, source = known.setdefault("dtype", (value.dtype, name))
            if value.dtype != dtype and not torch.is_autocast_enabled(value.device.type):
                _fail(
                    where, f"{name} is {value.dtype}", f"{dtype} as in {source}", "Convert one, or use torch.autocast."
                )
        if value.ndim or kind != "number":
            _check_shape(where, name, tuple(value.shape), axes, known, *fix)
    elif kind != "number":
        _fail(where, f"{name} is a {type(value).__name__}", "a Tensor", "Use torch.tensor.", error=TypeError)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        _fail(where, f"{name} is {value!r}", "a number", *fix, error=TypeError)
    for domain in domains.split(", ") if domains else ():
        _check_values(where, name, value, domain, *fix)


def _check_shape(
    where: str, name: str, shape: tuple[int, ...], axes: list[str], known: dict[str, tuple[Any, str]], *fix: str
) -> None:
    leading = len(axes) > 0 and axes[0][0] in "*."
    count = len(shape) - len(axes) + leading
    if count < 0 or (count and not leading):
        _fail(where, f"{name} has shape {shape}", f"({', '.join(axes)})", *fix)
    for axis, size in zip(axes, (shape[:count], *shape[count:]) if leading else shape, strict=True):
        expected, source = known.setdefault(axis.lstrip("#"), (size, name))
        if size == expected or (axis[0] == "#" and size == 1):
            continue
        rule = f"{axis} = {expected} as in {source}"
        if axis == "...":
            try:
                known[axis] = torch.broadcast_shapes(expected, size), name
                continue
            except RuntimeError:
                rule = f"... that broadcasts with {expected} of {source}"
        _fail(where, f"{name} has shape {shape}", f"({', '.join(axes)}) with {rule}", *fix)


def _check_values(where: str, name: str, value: Tensor | float, domain: str, *fix: str) -> None:
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
    if not can_read(tensor):
        return
    some = domain.startswith("some ")
    contains, expected, usual_fix = DOMAINS[domain.removeprefix("some ")]
    good = contains(tensor).any(-1) if some else contains(tensor)
    if not good.all():
        bad = [position[0] if len(position) == 1 else tuple(position) for position in (~good).nonzero().tolist()]
        unit = f"row{'s' * (len(bad) > 1)}" if some else "entries"
        shown = f"{bad[:8]}" + f" and {len(bad) - 8} more" * (len(bad) > 8)
        got = f"{name} {tuple(tensor.shape)} is out of range in {unit} {shown}" if tensor.ndim else f"{name} is {value}"
        _fail(where, got, f"some entry of each row {expected}" if some else expected, *(fix or (usual_fix,)))
