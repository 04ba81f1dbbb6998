"""GPipe (Huang et al. 2019, arXiv:1811.06965, section 2.3).

    stage 0  F0 F1 F2 F3 .. .. .. .. .. .. B3 B2 B1 B0
    stage 3  .. .. .. F0 F1 F2 F3 B3 B2 B1 B0

All forwards, then all backwards, the latest first. Bubble over ideal time: (p - 1) / m; in flight: m
micro-batches on every stage.
"""

from __future__ import annotations

from simulator.parallel.schedules.base import Action, schedule


@schedule("gpipe", peak=lambda stage, stages, micro_batches, virtual: float(micro_batches))
def gpipe(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage; virtual stages are not used."""
    del stage, stages, virtual_stages
    forwards = [Action("F", i) for i in range(micro_batches)]
    return (*forwards, *(Action("B", i) for i in reversed(range(micro_batches))))
