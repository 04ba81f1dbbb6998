"""The lanes engine: a program with fixed durations as a max-plus recurrence over arrays.

Every clock is an array over the mesh (and over samples); a collective along an axis is a maximum along
that axis, a pipeline send an element-wise maximum between stages. An axis along which nothing differs
has length 1. Durations of collectives, and what they take from kernels beside them, come from a run of
the event engine on the folded cluster without private noise (see calm.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from simulator.engine.block import Block
from simulator.engine.calm import Calm
from simulator.engine.lane_axes import Axes, Floats, greatest
from simulator.engine.lane_block import Blocks, Issued
from simulator.engine.lane_costs import Rates, StageCosts, finish
from simulator.engine.lane_loader import LaneLoader
from simulator.engine.lane_noise import LaneNoise
from simulator.engine.lane_op import Done, Op, Queued
from simulator.engine.lane_record import LaneRecorder
from simulator.engine.script import Item, StepScript
from simulator.engine.setting import Setting
from simulator.engine.streams import PAGEABLE_RATE
from simulator.engine.tape import Node, build_tape
from simulator.faults import Effect, Resource
from simulator.parallel.mesh import GROUPS
from simulator.program.instructions import Copy, HostWait, HostWork, Launch, NextBatch
from simulator.timeline import HostKind

#: Numbers that the clocks of a block may hold, to stay in the cache; and pieces it has at least.
_CACHED: Final = 2**16
_FEWEST_PIECES: Final = 8


@dataclass(slots=True)
class StepResult:
    """When each stage's GPUs ended a step: one array over the mesh a stage."""

    ends: list[Floats]


#: Tapes of each setting, by the pieces of a block and the scripts: draws of one scenario share them.
_TAPES: WeakKeyDictionary[Setting, dict[tuple[int, ...], tuple[Node, ...]]] = WeakKeyDictionary()


class Stage:
    """The clocks of one stage's ranks."""

    def __init__(self, engine: Lanes, number: int):
        setting = engine.setting
        self.number = number
        self.all_noise = engine.noise
        self.costs = StageCosts(setting, number, engine.axes, engine.samples)
        self.host = np.zeros(engine.axes.ones)
        self.last: dict[int, Done] = {}
        self.events: dict[str, Done] = {}
        self.held: dict[int, list[Done]] = {}
        self.queues: list[deque[Queued]] = [deque() for _ in setting.scripts[0].streams]
        self.issued = self.waited = 0  # pieces of work of the first stream that left the host, or its queue
        self.covered: deque[tuple[int, Queued]] = deque()  # over before the piece so numbered begins
        self.lengths = [0] * len(self.queues)
        self.loader = LaneLoader(setting, self.costs, engine.recorder)
        self.gpu = setting.gpus[int(setting.gpu_of_rank[self.costs.ranks[0]])]

    def begin_step(self, script: StepScript, step: int) -> None:
        costs = self.costs
        costs.begin_step(step)
        self.script = script
        self.rates: Rates = costs.host_rates(step)
        self.step = step
        self._noise: dict[Resource, Floats | None] = {}
        self.loads = costs.loads(step)
        self.pauses = deque(costs.pauses(step))
        self.operations = max(1, len(script.operations))

    def wait_for(self, stream: int) -> Floats | None:
        """The oldest work leaves a stream's queue: when it ends, None where that is past for the host."""
        oldest = self.queues[stream].popleft()
        self.lengths[stream] -= oldest.launches
        if stream == 0:
            self.waited += 1
            while self.covered and self.covered[0][0] < self.waited:
                self.covered.popleft()[1].release()
        return oldest.end

    def put(self, stream: int, launches: int) -> Queued:
        """Work joins a stream's queue."""
        queued = Queued(launches)
        self.queues[stream].append(queued)
        self.lengths[stream] += launches
        if stream == 0:
            self.issued += 1
        return queued

    def noise(self, resource: Resource) -> Floats | None:
        """Factors on each launch of the step that has begun, waited for when first asked for."""
        if resource not in self._noise:
            self._noise[resource] = self.all_noise.take(resource, self.number, self.step)
        return self._noise[resource]

    def varied(self, launch: Launch, work: Floats, parts: Mapping[str, Floats]) -> Floats:
        """A segment's work with what varies between micro-batches and ranks."""
        if launch.micro_batch >= 0:
            for name, load in self.loads.items():
                if name in parts:
                    work = work + parts[name] * (load[launch.micro_batch] - 1.0)
        return work


class Lanes:
    """A run. `samples`: effects of each sample of the leading axis; () the setting's own, one sample.

    `noise`: of the setting, where it is being drawn already.
    """

    def __init__(
        self,
        setting: Setting,
        calm: Calm,
        recorder: LaneRecorder | None = None,
        samples: Sequence[Sequence[Effect]] = (),
        noise: LaneNoise | None = None,
    ):
        self.setting = setting
        self.calm = calm
        self.axes = Axes(setting.mesh)
        self.samples = samples or (setting.effects,)
        self.recorder = recorder
        self.noise = noise or LaneNoise(setting, self.axes)
        self.limit = setting.scenario.software.launch_queue
        self.spanning = frozenset(name for name, axes in GROUPS.items() if "pp" in axes)
        self.stages = [Stage(self, stage) for stage in range(len(setting.scripts))]
        self._tapes = _TAPES.setdefault(setting, {})
        self._most = max(_FEWEST_PIECES, _CACHED // (len(self.samples) * math.prod(self.axes.sizes)))
        self._blocks = Blocks(self)
        self.rest = np.zeros(self.axes.ones)
        self.collective_host = np.full(self.axes.ones, setting.stack.collective_host_s)

    def step(self, step: int) -> StepResult:
        """Run one step of all stages; steps go in order."""
        scripts = [script.step(step) for script in self.setting.scripts]
        for stage, script in zip(self.stages, scripts, strict=True):
            stage.begin_step(script, step)
        self.noise.ahead(step)
        self.noise.ahead(step + 1)
        issued: dict[Node, Op] = {}
        blocks: dict[Node, list[Op] | Issued] = {}
        for node in self._tape(scripts):
            stage, operation = self.stages[node.stage], node.operation
            if node.stage < 0:
                self._meet(
                    [issued.pop(one) for one in node.parties], [one.stage for one in node.parties], step
                )
            elif isinstance(operation, Block):
                if node.issues is not None:
                    blocks[node.issues] = self._blocks.issue(stage, operation, step)
                else:
                    self._blocks.run(stage, operation, blocks.pop(node), step)
            elif isinstance(operation, Item):
                self._item(stage, node, operation, issued, step)
            else:
                self._host(stage, node, step)
        for stage in self.stages:
            while stage.pauses:
                self._pause(stage, step)
            for stream, event in stage.script.trailing:
                if event in stage.events:
                    stage.held.setdefault(stream, []).append(stage.events[event])
        return StepResult([stage.last[0].end for stage in self.stages])

    def _tape(self, scripts: Sequence[StepScript]) -> tuple[Node, ...]:
        key = (self._most, *map(id, scripts))
        if key not in self._tapes:
            self._tapes[key] = build_tape(scripts, self.spanning, self.limit, self._most)
        return self._tapes[key]

    # ----------------------------------------------------------------------------------------- host

    def _pause(self, stage: Stage, step: int) -> None:
        _, length, pause = stage.pauses.popleft()
        self._block(stage, stage.host + length, pause.kind, pause.name, step)

    def _block(self, stage: Stage, until: Floats, kind: HostKind, name: str, step: int) -> None:
        until = np.maximum(stage.host, until)
        if self.recorder is not None:
            self.recorder.host(stage.number, stage.host, until, kind, name, step)
        stage.host = until

    def _due(self, stage: Stage, place: int, step: int) -> None:
        while stage.pauses and stage.pauses[0][0] <= place / stage.operations:
            self._pause(stage, step)

    def _host(self, stage: Stage, node: Node, step: int) -> None:
        self._due(stage, node.place, step)
        match node.operation:
            case HostWork(duration_s, name, kind):
                work = np.full(self.axes.ones, duration_s)
                self._block(stage, stage.rates.finish(stage.host, work), kind, name, step)
            case HostWait(event, name):
                if event in stage.events:
                    self._block(stage, stage.events[event].end, HostKind.SYNC, name, step)
            case NextBatch():
                ready = stage.loader.next(stage.host, step)
                self._block(stage, ready, HostKind.LOADER, "wait for the dataloader", step)

    def issue(self, stage: Stage, place: int, item: Item, step: int) -> Op:
        """The host issues one piece of work, the operation numbered `place` of its step."""
        self._due(stage, place, step)
        queue, launches = stage.queues[item.stream], item.launches
        while queue and stage.lengths[item.stream] + launches > self.limit:
            until = stage.wait_for(item.stream)
            if until is not None:
                self._block(stage, until, HostKind.QUEUE_FULL, "launch queue full", step)
        start = stage.host
        if isinstance(item.work, Launch):
            _, times = stage.costs.segment(item.work.segment)
            cost = times[0].host
            noise = stage.noise(Resource.HOST)
            if noise is not None:
                cost = cost * noise[item.launch]
            stage.host = stage.rates.finish(start, cost)
        else:
            stage.host = stage.rates.finish(start, self.collective_host)
        waits = [stage.events[name] for name in item.waits if name in stage.events]
        if stage.held:
            waits = stage.held.pop(item.stream, []) + waits
        queued = stage.put(item.stream, launches)
        op = Op(item, start, stage.host, stage.last.get(item.stream), waits, queued)
        for event in item.records:
            stage.events[event] = op
        stage.last[item.stream] = op
        return op

    # --------------------------------------------------------------------------------------- device

    def _item(self, stage: Stage, node: Node, item: Item, issued: dict[Node, Op], step: int) -> None:
        if node.issues is not None:
            issued[node.issues] = self.issue(stage, node.place, item, step)
        elif node.meeting is not None:
            self._arrive(issued[node])
        else:
            self.run(stage, issued.pop(node), step)

    def run(self, stage: Stage, op: Op, step: int) -> None:
        """The device does one piece of work that meets no other stage."""
        self._arrive(op)
        work = op.item.work
        if isinstance(work, Launch):
            self._segment(stage, op, step)
        elif isinstance(work, Copy):
            rate = stage.gpu.pcie_bandwidth_bytes_per_s * (1.0 if work.pinned else PAGEABLE_RATE)
            op.end = op.start + work.size_bytes / rate
        else:
            self._meet([op], [stage.number], step)
            return
        if self.recorder is not None:
            self.recorder.device(stage.number, op, step)
        op.settle()

    def _arrive(self, op: Op) -> None:
        """What holds the work back is over, and the host has issued it."""
        ready = op.previous.end if op.previous is not None else self.rest
        for wait in op.waits:
            ready = np.maximum(ready, wait.end)
        op.ready = ready
        if not isinstance(op.item.work, Launch):
            op.arrival = op.start = np.maximum(ready, op.issued)

    def _segment(self, stage: Stage, op: Op, step: int) -> None:
        item = op.item
        assert isinstance(item.work, Launch)
        edges, times = stage.costs.segment(item.work.segment)
        noise = stage.noise(Resource.SM)
        factor = None if noise is None else noise[item.launch]
        extra = self.calm.extra(item, stage.number, step)
        op.start = np.maximum(op.ready, op.host + times[0].first)
        if len(times) == 1 and factor is None and extra is None and not stage.loads:
            op.busy = times[0].work
            floor = op.host + times[0].lead + (op.issued - op.host - times[0].host)
            op.end = np.maximum(op.start + op.busy, floor)
            return
        works, leads = [], []
        for one in times:
            work = stage.varied(item.work, one.work, one.parts)
            if factor is not None:
                work = work * factor
            beyond = work - one.work
            leads.append(one.lead + beyond)
            works.append(work if extra is None else work + extra)
        lead = _at(edges, op.start, leads)
        floor = op.host + lead + (op.issued - op.host - times[0].host)
        done = finish(edges, op.start, works)
        op.busy = done - op.start
        op.end = np.maximum(done, floor)

    def _meet(self, ops: list[Op], stages: list[int], step: int) -> None:
        """All parties have arrived: the transfer begins with the last and takes its time."""
        begin: Floats | None = None
        for op in ops:
            arrival = greatest(op.arrival, self.axes.of_item(op.item))
            begin = arrival if begin is None else np.maximum(begin, arrival)
        assert begin is not None
        met: dict[int, int] = {}
        for op, stage in zip(ops, stages, strict=True):
            duration = self.calm.duration(ops[0].item, stages[0], step)
            op.begin = begin
            op.end = begin + duration
            if self.recorder is not None:
                self.recorder.device(stage, op, step, met)
            op.settle()


def _at(edges: Sequence[float], time: Floats, values: Sequence[Floats]) -> Floats:
    """The value in force at a time."""
    result = values[0]
    for edge, value in zip(edges[1:], values[1:], strict=True):
        result = np.where(time >= edge, value, result)
    return result


#: builds the samples' effects, used by studies of many draws
Sampler = Callable[[int], Sequence[Effect]]
