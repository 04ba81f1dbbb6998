"""ZB-V (Qi et al. 2024, arXiv:2405.15362, section 3): two chunks a stage, placed as a V.

Chunk 0 of stage s is part s of the model, chunk 1 part 2 p - 1 - s: the last part stands on the first
stage, so its backward begins where it is needed soonest. In flight: the activations of p micro-batches
on every stage, as much as 1F1B's first stage. With equal passes there is no bubble but the start and the
end of a step.
"""

from __future__ import annotations

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
    """The order of one stage."""
    del virtual_stages

    def position(s: int, chunk: int) -> int:
        return v_shape(s, chunk, stages, 2)

    return greedy(stages, micro_batches, 2, lambda s: 2 * stages, position)[stage]
