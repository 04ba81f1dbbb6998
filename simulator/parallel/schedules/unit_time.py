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
        width += (self.virtual_stages > 1) + 2 * any(a.beside for stage in self.stages for a, _, _ in stage)
        lines = []
        for stage in self.stages:
            cells = ["."] * self.length
            inside = False
            for action, start, end in stage:
                chunk = chr(ord("a") + action.chunk) if self.virtual_stages > 1 else ""
                cells[start] = f"{action.kind}{action.micro_batch}{chunk}"
                for further in range(start + 1, end):
                    cells[further] = "-"
                if action.beside and not inside:
                    cells[start] = "[" + cells[start]
                elif inside and not action.beside:
                    cells[end - 1] += "]"
                inside = action.beside
            lines.append("".join(cell.ljust(width) for cell in cells).rstrip())
        return lines


def unit_times(plan: Schedule, stages: int, micro_batches: int, virtual_stages: int) -> UnitTimes:
    """Every action as early as its stage's order and its inputs allow. Raises EngineError for a deadlock.

    Two actions side by side begin when both may, and take as long as one after the other.
    """
    orders = [plan.order(s, stages, micro_batches, virtual_stages) for s in range(stages)]
    done: dict[tuple[str, int, int], int] = {}
    clock = [0] * stages
    timed: list[list[tuple[Action, int, int]]] = [[] for _ in range(stages)]

    def place(stage: int, action: Action) -> int:
        return plan.position(stage, action.chunk, stages, virtual_stages)

    def needs(stage: int, action: Action) -> tuple[str, int, int] | None:
        part = place(stage, action)
        return _needs(action, part, plan.neighbours(part, stages, virtual_stages))

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while len(timed[stage]) < len(order):
                together = _together(order, len(timed[stage]))
                inputs = [one for one in (needs(stage, action) for action in together) if one is not None]
                if any(one not in done for one in inputs):
                    break
                start = max([clock[stage], *(done[one] for one in inputs)])
                end = start + sum(UNITS[action.kind] for action in together)
                for action in together:
                    ends = start + UNITS[action.kind]
                    timed[stage].append((action, start, ends))
                    start = ends
                    kind = {"F": "F", "W": "W"}.get(action.kind, "G")
                    done[kind, place(stage, action), action.micro_batch] = end
                clock[stage] = end
                moved = True
    for stage, order in enumerate(orders):
        if len(timed[stage]) < len(order):
            raise EngineError(f"{plan.name}: stage {stage} waits for ever at {order[len(timed[stage])]}")
    return UnitTimes(tuple(tuple(stage) for stage in timed), virtual_stages)


def _together(order: tuple[Action, ...], first: int) -> tuple[Action, ...]:
    """An action and those that run side by side with it."""
    last = first
    while order[last].beside and last + 1 < len(order):
        last += 1
    return order[first : last + 1]


def _needs(
    action: Action, part: int, neighbours: tuple[int | None, int | None]
) -> tuple[str, int, int] | None:
    before, after = neighbours
    if action.kind == "F":
        return ("F", before, action.micro_batch) if before is not None else None
    if action.kind == "W":
        return ("G", part, action.micro_batch)
    return ("F", part, action.micro_batch) if after is None else ("G", after, action.micro_batch)
