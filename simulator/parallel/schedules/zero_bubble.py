"""Zero bubble schedules (Qi et al. 2023, arXiv:2401.10241): the backward is split.

I is the backward for the input, which the stage before waits for; W is the backward for the weights,
which nobody waits for, and fills what would be a bubble.

    zb-h1, stage 3 of 4   .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 I4 ...

ZB-H1 keeps the memory of 1F1B: p micro-batches on every stage. With forward, input and weight passes of
equal length T its bubble is (p - 1) T, a third of that of 1F1B.
"""

from __future__ import annotations

from simulator.parallel.schedules.base import Action, schedule
from simulator.parallel.schedules.greedy import greedy


@schedule(
    "zb-h1",
    splits_backward=True,
    overlaps_p2p=True,
    peak=lambda stage, stages, micro_batches, virtual: float(min(stages, micro_batches)),
)
def zb_h1(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage: 1F1B, with the weights' part s micro-batches late on stage s."""
    del virtual_stages
    warm_up = min(stages - stage - 1, micro_batches)
    actions = [Action("F", i) for i in range(warm_up)]
    done = 0
    for i in range(micro_batches):
        if warm_up + i < micro_batches:
            actions.append(Action("F", warm_up + i))
        actions.append(Action("I", i))
        if i >= stage:
            actions.append(Action("W", done))
            done += 1
    return (*actions, *(Action("W", i) for i in range(done, micro_batches)))


@schedule(
    "zb-h2",
    splits_backward=True,
    overlaps_p2p=True,
    peak=lambda stage, stages, micro_batches, virtual: float(min(2 * stages - 1, micro_batches)),
)
def zb_h2(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage: more forwards in flight (up to 2 p - 1), and no bubble but at the ends."""
    del virtual_stages
    return greedy(stages, micro_batches, 1, lambda s: 2 * stages - 1, lambda s, c: s)[stage]
