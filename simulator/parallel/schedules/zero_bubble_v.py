"""ZB-V (Qi et al. 2024, arXiv:2405.15362, section 3): two chunks a stage, placed as a V.

Chunk 0 of stage s is part s of the model, chunk 1 part 2 p - 1 - s: the last part stands on the first
stage, so its backward begins where it is needed soonest. In flight: the activations of p micro-batches
on every stage, as much as 1F1B's first stage. With equal passes and at least 2 p - 1 micro-batches a stage
has no bubble between its first pass and its last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from simulator.parallel.schedules.base import Action, schedule
from simulator.parallel.schedules.greedy import greedy


def v_shape(stage: int, chunk: int, stages: int, virtual_stages: int) -> int:
    """Chunk 0 goes down the stages, chunk 1 back up."""
    del virtual_stages
    return stage if chunk == 0 else 2 * stages - 1 - stage


@schedule(
    "zb-v",
    position=v_shape,
    splits_backward=True,
    overlaps_p2p=True,
    virtual_stages=2,
    peak=lambda stage, stages, micro_batches, virtual: float(min(stages, micro_batches)),
)
def zb_v(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage; by list scheduling where there are fewer than 2 p - 1 micro-batches."""
    del virtual_stages
    if micro_batches < 2 * stages - 1:
        return greedy(stages, micro_batches, 2, lambda s: 2 * stages, lambda s, c: v_shape(s, c, stages, 2))[
            stage
        ]
    one = _Stage(micro_batches)
    for _ in range(2 * (stages - stage) - 1):  # until the first micro-batch comes back up
        one.act("F", 0)
    for _ in range(stage):
        one.act("F", 1)
        one.act("F", 0)
    for _ in range(stages - stage):
        one.act("F", 1)
        one.backward(1)
    while one.count["F", 1] < one.most:
        one.act("F", 0)
        one.backward(0)
        one.act("F", 1)
        one.backward(1)
    for _ in range(stage):  # weights wait from here on, to fill what would be a bubble
        one.act("I", 0)
        one.act("I", 1)
    for _ in range(stages - stage):
        one.act("I", 0)
        one.act("W", 0)
    for chunk in (1, 0):
        while one.count["W", chunk] < one.most:
            one.act("W", chunk)
    return tuple(one.actions)


@dataclass(slots=True)
class _Stage:
    """What one stage does: each kind of pass on each chunk takes its micro-batches in order, up to `most`."""

    most: int
    actions: list[Action] = field(default_factory=list)
    count: dict[tuple[str, int], int] = field(
        default_factory=lambda: dict.fromkeys(product("FIW", (0, 1)), 0)
    )

    def act(self, kind: Literal["F", "I", "W"], chunk: int) -> None:
        number = self.count[kind, chunk]
        if number < self.most:
            self.count[kind, chunk] += 1
            self.actions.append(Action(kind, number, chunk))

    def backward(self, chunk: int) -> None:
        self.act("I", chunk)
        self.act("W", chunk)
