"""The state of one rank while the event engine runs: its streams, its GPU's speed, its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import simpy

from simulator.engine.record import Recorder
from simulator.engine.speed import CONSTANT, Profile, step_factor, timed_profile
from simulator.engine.streams import Op, Segment, Stream
from simulator.faults import Factor, Resource
from simulator.program.instructions import Launch
from simulator.timeline import Lane

if TYPE_CHECKING:
    from simulator.engine.chain import Chain, Chains
    from simulator.engine.rendezvous import Meetings
    from simulator.engine.setting import Setting

#: Communication never starves compute of HBM altogether: memory controllers arbitrate.
MOST_HBM_TAKEN = 0.9

#: Products in clusters of blocks leave some SMs of a GPC idle: a pair's transfers fit in there.
FEW_SMS = 8.0


class Speeds:
    """Marks lanes whose speed may have changed, and updates each once at the end of the moment.

    A collective's end and the next one's start often fall together; so they cost one update.
    """

    def __init__(self, env: simpy.Environment):
        self._env = env
        self._changed: dict[LaneState, None] = {}

    def mark(self, lane: LaneState) -> None:
        if not self._changed:
            event = simpy.Event(self._env)
            event.callbacks.append(self._update)
            event._ok, event._value = True, None
            self._env.schedule(event, priority=2)  # type: ignore[arg-type]  # after all else at this time
        self._changed[lane] = None

    def _update(self, _: simpy.Event) -> None:
        changed, self._changed = self._changed, {}
        for lane in changed:
            lane.update_speed()


class LaneState:
    """A rank that runs. `segments`: what runs on its streams, by stream."""

    def __init__(
        self,
        env: simpy.Environment,
        setting: Setting,
        index: int,
        lane: Lane,
        recorder: Recorder,
        meetings: Meetings,
        chains: Chains,
        speeds: Speeds,
        factors: Mapping[Resource, Sequence[Factor]],
    ):
        self.env = env
        self.index = index
        self.lane = lane
        self.recorder = recorder
        self.meetings = meetings
        self.chains = chains
        self.speeds = speeds
        self.gpu_index = int(setting.gpu_of_rank[lane.rank])
        self.gpu = setting.gpus[self.gpu_index]
        self._setting = setting
        self._factors = factors
        self._profiles = {
            resource: timed_profile(factors[resource]) if factors[resource] else CONSTANT
            for resource in (Resource.SM, Resource.HBM)
        }
        self.streams = [Stream(self, i) for i in range(len(setting.scripts[0].streams))]
        self.segments: dict[int, Segment] = {}
        self.chain: Chain | None = None  # what runs ahead of the events here
        self.sms_taken = 0.0
        self.hbm_taken = 0.0
        self._step_speed = (1.0, 1.0)
        self._own = self._speed = (1.0, 1.0)
        self.stale = False  # communication has changed since the speed was worked out
        self._healthy = not factors[Resource.SM] and not factors[Resource.HBM]
        self._speeds_known: dict[tuple[float, float], tuple[float, float]] = {}
        self._foreseen: dict[tuple[object, tuple[float, float]], tuple[float, float, float]] = {}
        self._costs = setting.costs_of(self.gpu_index)
        self.step_ends: list[float] = []
        self.on_step: Callable[[int], None] | None = None
        self.progress: Callable[[int], None] | None = None
        self._last_step = -1
        self._when_finished: Callable[[], None] | None = None
        self.begin_step(0)
        self._watch_windows()

    # --------------------------------------------------------------------------------------- speed

    def _watch_windows(self) -> None:
        edges = {edge for profile in self._profiles.values() for edge in profile.starts if edge > 0}
        for edge in sorted(edges):
            self.env.timeout(edge).callbacks.append(lambda _: self.speeds.mark(self))

    def begin_step(self, step: int) -> None:
        """The GPU enters a step: the windows in steps of its faults open and close."""
        sm, hbm = self._factors[Resource.SM], self._factors[Resource.HBM]
        if sm or hbm or step == 0:
            self._step_speed = (step_factor(sm, step), step_factor(hbm, step))
            self.update_speed()

    def update_speed(self) -> None:
        """Work out the speed from the factors and the communication of the moment, and apply it."""
        own = self._own
        speed = self._refreshed()
        if speed != self._speed:
            if self.chain is not None:  # at the old speed up to here
                self._own, own = own, self._own
                self.chain.catch_up()
                self._own = own
                self.chain.land()
                speed = self._refreshed()
            self._speed = speed
            for segment in list(self.segments.values()):
                segment.speed_changed()

    def _refreshed(self) -> tuple[float, float]:
        self.stale = False
        if self._healthy:
            key = (self.sms_taken, self.hbm_taken)
            known = self._speeds_known.get(key)
            if known is None:
                known = self._speeds_known[key] = self._beside(1.0, 1.0, *key)
            return known
        now = self.env.now
        sm = self._step_speed[0] * self._profiles[Resource.SM].at(now)
        hbm = self._step_speed[1] * self._profiles[Resource.HBM].at(now)
        self._own = (sm, hbm)
        return self._beside(sm, hbm, self.sms_taken, self.hbm_taken)

    def _beside(self, sm: float, hbm: float, sms_taken: float, hbm_taken: float) -> tuple[float, float]:
        """What kernels get beside communication that takes so much.

        Products that fix one block an SM at their launch run their blocks one round after the other where some
        SMs are taken, however few (`beside_communication`: the speed that is left).
        """
        free = max(1.0, self.gpu.sms - sms_taken) / self.gpu.sms
        if sms_taken > FEW_SMS:
            free = min(free, self.gpu.constants.get("beside_communication", 1.0))
        return (sm * free, hbm * (1.0 - min(MOST_HBM_TAKEN, hbm_taken)))

    def take(self, sms: float, hbm: float) -> None:
        """Communication takes (or, negative, gives back) SMs and a part of the HBM bandwidth."""
        if sms or hbm:
            self.sms_taken += sms
            self.hbm_taken += hbm
            if not self.sms_taken:
                self.hbm_taken = 0.0 if abs(self.hbm_taken) < 1e-12 else self.hbm_taken
            self.stale = True
            if self.segments or self.chain is not None:
                self.speeds.mark(self)

    def work_s(self, op: Op) -> float:
        """Time of the op's whole work at the present speed."""
        if self.stale and not self.segments:
            self._speed = self._refreshed()
        return self._work_s(op, self._speed)

    def settle_speed(self) -> None:
        """The speed of the moment, before anything runs at it."""
        self._speed = self._refreshed()

    def foresee(self, op: Op) -> tuple[float, float, float]:
        """`lead_s` and the time of the whole work at the speed of the moment."""
        if self.stale:
            self._speed = self._refreshed()
        if not self._healthy or op.noise != 1.0 or op.scale is not None:
            return (*self.lead_s(op), self._work_s(op, self._speed))
        segment = op.item.work.segment  # type: ignore[union-attr]
        key = (segment, self._speed)
        known = self._foreseen.get(key)
        if known is None:
            cost = self._costs[segment]
            known = (cost.first_s, cost.matrix()[1] - cost.host_s, self._work_s(op, self._speed))
            self._foreseen[key] = known
        return known[0], known[1] + (op.issued_s - op.host_s), known[2]

    def work_beside(self, op: Op, sms: float, hbm: float) -> float:
        """Time of the op's whole work beside communication that takes so much more than now."""
        if self.stale:
            self._speed = self._refreshed()
        if not sms and not hbm:
            return self._work_s(op, self._speed)
        key = (self.sms_taken + sms, self.hbm_taken + hbm)
        if not self._healthy:
            return self._work_s(op, self._beside(*self._own, *key))
        speed = self._speeds_known.get(key)
        if speed is None:
            speed = self._speeds_known[key] = self._beside(1.0, 1.0, *key)
        return self._work_s(op, speed)

    def lead_s(self, op: Op) -> tuple[float, float]:
        """(first launch, launch-bound path) after the host's clock at issue; communication left out.

        What delays the host inside the run of launches beyond their own cost holds back the whole run.
        """
        work = op.item.work
        assert isinstance(work, Launch)
        cost = self._costs[work.segment]
        plain_s, lead_s, _ = cost.matrix(*self._own)
        extra_s = self._work_s(op, self._own) - plain_s if math.isfinite(plain_s) else 0.0
        delay_s = op.issued_s - op.host_s - cost.host_s
        return cost.first_s, lead_s + extra_s + delay_s

    def spent_s(self, op: Op) -> tuple[float, float]:
        """(the op's work at full speed, what faults add to it)."""
        work = op.item.work
        assert isinstance(work, Launch)
        if self._own == (1.0, 1.0) and op.noise == 1.0:
            return self._work_s(op, self._own), 0.0
        healthy_s, _, parts = self._costs[work.segment].matrix(1.0, 1.0)
        if op.scale is not None:
            healthy_s += sum(
                parts[name] * (factor - 1.0) for name, factor in op.scale.items() if name in parts
            )
        own_s = self._work_s(op, self._own)
        return healthy_s, max(0.0, own_s - healthy_s) if math.isfinite(own_s) else 0.0

    def _work_s(self, op: Op, speed: tuple[float, float]) -> float:
        work = op.item.work
        assert isinstance(work, Launch)
        cost = self._costs[work.segment]
        known = cost.remembered.get(speed)
        work_s, _, parts = cost.matrix(*speed) if known is None else known
        if op.scale is not None:
            work_s += sum(parts[name] * (factor - 1.0) for name, factor in op.scale.items() if name in parts)
        return work_s * op.noise

    # --------------------------------------------------------------------------------------- steps

    def end_step(self, step: int, now: float) -> None:
        self.step_ends.append(now)
        self.begin_step(step + 1)
        if self.on_step is not None:
            self.on_step(step + 1)
        if self.progress is not None:
            self.progress(step + 1)
        if step + 1 == self._last_step and self._when_finished is not None:
            self._when_finished()

    def when_finished(self, steps: int, call: Callable[[], None]) -> None:
        """Call when the GPU has done `steps` steps."""
        self._last_step, self._when_finished = steps, call

    def steps(self) -> np.ndarray:
        """(start, end) of each step, shape (steps, 2)."""
        ends = np.array(self.step_ends)
        return np.column_stack([np.concatenate([[0.0], ends[:-1]]), ends])

    def profile(self, resource: Resource) -> Profile:
        return timed_profile(self._factors[resource])

    def factor(self, resource: Resource, step: int) -> float:
        return step_factor(self._factors[resource], step)
