"""A setting without some of what makes a step slow, to be run again: what a cause is worth.

Each part of an `Ideal` takes one thing out of the programs, the costs of kernels, the collectives or the
host; nothing is scaled afterwards. With all of them, what is left are the model's FLOPs at the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from simulator.engine.script import scripts
from simulator.engine.setting import Costs, Floats, Setting
from simulator.faults import Factor, Resource, Traffic, Window
from simulator.network.activity import LATENCY_BOUND_BYTES, Activity
from simulator.network.collectives import plan
from simulator.program.cost import SegmentCost
from simulator.program.instructions import (
    Collective,
    Copy,
    Every,
    HostWork,
    Instruction,
    Programs,
    Recv,
    Role,
    Segment,
    Send,
)
from simulator.spec import Gpu
from simulator.timeline import DeviceKind, HostKind

#: process group -> the axis whose traffic it is
AXIS_OF_GROUP: Final[Mapping[str, str]] = {
    "expert-dp": "dp", "shard": "dp", "replica": "dp", "world": "dp", "model": "dp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ideal:
    """What is taken out.

    `instant`: axes whose communication takes no time (members still wait for the last); "pp" the transfers
    between stages. `bubble`: no stage waits for another. `even_stages`: each does the mean of their work.
    `even_loads`: every rank and micro-batch has the mean of the step. `contention`: collectives take
    neither links from each other nor SMs and HBM from kernels. `host`: issuing costs nothing. `copies`:
    between host and GPU. `below_roofline`: kernels take their time at the data sheet's rates. `overhead`:
    kernels take no longer than the model's FLOPs need at peak beyond being below the roofline (memory-bound
    kernels, other FLOPs). `optimizer`: takes no time.
    """

    instant: frozenset[str] = frozenset()
    bubble: bool = False
    even_stages: bool = False
    even_loads: bool = False
    contention: bool = False
    host: bool = False
    copies: bool = False
    below_roofline: bool = False
    overhead: bool = False
    optimizer: bool = False

    def __or__(self, other: Ideal) -> Ideal:
        return Ideal(**{one.name: getattr(self, one.name) | getattr(other, one.name) for one in fields(self)})


def axis_of(group: str) -> str:
    """The axis that a process group's traffic counts as."""
    return AXIS_OF_GROUP.get(group, group)


def axes(programs: Programs) -> frozenset[str]:
    """The axes along which the programs communicate."""
    found = set()
    for role in programs.roles:
        for item in role.body:
            for one in getattr(item, "instructions", (item,)):
                if isinstance(one, Collective):
                    found.add(axis_of(one.group))
                elif isinstance(one, Send):
                    found.add("pp")
    return frozenset(found)


def idealised(setting: Setting, ideal: Ideal) -> Setting:
    """The setting without what `ideal` names."""
    if ideal == Ideal():
        return setting
    changed = _Idealised(
        **{one.name: getattr(setting, one.name) for one in fields(setting) if not one.name.startswith("_")}
    )
    changed.ideal = ideal
    if ideal.instant or ideal.bubble or ideal.copies or ideal.host:
        changed.programs = _programs(setting.programs, ideal)
        changed.scripts = scripts(changed.programs)
    if ideal.host:
        changed.launch_time_s = 0.0
        changed.stack = replace(setting.stack, collective_host_s=0.0)
    if ideal.even_loads:
        changed.loads = {name: _even(load) for name, load in setting.loads.items()}
    if ideal.even_stages and len(setting.programs.roles) > 1:
        changed.effects = (*setting.effects, *_balance(changed))
    return changed


@dataclass(eq=False)
class _Idealised(Setting):
    """A setting whose kernels and collectives are cheaper."""

    ideal: Ideal = Ideal()

    @property
    def draws_data(self) -> bool:
        load = self.scenario.dataloader.load_time
        drawn = load.mean > 0 and load.cv > 0 and load.kind != "constant"
        return drawn or (bool(self.loads) and not self.ideal.even_loads)

    def costs_of(self, gpu: int) -> Costs:
        if gpu not in self._costs:
            self._costs[gpu] = _Costs(super().costs_of(gpu), self, gpu)
        return self._costs[gpu]

    def activity(self, kind: str, ranks: tuple[int, ...], size_bytes: float, algorithm: str) -> Activity:
        key = (kind, ranks, size_bytes, algorithm)
        known = self._activities.get(key)
        if known is None:
            known = self._activities[key] = self._activity(*key)
        return known

    def _activity(self, kind: str, ranks: tuple[int, ...], size_bytes: float, algorithm: str) -> Activity:
        if size_bytes == 0:
            return Activity(kind, algorithm, "none", 0.0, 0.0, np.empty(0, np.int64), np.empty(0))
        known = plan(self.fabric, kind, self.place[np.asarray(ranks)], size_bytes, algorithm=algorithm)
        if not self.ideal.contention:
            return known
        known = replace(known, sms=0.0, hbm_bytes=0.0)
        if any(
            isinstance(e, Traffic) or (isinstance(e, Factor) and e.resource is Resource.LINK)
            for e in self.effects
        ):
            return known  # links that change: what is wrong with them must be felt
        # so small that it leaves the links alone, and as slow as it is on an idle fabric
        bytes_s = known.alone_s(self.fabric.capacity_bytes_per_s) - known.latency_s
        none = np.empty(0, np.int64)
        rate = 1.0 / bytes_s if bytes_s > 0 else known.rate_cap_per_s
        return replace(
            known,
            size_bytes=min(size_bytes, LATENCY_BOUND_BYTES),
            links=none,
            bytes=np.empty(0),
            rate_cap_per_s=rate,
        )


class _Costs(Costs):
    """Costs of segments with kernels, launches or the optimizer made ideal."""

    def __init__(self, plain: Costs, setting: _Idealised, gpu: int):
        dict.__init__(self)
        self._plain, self._ideal = plain, setting.ideal
        self._on: Gpu = setting.gpus[gpu]
        self._peak = self._on.peak_flops_per_s[setting.mfu_precision]
        self._made: dict[tuple[object, ...], SegmentCost] = {}

    def __missing__(self, segment: Segment) -> SegmentCost:
        key = (segment.kind, segment.host_s, *map(id, segment.kernels))
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._price(segment)
        self[segment] = known
        return known

    def _price(self, segment: Segment) -> SegmentCost:
        cost, ideal = self._plain[segment], self._ideal
        part = self._part(segment, cost)
        launch = cost.launch_s * (0.0 if ideal.host else 1.0)
        return SegmentCost(
            compute_s=cost.compute_s * part,
            memory_s=cost.memory_s * part,
            launch_s=launch,
            host_s=0.0 if ideal.host else cost.host_s,
            varies=cost.varies,
            first_s=0.0 if ideal.host else cost.first_s,
        )

    def _part(self, segment: Segment, cost: SegmentCost) -> Floats:
        """What is left of each kernel's time, shape (kernels,)."""
        ideal, time = self._ideal, cost.durations_s()
        if segment.kind is DeviceKind.OPTIMIZER:
            return np.full(len(time), 0.0 if ideal.optimizer else 1.0)
        if not (ideal.below_roofline or ideal.overhead):
            return np.ones(len(time))
        flops = np.array([kernel.flops for kernel in segment.kernels])
        moved = np.array([kernel.bytes for kernel in segment.kernels])
        model = np.array([kernel.model_flops for kernel in segment.kernels]) / self._peak
        roofline = np.maximum(flops / self._peak, moved / self._on.memory_bandwidth_bytes_per_s)
        roofline = np.minimum(np.maximum(roofline, model), time)
        left = time.copy()
        if ideal.below_roofline:
            left -= time - roofline
        if ideal.overhead:
            left -= roofline - model
        safe = np.where(time > 0, time, 1.0)
        return np.where(time > 0, left / safe, 1.0)


def _programs(programs: Programs, ideal: Ideal) -> Programs:
    roles = tuple(replace(role, body=_body(role, ideal)) for role in programs.roles)
    return replace(programs, roles=roles)


def _body(role: Role, ideal: Ideal) -> tuple[Instruction | Every, ...]:
    changed: list[Instruction | Every] = []
    for item in role.body:
        if isinstance(item, Every):
            kept = [new for one in item.instructions if (new := _without(one, ideal)) is not None]
            changed.append(replace(item, instructions=tuple(kept)))
        elif (new := _without(item, ideal)) is not None:
            changed.append(new)
    return tuple(changed)


#: instructions that an ideal may change
_CHANGED: Final = frozenset({Send, Recv, Collective, Copy, HostWork})


def _without(one: Instruction, ideal: Ideal) -> Instruction | None:
    """The instruction as it is left; None for nothing. What waits for a missing event goes on."""
    if type(one) not in _CHANGED:
        return one
    if isinstance(one, Send | Recv):
        if ideal.bubble and one.tag.partition(" ")[0] in ("forward", "backward"):
            return None
        return replace(one, size_bytes=0.0) if "pp" in ideal.instant else one
    if isinstance(one, Collective) and axis_of(one.group) in ideal.instant:
        return replace(one, size_bytes=0.0, algorithm="auto")
    if isinstance(one, Copy) and ideal.copies:
        return replace(one, size_bytes=0.0)
    if isinstance(one, HostWork) and ideal.host and one.kind is HostKind.FRAMEWORK:
        return replace(one, duration_s=0.0)
    return one


def _even(load: Callable[[int], Floats]) -> Callable[[int], Floats]:
    def mean(step: int) -> Floats:
        drawn = load(step)
        return np.full_like(drawn, drawn.mean())

    return mean


def _balance(setting: Setting) -> list[Factor]:
    """Each stage as fast as makes its work the mean of all stages'."""
    work = []
    for script in setting.scripts:
        segments = [getattr(item.work, "segment", None) for item in script.step(0).launch_items]
        work.append(sum(setting.cost(one, 0).matrix()[0] for one in segments if one is not None))
    mean = sum(work) / len(work)
    always = (Window(0, np.inf, in_steps=True),)
    return [
        Factor(
            resource, tuple(np.flatnonzero(setting.stage_of_rank == stage).tolist()), always, seconds / mean
        )
        for stage, seconds in enumerate(work)
        for resource in (Resource.SM, Resource.HBM)
        if seconds > 0 and abs(seconds / mean - 1) > 1e-12
    ]
