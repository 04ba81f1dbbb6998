"""What is drawn for each launch, drawn on another core while the engine runs what was drawn before.

Every block of draws has a generator of its own (see draws.py), so it does not matter who draws when.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from simulator.engine.lane_axes import Axes, Floats
from simulator.engine.setting import Setting
from simulator.faults import Resource

#: What has noise by launch.
NOISY: Final = (Resource.SM, Resource.HOST)


class LaneNoise:
    """Factors on each launch of each stage's steps, shape (launches, 1, mesh), one step ahead."""

    def __init__(self, setting: Setting, axes: Axes):
        self._setting = setting
        self._axes = axes
        self._resources = [resource for resource in NOISY if setting.noises(resource)]
        self._stages = setting.stage_of_rank  # worked out here, not in two threads at once
        self._drawn: dict[tuple[Resource, int, int], Future[Floats | None]] = {}
        self._pool = ThreadPoolExecutor(1) if self._resources else None

    def ahead(self, step: int) -> None:
        """Begin to draw a step's, unless that has begun or there is no such step."""
        if self._pool is None or step >= self._setting.steps:
            return
        for stage, script in enumerate(self._setting.scripts):
            script.step(step)  # so that the other thread finds it made
            for resource in self._resources:
                key = (resource, stage, step)
                if key not in self._drawn:
                    self._drawn[key] = self._pool.submit(self._draw, *key)

    def take(self, resource: Resource, stage: int, step: int) -> Floats | None:
        """A stage's factors for a step, which are then forgotten; None where there is no noise."""
        if resource not in self._resources:
            return None
        found = self._drawn.pop((resource, stage, step), None)
        return self._draw(resource, stage, step) if found is None else found.result()

    def _draw(self, resource: Resource, stage: int, step: int) -> Floats | None:
        block = self._setting.segment_noise(resource, stage, step)
        return None if block is None else self._axes.arrange(block)[:, None]
