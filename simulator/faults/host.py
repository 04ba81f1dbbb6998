"""Faults of hosts: stalls, garbage collection, slow processors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from simulator.draws import sample
from simulator.faults.effects import Effect, Factor, Noise, Pause, Resource
from simulator.faults.registry import Context, fault_kind, ranks_of, repeated_steps, windows_of
from simulator.spec import Distribution, Fault
from simulator.timeline import HostKind

_POSITIONS = {"start": 0.0, "forward": 0.15, "backward": 0.5, "optimizer": 0.97}


@dataclass(frozen=True, slots=True)
class _Pausing:
    """A pause of `duration` (log-normal with `cv`) in the steps asked for, `at` a point of the step.

    With a rate (Poisson, in seconds) or an interval in seconds the host stands still at those times.
    """

    duration: float = field(metadata={"dimension": "s"})
    cv: float = 0.0
    at: str = field(default="", metadata={"type": (*_POSITIONS, "random")})

    def _pauses(
        self, context: Context, fault: Fault, kind: HostKind, name: str, default_at: str
    ) -> Iterable[Effect]:
        if self.duration == 0:
            return
        ranks = ranks_of(fault.place, context)
        if fault.when.per_s is not None or fault.when.from_s is not None:
            windows = windows_of(fault.when, context, duration_s=self.duration)
            yield Factor(Resource.HOST, tuple(ranks.tolist()), windows, 0.0)
            return
        every = fault.when.every_steps or 1
        private = fault.when.phase == "private"
        phases = context.rng("phase").integers(0, every, context.ranks) if private else None
        rng = context.rng("pause")
        spread = Distribution("lognormal", self.duration, self.cv)
        at = self.at or default_at
        for rank in ranks.tolist():
            steps = repeated_steps(fault.when, context, 0 if phases is None else int(phases[rank]))
            if phases is None and fault.when.every_steps:
                steps = range(steps.start + every - 1, steps.stop, every)  # first after one period
            lengths = sample(spread, rng, (len(steps),))
            positions = rng.random(len(steps)) if at == "random" else np.full(len(steps), _POSITIONS[at])
            for step, length, position in zip(steps, lengths, positions, strict=True):
                yield Pause(rank, step, float(length), float(position), kind, name)


@fault_kind("host-stall")
@dataclass(frozen=True, slots=True)
class HostStall(_Pausing):
    """The main thread stands still for `duration` (page faults, a noisy neighbour, a slow file system)."""

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        return self._pauses(context, fault, HostKind.STALL, "host stall", "start")


@fault_kind("garbage-collection")
@dataclass(frozen=True, slots=True)
class GarbageCollection(_Pausing):
    """Python's collector runs for `duration`.

    At private phases it runs when allocations say so, anywhere in the step (`at: random`); at a common
    phase it is planned, at the start of a step.
    """

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        default = "random" if fault.when.phase == "private" else "start"
        return self._pauses(context, fault, HostKind.GARBAGE_COLLECTION, "garbage collection", default)


@fault_kind("slow-host")
@dataclass(frozen=True, slots=True)
class SlowHost:
    """The host's Python and launches run at `factor` of their speed (a power-saving governor, contention)."""

    factor: float = field(metadata={"most": 1.0})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        windows = windows_of(fault.when, context, duration_s=self.duration)
        ranks = tuple(ranks_of(fault.place, context).tolist())
        yield Factor(Resource.HOST, ranks, windows, self.factor)


@fault_kind("launch-jitter")
@dataclass(frozen=True, slots=True)
class LaunchJitter:
    """The host's time for each run of launches varies, log-normal with mean 1 and `cv` a kernel."""

    cv: float

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.cv > 0:
            ranks = tuple(ranks_of(fault.place, context).tolist())
            yield Noise(Resource.HOST, ranks, self.cv, stream=context.number)
