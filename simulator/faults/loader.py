"""Faults of the input pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.faults.effects import Effect, Factor, Noise, Resource
from simulator.faults.registry import Context, fault_kind, ranks_of, windows_of
from simulator.spec import Fault


@fault_kind("slow-loader")
@dataclass(frozen=True, slots=True)
class SlowLoader:
    """The dataloader's workers (or one `worker` of each rank) run at `factor` of their speed."""

    factor: float = field(metadata={"most": 1.0})
    worker: int = field(default=-1, metadata={"type": int})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        windows = windows_of(fault.when, context, duration_s=self.duration)
        ranks = tuple(ranks_of(fault.place, context).tolist())
        yield Factor(Resource.LOADER, ranks, windows, self.factor, self.worker)


@fault_kind("loader-jitter")
@dataclass(frozen=True, slots=True)
class LoaderJitter:
    """Load times vary from batch to batch beyond the scenario's own spread, log-normal with `cv`."""

    cv: float

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.cv > 0:
            ranks = tuple(ranks_of(fault.place, context).tolist())
            yield Noise(Resource.LOADER, ranks, self.cv, stream=context.number)
