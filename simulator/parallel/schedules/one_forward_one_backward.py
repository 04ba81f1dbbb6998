"""1F1B (PipeDream-Flush; Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

    stage 0  F0 F1 F2 F3 .. .. .. B0 F4 B1 F5 B2 .. B3 .. B4 .. B5
    stage 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5

Stage s starts with min(stages - s - 1, m) forwards, then alternates one forward and one backward, then
drains. Bubble over ideal time: (p - 1) / m; in flight at stage s: min(p - s, m) micro-batches.
"""

from __future__ import annotations

from simulator.parallel.schedules.base import Action, schedule


@schedule(
    "1f1b",
    peak=lambda stage, stages, micro_batches, virtual: float(min(stages - stage, micro_batches)),
)
def one_forward_one_backward(
    stage: int, stages: int, micro_batches: int, virtual_stages: int
) -> tuple[Action, ...]:
    """The order of one stage; virtual stages are not used."""
    del virtual_stages
    warm_up = min(stages - stage - 1, micro_batches)
    actions = [Action("F", i) for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        actions += [Action("F", warm_up + i), Action("B", i)]
    actions += [Action("B", i) for i in range(micro_batches - warm_up, micro_batches)]
    return tuple(actions)
