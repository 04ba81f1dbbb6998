"""The host thread of a rank: issues its program, step after step, as far ahead of the GPU as it may."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from simulator.engine.lane import LaneState
from simulator.engine.loader import Loader
from simulator.engine.script import Item, Script, StepScript
from simulator.engine.setting import Setting
from simulator.engine.speed import CONSTANT
from simulator.engine.streams import Op
from simulator.errors import EngineError
from simulator.faults import Pause, Resource
from simulator.program.instructions import HostWait, HostWork, Launch, NextBatch
from simulator.timeline import HostKind


class Host:
    """`now_s` is the host's own clock: it may be ahead of the simulation's, for nothing it issues acts before."""

    def __init__(
        self,
        setting: Setting,
        lane: LaneState,
        script: Script,
        loader: Loader,
        pauses: Mapping[int, Sequence[Pause]],
    ):
        self._setting = setting
        self._lane = lane
        self._script = script
        self._loader = loader
        self._pauses = pauses
        self._profile = lane.profile(Resource.HOST)
        self._costs = setting.costs_of(lane.gpu_index)
        self._collective_host_s = setting.stack.collective_host_s
        self._limit = setting.scenario.software.launch_queue
        self._queued: list[deque[Op]] = [deque() for _ in lane.streams]
        self._length = [0] * len(lane.streams)  # launches in each queue
        self._events: dict[str, Op] = {}
        self._held: dict[int, list[str]] = {}  # waits left over from the step before, by stream
        self._since_s = 0.0  # start of the present run of launches
        self._factor = 1.0
        self.now_s = 0.0

    def run(self) -> Generator[Any, Any, None]:
        """The SimPy process."""
        for step in range(self._setting.steps):
            self._factor = self._lane.factor(Resource.HOST, step)
            script = self._script.step(step)
            due = list(self._pauses.get(step, ()))
            noise = self._draws(step)
            place, count = 0, max(1, len(script.operations))
            for place, operation in enumerate(script.operations):
                while due and due[0].position <= place / count:
                    self._pause(due.pop(0), step)
                match operation:
                    case Item():
                        yield from self._issue(operation, step, noise, script.quiet[place])
                    case HostWork(duration_s, name, kind):
                        self._work(duration_s, kind, name, step)
                    case HostWait(event, name):
                        yield from self._wait(event, name, step)
                    case NextBatch():
                        self._next_batch(step)
            for pause in due:
                self._pause(pause, step)
            self._hold(script)
        self._close(self._setting.steps - 1)

    # ------------------------------------------------------------------------------- instructions

    def _issue(
        self, item: Item, step: int, noise: Mapping[Resource, Any], quiet: int
    ) -> Generator[Any, Any, None]:
        lane = self._lane
        if self._length[item.stream] + item.launches > self._limit:
            queue = self._queued[item.stream]
            while queue and self._length[item.stream] + item.launches > self._limit:
                oldest = queue[0]
                if oldest.done_s is None:
                    yield from self._until_done(oldest, item.stream, quiet)
                queue.popleft()
                self._length[item.stream] -= oldest.item.launches
                if oldest.done_s > self.now_s:  # type: ignore[operator]
                    self._block(oldest.done_s, HostKind.QUEUE_FULL, "launch queue full", step)  # type: ignore[arg-type]
        start = self.now_s
        cost = self._cost_s(item)
        if noise:
            cost *= self._noise(noise, Resource.HOST, item)
        self.now_s = self._after(cost)
        op = Op(item, start, self.now_s, self._waits(item), step)
        if noise:
            op.noise = self._noise(noise, Resource.SM, item)
        if self._setting.loads:
            op.scale = self._scale(item, step)
        for event in item.records:
            self._events[event] = op
        self._queued[item.stream].append(op)
        self._length[item.stream] += item.launches
        lane.streams[item.stream].push(op)

    def _until_done(self, oldest: Op, stream: int, quiet: int) -> Generator[Any, Any, None]:
        """The queue is full until `oldest` is done.

        While a chain runs, what the host would issue next queues up behind it: so it may sleep on until
        there is room to issue something else, and catch up then.
        """
        target, chain = oldest, oldest.chain
        if chain is not None:
            chain.catch_up()
            if oldest.done_s is not None:
                return
            if stream == 0:
                room = self._length[0] + quiet - self._limit
                target = chain.latest(iter(self._queued[0]), room)
            chain.stop_before(target)
        done = self._lane.env.event()
        target.waiters.append(done.succeed)
        yield done

    def _waits(self, item: Item) -> list[Op]:
        names = item.waits
        if item.stream in self._held:
            names = (*self._held.pop(item.stream), *names)
        events = self._events
        return [events[name] for name in names if name in events]

    def _wait(self, event: str, name: str, step: int) -> Generator[Any, Any, None]:
        op = self._events.get(event)
        if op is None:
            return
        if op.done_s is None:
            done = self._lane.env.event()
            op.waiters.append(done.succeed)
            yield done
        assert op.done_s is not None
        if op.done_s > self.now_s:
            self._block(op.done_s, HostKind.SYNC, name, step)

    def _work(self, duration_s: float, kind: HostKind, name: str, step: int) -> None:
        self._block(self._after(duration_s), kind, name, step)

    def _pause(self, pause: Pause, step: int) -> None:
        self._block(self.now_s + pause.duration_s, pause.kind, pause.name, step)

    def _next_batch(self, step: int) -> None:
        ready = self._loader.next(self.now_s)
        if math.isinf(ready):
            raise EngineError(f"rank {self._lane.lane.rank}: a dataloader worker never delivers its batch")
        self._block(ready, HostKind.LOADER, "wait for the dataloader", step)

    # ------------------------------------------------------------------------------------- clock

    def _after(self, work_s: float) -> float:
        if self._factor == 1.0 and self._profile is CONSTANT:
            return self.now_s + work_s
        if self._factor <= 0:
            raise EngineError(f"rank {self._lane.lane.rank}: its host stands still for whole steps")
        return self._profile.finish(self.now_s, work_s / self._factor)

    def _block(self, until_s: float, kind: HostKind, name: str, step: int) -> None:
        """The host did something else than launching until `until_s`."""
        if until_s <= self.now_s:
            return
        self._close(step)
        self._lane.recorder.host.append((self._lane.index, self.now_s, until_s, kind, name, step))
        self.now_s = self._since_s = until_s

    def _close(self, step: int) -> None:
        """End the present run of launches."""
        if self.now_s > self._since_s:
            row = (self._lane.index, self._since_s, self.now_s, HostKind.LAUNCH, "launch", step)
            self._lane.recorder.host.append(row)
        self._since_s = self.now_s

    def _hold(self, script: StepScript) -> None:
        for stream, event in script.trailing:
            self._held.setdefault(stream, []).append(event)

    # -------------------------------------------------------------------------------------- draws

    def _cost_s(self, item: Item) -> float:
        work = item.work
        if isinstance(work, Launch):
            return self._costs[work.segment].host_s
        return self._collective_host_s

    def _draws(self, step: int) -> dict[Resource, Any]:
        rank = self._lane.lane.rank
        drawn = {
            resource: self._setting.noise_of_rank(resource, rank, step)
            for resource in (Resource.SM, Resource.HOST)
        }
        return drawn if any(block is not None for block in drawn.values()) else {}

    @staticmethod
    def _noise(noise: Mapping[Resource, Any], resource: Resource, item: Item) -> float:
        factors = noise[resource]
        return 1.0 if factors is None or item.launch < 0 else float(factors[item.launch])

    def _scale(self, item: Item, step: int) -> dict[str, float] | None:
        work = item.work
        loads = self._setting.loads
        if not loads or not isinstance(work, Launch) or work.micro_batch < 0:
            return None
        rank = self._lane.lane.rank
        return {name: float(load(step)[work.micro_batch, rank]) for name, load in loads.items()}
