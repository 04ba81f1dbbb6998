"""Faults of the network: slow NICs, degraded and flapping links, traffic of others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from simulator.errors import SpecError
from simulator.faults.effects import Effect, Factor, Resource, Traffic, Window
from simulator.faults.registry import Context, fault_kind, links_of, windows_of
from simulator.spec import Fault


@dataclass(frozen=True, slots=True)
class _SlowLinks:
    factor: float = field(metadata={"most": 1.0})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.factor == 1.0:
            return
        windows = windows_of(fault.when, context, duration_s=self.duration)
        yield Factor(Resource.LINK, tuple(links_of(fault.place, context).tolist()), windows, self.factor)


@fault_kind("slow-nic")
@dataclass(frozen=True, slots=True)
class SlowNic(_SlowLinks):
    """A NIC carries `factor` of its line rate in both directions (a port negotiated down, PCIe at half width)."""


@fault_kind("degraded-link")
@dataclass(frozen=True, slots=True)
class DegradedLink(_SlowLinks):
    """Links named by `link` carry `factor` of their capacity (errors and retransmission)."""


@fault_kind("flapping-link")
@dataclass(frozen=True, slots=True)
class FlappingLink:
    """Links go down for `down` in every `period` (to `factor` of their capacity), from the fault's start on."""

    period: float = field(metadata={"dimension": "s"})
    down: float = field(metadata={"dimension": "s"})
    factor: float = field(default=0.0, metadata={"most": 1.0})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.down == 0 or self.factor == 1.0:
            return
        if self.down >= self.period:
            raise SpecError.of("down", f"{self.down} s: expected less than the period ({self.period} s)")
        start = fault.when.from_s or 0.0
        end = fault.when.to_s if fault.when.to_s is not None else np.inf
        count = int(min(5000, np.ceil((end - start) / self.period)))
        windows = tuple(
            Window(begin, min(begin + self.down, end))
            for begin in (start + self.period * np.arange(count)).tolist()
        )
        yield Factor(Resource.LINK, tuple(links_of(fault.place, context).tolist()), windows, self.factor)


@fault_kind("background-traffic")
@dataclass(frozen=True, slots=True)
class BackgroundTraffic:
    """Other jobs send `bandwidth` over each of the links, as far as max-min sharing lets them."""

    bandwidth: float = field(metadata={"dimension": "bytes_per_s"})
    duration: float = field(default=0.0, metadata={"dimension": "s"})

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]:
        if self.bandwidth == 0:
            return
        windows = windows_of(fault.when, context, duration_s=self.duration)
        for link in links_of(fault.place, context).tolist():
            yield Traffic((link,), self.bandwidth, windows)
