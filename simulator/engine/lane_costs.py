"""What each operation of a stage takes on each of its ranks, as arrays over the mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.lane_axes import Axes, Floats
from simulator.engine.setting import Setting
from simulator.engine.speed import step_factor, timed_profile
from simulator.faults import Effect, Factor, Pause, Resource
from simulator.program.instructions import Segment

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed over time: `speeds[i]` from `edges[i]` seconds on; edges[0] is 0. Arrays over the mesh."""

    edges: tuple[float, ...]
    speeds: tuple[Floats, ...]
    healthy: bool = False  # full speed everywhere, always

    def finish(self, start: Floats, work: Floats) -> Floats:
        """When `work` seconds of full-speed work begun at `start` is done."""
        if self.healthy:
            return np.asarray(start + work)
        return finish(self.edges, start, [self.alone(work, speed) for speed in self.speeds])

    def alone(self, work: Floats, speed: Floats | None = None) -> Floats:
        """Time that `work` takes at a speed, the first one unless given."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(work > 0, work / (self.speeds[0] if speed is None else speed), 0.0)


def finish(edges: Sequence[float], start: Floats, times: Sequence[Floats]) -> Floats:
    """When a whole piece of work begun at `start` is done that would take `times[i]` from `edges[i]` on."""
    if len(edges) == 1:
        return np.asarray(start + times[0])
    shape = np.broadcast_shapes(start.shape, *(time.shape for time in times))
    at = np.broadcast_to(start, shape).copy()
    left = np.ones(shape)
    end = np.full(shape, np.inf)
    for number, time in enumerate(times):
        until = edges[number + 1] if number + 1 < len(edges) else np.inf
        open_ = np.isinf(end) & (at < until)
        with np.errstate(invalid="ignore"):
            done = np.where(left > 0, at + left * time, at)
        ends = open_ & (done <= until)
        end = np.where(ends, done, end)
        goes_on = open_ & ~ends
        with np.errstate(divide="ignore", invalid="ignore"):
            spent = np.where(np.isfinite(time) & (time > 0), (until - at) / time, 0.0)
        left = np.where(goes_on, np.maximum(0.0, left - spent), left)
        at = np.where(goes_on, until, at)
    return end


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """A segment on a stage's ranks at the speed of one interval: A, B, C, first launch, varying parts.

    `ahead_s`: a host that has issued it so long before it can start holds back nothing of it.
    """

    work: Floats
    lead: Floats
    host: Floats
    first: Floats
    parts: Mapping[str, Floats]
    ahead_s: float


def _kinds(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], Ints]:
    """(the different rows, which of them each is); column by column, for rows are slow to sort."""
    code: Ints = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, place = np.unique(column, return_inverse=True)
        code = code * len(values) + place
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return rows[first], index


class StageCosts:
    """Speeds, pauses and noise of one stage's ranks. `samples`: the effects of each sample."""

    def __init__(self, setting: Setting, stage: int, axes: Axes, samples: Sequence[Sequence[Effect]]):
        self.setting = setting
        self.axes = axes
        self.stage = stage
        self.ranks: Ints = np.flatnonzero(setting.stage_of_rank == stage)
        self._samples = samples
        self._factors = {resource: self._factors_of(resource) for resource in Resource}
        self.variant = 0  # number of the state that the GPUs are in during a step
        self._variants: dict[object, int] = {}
        self._times: dict[object, dict[Segment, tuple[SegmentTimes, ...]]] = {}
        self._speeds: dict[object, tuple[tuple[float, ...], tuple[Ints, ...], Floats]] = {}

    def _factors_of(self, resource: Resource) -> list[tuple[int, Ints, Factor]]:
        """(sample, ranks within the stage, factor) of all that touch this stage."""
        found = []
        if resource is Resource.LINK:
            return []
        for sample, effects in enumerate(self._samples):
            for effect in effects:
                if isinstance(effect, Factor) and effect.resource is resource:
                    here = np.flatnonzero(np.isin(self.ranks, effect.targets))
                    if len(here):
                        found.append((sample, here, effect))
        return found

    # --------------------------------------------------------------------------------------- speeds

    def _edges(self, *resources: Resource) -> tuple[float, ...]:
        edges = {0.0}
        for resource in resources:
            for _, _, factor in self._factors[resource]:
                edges.update(x for x in timed_profile([factor]).starts)
        return tuple(sorted(edges))

    def _speed(self, resource: Resource, step: int, at_s: float, worker: int = -1) -> Floats:
        """Factor of each rank in a step and from `at_s` on, shape (samples or 1, ranks)."""
        factors = self._factors[resource]
        speed = np.ones((len(self._samples) if factors else 1, len(self.ranks)))
        for sample, here, factor in factors:
            if factor.worker in (-1, worker):
                speed[sample, here] *= step_factor([factor], step) * timed_profile([factor]).at(at_s)
        return speed

    def host_rates(self, step: int) -> Rates:
        """Speed of the hosts in a step."""
        return self._rates(Resource.HOST, step)

    def loader_rates(self, step: int, worker: int) -> Rates:
        """Speed of one dataloader worker of each rank."""
        return self._rates(Resource.LOADER, step, worker)

    def _rates(self, resource: Resource, step: int, worker: int = -1) -> Rates:
        if not self._factors[resource]:
            return Rates((0.0,), (np.ones(self.axes.ones),), healthy=True)
        edges = self._edges(resource)
        speeds = tuple(self.axes.spread(self._speed(resource, step, e, worker)) for e in edges)
        return Rates(edges, speeds)

    def begin_step(self, step: int) -> None:
        """Settle the GPUs' speeds of a step."""
        key, self._now_edges, self._now, self._table = self._gpu_speeds(step)
        self._now_times = self._times.setdefault(key, {})
        self.variant = self._variants.setdefault(key, len(self._variants))

    def _gpu_speeds(self, step: int) -> Any:
        """(key, edges, kind of GPU and speed of each rank from each edge on, the kinds' table)."""
        both = [*self._factors[Resource.SM], *self._factors[Resource.HBM]]
        key = tuple(step_factor([factor], step) for _, _, factor in both)
        if key not in self._speeds:
            edges = self._edges(Resource.SM, Resource.HBM)
            gpu = self.setting.gpu_of_rank[self.ranks]
            rows = []
            for edge in edges:
                sm = self._speed(Resource.SM, step, edge)
                hbm = self._speed(Resource.HBM, step, edge)
                sm, hbm, kind = np.broadcast_arrays(sm, hbm, gpu[None, :].astype(np.float64))
                rows.append(np.stack([kind, sm, hbm], axis=-1))
            table, index = _kinds(np.concatenate([row.reshape(-1, 3) for row in rows]))
            index = index.reshape(len(edges), *rows[0].shape[:2])
            spread = tuple(self.axes.spread(one) for one in index)
            self._speeds[key] = (edges, spread, table)
        return key, *self._speeds[key]

    def segment(self, segment: Segment) -> tuple[tuple[float, ...], tuple[SegmentTimes, ...]]:
        """(edges, the segment's times from each edge on) in the step that has begun."""
        known = self._now_times.get(segment)
        if known is None:
            known = self._now_times[segment] = self._segment(segment, self._now, self._table)
        return self._now_edges, known

    def _segment(
        self, segment: Segment, speeds: tuple[Ints, ...], table: NDArray[np.float64]
    ) -> tuple[SegmentTimes, ...]:
        rows = []
        for gpu in np.unique(table[:, 0]).astype(int).tolist():
            mine = table[:, 0] == gpu
            cost = self.setting.cost(segment, gpu)
            rows.append((mine, cost, cost.matrices(table[mine, 1], table[mine, 2])))
        work, lead, host, first = (np.empty(len(table)) for _ in range(4))
        names = {name for _, _, (_, _, parts) in rows for name in parts}
        varying = {name: np.zeros(len(table)) for name in names}
        for mine, cost, (total, longest, parts) in rows:
            work[mine], lead[mine] = total, longest
            host[mine], first[mine] = cost.host_s, cost.first_s
            for name, part in parts.items():
                varying[name][mine] = part
        ahead = float(np.maximum(first, lead - work - host).max())
        return tuple(
            SegmentTimes(
                work[index],
                lead[index],
                host[index],
                first[index],
                {name: part[index] for name, part in varying.items()},
                ahead,
            )
            for index in speeds
        )

    # --------------------------------------------------------------------------- loads, pauses

    def loads(self, step: int) -> dict[str, list[Floats]]:
        """Factors on what varies, by name and micro-batch."""
        return {
            name: [self.axes.spread(row) for row in load(step)[:, self.ranks]]
            for name, load in self.setting.loads.items()
        }

    def load_times(self, step: int) -> list[Floats]:
        """Time to load each batch of a step."""
        table = self.setting.load_times_s(step)[:, self.ranks]
        return [self.axes.spread(row) for row in table]

    def pauses(self, step: int) -> list[tuple[float, Floats, Pause]]:
        """(position, length on each rank) of the pauses in a step, in order."""
        found: dict[tuple[float, str], list[tuple[int, int, Pause]]] = {}
        number = {int(rank): i for i, rank in enumerate(self.ranks)} if any(self._samples) else {}
        for sample, effects in enumerate(self._samples):
            for effect in effects:
                if isinstance(effect, Pause) and effect.step == step and effect.rank in number:
                    key = (effect.position, effect.name)
                    found.setdefault(key, []).append((sample, number[effect.rank], effect))
        result = []
        for (position, _), entries in sorted(found.items()):
            length = np.zeros((len(self._samples), len(self.ranks)))
            for sample, rank, pause in entries:
                length[sample, rank] += pause.duration_s
            result.append((position, self.axes.spread(length), entries[0][2]))
        return result
