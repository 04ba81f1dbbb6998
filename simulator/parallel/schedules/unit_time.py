"""A schedule over time with passes of one length: for drawings, bubbles and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.errors import EngineError
from simulator.parallel.schedules.base import Action, Schedule

#: A whole backward is the input's and the weights' together.
UNITS: Final = {"F": 1, "B": 2, "I": 1, "W": 1}


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """(action, start, end) of each stage, in units; all stages begin at 0 and end at `length`."""

    stages: tuple[tuple[tuple[Action, int, int], ...], ...]
    virtual_stages: int

    @property
    def length(self) -> int:
        return max(end for stage in self.stages for _, _, end in stage)

    @property
    def bubble_fraction(self) -> float:
        """Idle time over work, of the stage that works most."""
        work = max(sum(end - start for _, start, end in stage) for stage in self.stages)
        return (self.length - work) / work

    def drawing(self) -> list[str]:
        """A line a stage."""
        width = 2 + len(str(max(a.micro_batch for stage in self.stages for a, _, _ in stage)))
        width += self.virtual_stages > 1
        lines = []
        for stage in self.stages:
            cells = ["."] * self.length
            for action, start, end in stage:
                chunk = chr(ord("a") + action.chunk) if self.virtual_stages > 1 else ""
                cells[start] = f"{action.kind}{action.micro_batch}{chunk}"
                for further in range(start + 1, end):
                    cells[further] = "-"
            lines.append("".join(cell.ljust(width) for cell in cells).rstrip())
        return lines


def unit_times(plan: Schedule, stages: int, micro_batches: int, virtual_stages: int) -> UnitTimes:
    """Every action as early as its stage's order and its inputs allow. Raises EngineError for a deadlock."""
    orders = [plan.order(s, stages, micro_batches, virtual_stages) for s in range(stages)]
    last = stages * virtual_stages - 1
    done: dict[tuple[str, int, int], int] = {}
    clock = [0] * stages
    timed: list[list[tuple[Action, int, int]]] = [[] for _ in range(stages)]
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while len(timed[stage]) < len(order):
                action = order[len(timed[stage])]
                part = plan.position(stage, action.chunk, stages, virtual_stages)
                needs = _needs(action, part, last)
                if needs is not None and needs not in done:
                    break
                start = max(clock[stage], done[needs] if needs is not None else 0)
                end = clock[stage] = start + UNITS[action.kind]
                timed[stage].append((action, start, end))
                kind = {"F": "F", "W": "W"}.get(action.kind, "G")
                done[kind, part, action.micro_batch] = end
                moved = True
    for stage, order in enumerate(orders):
        if len(timed[stage]) < len(order):
            raise EngineError(f"{plan.name}: stage {stage} waits for ever at {order[len(timed[stage])]}")
    return UnitTimes(tuple(tuple(stage) for stage in timed), virtual_stages)


def _needs(action: Action, part: int, last: int) -> tuple[str, int, int] | None:
    if action.kind == "F":
        return ("F", part - 1, action.micro_batch) if part else None
    if action.kind == "W":
        return ("G", part, action.micro_batch)
    return ("F", part, action.micro_batch) if part == last else ("G", part + 1, action.micro_batch)
