"""Numbers that change while a model trains: ramps for Δ and for the weights of the KL."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["linear", "cyclical"]


@dataclass(frozen=True)
class Schedule:
    """A number that depends on the step.

    >>> Schedule(0.0, 1.0, from_step=100, to_step=300).at(200)
    0.5

    Args:
        kind: "linear" goes from `start` to `end` between two steps and is constant outside; "cyclical" repeats such a
            ramp over the first half of every `period` steps and stays at `end` over the second half.
        start: the value before the ramp.
        end: the value after it.
        from_step: where the (first) ramp begins.
        to_step: where the ramp of "linear" ends.
        period: length of a cycle of "cyclical".
    """

    start: float
    end: float
    kind: Kind = "linear"
    from_step: int = 0
    to_step: int = 1000
    period: int = 1000

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"schedule: kind is {self.kind!r}, expected one of {get_args(Kind)}.")
        for name in ("start", "end", "from_step", "to_step", "period"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not abs(value) < math.inf:
                raise ValueError(f"schedule: {name} is {value!r}, expected a finite number.")
        if self.kind == "linear" and self.to_step <= self.from_step:
            raise ValueError(f"schedule: to_step = {self.to_step}, expected more than from_step = {self.from_step}.")
        if self.kind == "cyclical" and self.period < 2:
            raise ValueError(f"schedule: period = {self.period}, expected at least 2 steps.")

    def at(self, step: int) -> float:
        """Return the value at a step."""
        if self.kind == "linear":
            done = (step - self.from_step) / (self.to_step - self.from_step)
        else:
            done = 2 * ((step - self.from_step) % self.period) / self.period if step >= self.from_step else 0.0
        return self.start + (self.end - self.start) * min(1.0, max(0.0, done))
