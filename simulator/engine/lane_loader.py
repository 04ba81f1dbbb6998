"""The dataloader's recurrence (see loader.py) over arrays."""

from __future__ import annotations

import numpy as np

from simulator.engine.lane_axes import Floats
from simulator.engine.lane_costs import Rates, StageCosts
from simulator.engine.lane_record import LaneRecorder
from simulator.engine.setting import Setting


class LaneLoader:
    """The workers of all ranks of a stage."""

    def __init__(self, setting: Setting, costs: StageCosts, recorder: LaneRecorder | None = None):
        config = setting.scenario.dataloader
        self._workers = config.workers
        self._depth = config.workers * config.prefetch_factor
        self._per_step = setting.programs.batches(costs.stage)
        self._costs = costs
        self._recorder = recorder
        self._batch = 0
        self._loaded: dict[int, Floats] = {}
        self._asked: dict[int, Floats] = {}
        self._times: tuple[int, list[Floats]] = (-1, [])
        self._rates: dict[tuple[int, int], Rates] = {}

    def next(self, now: Floats, step: int) -> Floats:
        """When each host, asking at `now`, holds its next batch."""
        del step
        batch = self._batch
        self._batch += 1
        zero = np.zeros(self._costs.axes.ones)
        if not self._workers:
            return self._load(0, batch, now)
        start = self._asked.pop(batch, zero)
        if batch >= self._workers:
            start = np.maximum(start, self._loaded.pop(batch - self._workers))
        loaded = self._load(batch % self._workers, batch, start)
        self._loaded[batch] = loaded
        delivered = np.maximum(now, loaded)
        self._asked[batch + self._depth] = delivered
        return delivered

    def _load(self, worker: int, batch: int, start: Floats) -> Floats:
        step, number = divmod(batch, self._per_step)
        if self._times[0] != step:
            self._times = (step, self._costs.load_times(step))
        key = (step, worker)
        if key not in self._rates:
            self._rates[key] = self._costs.loader_rates(step, worker)
        end = self._rates[key].finish(start, self._times[1][number])
        if self._recorder is not None:
            self._recorder.load(self._costs.stage, worker, batch, start, end)
        return end
