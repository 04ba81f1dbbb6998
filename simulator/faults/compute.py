"""Faults of GPUs: slow clocks, slow memory, and spread between chips and between kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from simulator.faults.effects import Effect, Factor, Noise, Resource, Window
from simulator.faults.registry import Context, fault_kind, ranks_of, windows_of
from simulator.spec import Fault

ALWAYS = (Window(0, np.inf, in_steps=True),)


@fault_kind("slow-compute")
@dataclass(frozen=True, slots=True)
class SlowCompute:
    """SM clock at `factor` of its own (thermal throttling, a power limit): 0.8 is a fifth slower."""

    factor: float = field(metadata={"most": 1.0})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        windows = windows_of(fault.when, context, duration_s=self.duration)
        ranks = tuple(ranks_of(fault.place, context).tolist())
        yield Factor(Resource.SM, ranks, windows, self.factor)


@fault_kind("slow-memory")
@dataclass(frozen=True, slots=True)
class SlowMemory:
    """HBM bandwidth at `factor` of its own (row remapping, error correction, a memory clock stuck low)."""

    factor: float = field(metadata={"most": 1.0})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        windows = windows_of(fault.when, context, duration_s=self.duration)
        ranks = tuple(ranks_of(fault.place, context).tolist())
        yield Factor(Resource.HBM, ranks, windows, self.factor)


@fault_kind("silicon-spread")
@dataclass(frozen=True, slots=True)
class SiliconSpread:
    """Chips differ for good: each GPU's SM clock is drawn once, normal around 1 with `cv`, at most 3 cv off."""

    cv: float

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.cv == 0:
            return
        ranks = ranks_of(fault.place, context)
        draws = np.clip(context.rng("silicon").standard_normal(context.ranks), -3.0, 3.0)
        for rank in ranks.tolist():
            factor = float(max(0.05, 1.0 + self.cv * draws[rank]))
            yield Factor(Resource.SM, (rank,), ALWAYS, factor)


@fault_kind("kernel-jitter")
@dataclass(frozen=True, slots=True)
class KernelJitter:
    """Each kernel's time varies from launch to launch, log-normal with mean 1 and `cv`."""

    cv: float

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.cv > 0:
            ranks = tuple(ranks_of(fault.place, context).tolist())
            yield Noise(Resource.SM, ranks, self.cv, stream=context.number)
