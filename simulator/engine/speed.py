"""How fast a resource runs over time, and when work on it is done."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.faults.effects import Factor


@dataclass(frozen=True, slots=True)
class Profile:
    """A piecewise constant speed: `factors[i]` holds from `starts[i]` to `starts[i + 1]`; starts[0] is 0."""

    starts: tuple[float, ...] = (0.0,)
    factors: tuple[float, ...] = (1.0,)

    def at(self, time_s: float) -> float:
        return self.factors[max(0, bisect.bisect_right(self.starts, time_s) - 1)]

    def finish(self, start_s: float, work_s: float) -> float:
        """When `work_s` seconds of full-speed work, begun at `start_s`, is done; inf if never."""
        if len(self.starts) == 1:
            factor = self.factors[0]
            return start_s + work_s if factor == 1.0 else _after(start_s, work_s, factor)
        index = max(0, bisect.bisect_right(self.starts, start_s) - 1)
        now = start_s
        while True:
            factor = self.factors[index]
            end = _after(now, work_s, factor)
            index += 1
            if index == len(self.starts) or end <= self.starts[index]:
                return end
            work_s -= (self.starts[index] - now) * factor
            now = self.starts[index]


def _after(start_s: float, work_s: float, factor: float) -> float:
    if work_s <= 0:
        return start_s
    return start_s + work_s / factor if factor > 0 else math.inf


CONSTANT = Profile()


def timed_profile(factors: Iterable[Factor]) -> Profile:
    """The product of all factors' windows in seconds (windows in steps are left out)."""
    active = [
        (window.start, window.end, factor.factor)
        for factor in factors
        for window in factor.windows
        if not window.in_steps
    ]
    if not active:
        return CONSTANT
    starts = sorted({0.0} | {edge for start, end, _ in active for edge in (start, end) if edge > 0})
    starts = [start for start in starts if math.isfinite(start)]
    speeds = tuple(
        math.prod(factor for start, end, factor in active if start <= edge < end) for edge in starts
    )
    return Profile(tuple(starts), speeds)


def step_factor(factors: Sequence[Factor], step: int) -> float:
    """The product of the factors whose windows in steps contain `step`."""
    return math.prod(
        factor.factor
        for factor in factors
        for window in factor.windows
        if window.in_steps and window.start <= step < window.end
    )
