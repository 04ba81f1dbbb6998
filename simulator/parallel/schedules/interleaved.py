"""Interleaved 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), as Megatron-LM orders it.

Each stage holds v chunks of the model; chunk c of stage s is part c p + s. Micro-batches go in groups of
p through the first chunk, then through the second, and so on:

    stage 0, p = 2, v = 2   F0a F1a F0b F1b F2a F3a ...   (a: chunk 0, b: chunk 1)

Stage s warms up with 2 (p - s - 1) + (v - 1) p chunks, then alternates. Bubble over ideal time:
(p - 1) / (v m). In flight on stage s: at most 2 (p - s - 1) + (v - 1) p + 1 chunks, each 1 / v of a stage.
"""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.parallel.schedules.base import Action, schedule


def _peak(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> float:
    warm_up = 2 * (stages - stage - 1) + (virtual_stages - 1) * stages
    return min(warm_up + 1, micro_batches * virtual_stages) / virtual_stages


@schedule("interleaved-1f1b", overlaps_p2p=True, peak=_peak)
def interleaved(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage; micro-batches must fill groups of p, else stages would wait in a circle."""
    if micro_batches % stages:
        raise SpecError.of(
            "parallelism.schedule",
            f"interleaved-1f1b: {micro_batches} micro-batches are not a multiple of pp ({stages})",
        )
    order = _turns(stages, micro_batches, virtual_stages)
    total = len(order)
    warm_up = min(2 * (stages - stage - 1) + (virtual_stages - 1) * stages, total)
    forwards = [Action("F", micro_batch, chunk) for micro_batch, chunk in order]
    backwards = [Action("B", i, virtual_stages - 1 - chunk) for i, chunk in order]
    actions = forwards[:warm_up]
    for i in range(total - warm_up):
        actions += [forwards[warm_up + i], backwards[i]]
    return (*actions, *backwards[total - warm_up :])


def _turns(stages: int, micro_batches: int, virtual_stages: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order of the forwards."""
    return [
        (micro_batch, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(virtual_stages)
        for micro_batch in range(first, first + stages)
    ]
