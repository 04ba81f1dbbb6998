"""CUDA streams: queues whose work runs one piece at a time, in order.

Work starts when it has been issued, what is before it on its stream is done, and the events it waits
for have come. What a piece of work then does is registered by its type in `STARTERS`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from simulator.engine.script import Item
from simulator.program.instructions import Copy, Launch

if TYPE_CHECKING:
    from simulator.engine.chain import Chain
    from simulator.engine.lane import LaneState

#: PCIe copies from pageable memory go through a bounce buffer on the host: about half the rate.
#: (CUDA C++ Best Practices Guide, "Pinned Memory".)
PAGEABLE_RATE: Final = 0.5

#: Times closer than this (relative, and in seconds below one second) are one time: sums of floats differ.
SAME_TIME: Final = 1e-13

NOT_KERNELS: Final = (math.nan, math.nan, math.nan)


class Op:
    """One issue of an item. `done_s` is None until it is done; waiters are called then."""

    __slots__ = (
        "blocker", "chain", "done_s", "host_s", "issued_s", "item", "noise", "place", "ready_s", "row", "scale",
        "step",
        "waiters", "waits",
    )  # fmt: skip

    def __init__(self, item: Item, host_s: float, issued_s: float, waits: list[Op], step: int):
        self.item = item
        self.host_s = host_s  # the host's clock when it began to issue
        self.issued_s = issued_s
        self.waits = waits
        self.step = step
        self.ready_s = 0.0
        self.blocker: Op | None = None
        self.done_s: float | None = None
        self.waiters: list[Callable[[], Any]] = []
        self.row = -1
        self.chain: Chain | None = None  # whose plan it is in, and its place there
        self.place = -1
        self.noise = 1.0  # factor on the work, drawn
        self.scale: dict[str, float] | None = None  # factors on the parts that vary


class Stream:
    """One stream of one rank (or of one class of ranks)."""

    __slots__ = ("free_s", "index", "lane", "queue", "running")

    def __init__(self, lane: LaneState, index: int):
        self.lane = lane
        self.index = index
        self.queue: deque[Op] = deque()
        self.running: Op | None = None
        self.free_s = 0.0

    def push(self, op: Op) -> None:
        self.queue.append(op)
        if self.running is None and len(self.queue) == 1:
            self.advance()

    def advance(self) -> None:
        """Start the next work unless something runs or an event is missing (then it calls again)."""
        if self.running is not None or not self.queue:
            return
        op = self.queue[0]
        waits = op.waits
        while waits:
            other = waits[-1]
            if other.done_s is None:
                other.waiters.append(self.advance)
                return
            if other.done_s > op.ready_s:
                op.ready_s, op.blocker = other.done_s, other
            waits.pop()
        self.queue.popleft()
        self.running = op
        if self.free_s > op.ready_s:
            op.ready_s, op.blocker = self.free_s, None
        STARTERS[type(op.item.work)](self, op)

    def complete(
        self,
        op: Op,
        start_s: float,
        collective: int = -1,
        spent: tuple[float, float, float] = NOT_KERNELS,
    ) -> None:
        """The running work is done: record it, free the stream, call who waits.

        `spent`: how long kernels ran, what they take at full speed, what faults added.
        """
        lane = self.lane
        now = lane.env.now
        self.record(op, start_s, now, collective, spent)
        self.running = None
        if op.item.ends_step:
            lane.end_step(op.step, now)
        self.advance()
        for waiter in op.waiters:
            waiter()
        op.waiters.clear()

    def record(
        self, op: Op, start_s: float, end_s: float, collective: int, spent: tuple[float, float, float]
    ) -> None:
        """Note that work is done."""
        lane = self.lane
        op.done_s = self.free_s = end_s
        rows = lane.recorder.device
        op.row = len(rows)
        blocker = op.blocker.row if op.blocker is not None else -1
        rows.append(
            (
                *(lane.index, op.item, start_s, end_s, op.issued_s, op.ready_s),
                *(blocker, op.step, collective, *spent),
            )
        )


Starter: TypeAlias = Callable[[Stream, Op], None]
STARTERS: Final[dict[type, Starter]] = {}


def starter(work: type) -> Callable[[Starter], Starter]:
    """Register what a stream does with a type of work."""

    def register(function: Starter) -> Starter:
        STARTERS[work] = function
        return function

    return register


@starter(Launch)
def _start_segment(stream: Stream, op: Op) -> None:
    lane = stream.lane
    if lane.chain is not None:  # what it communicates would be felt here
        lane.chain.land()
    if op.item.then is None or not lane.chains.begin(stream, op):
        Segment(stream, op)


class Segment:
    """A run of kernels on its way. `left`: the part of its work still to do, in full segments.

    The work stretches when the GPU's speed changes; the path bound by launches (`floor_s`) does not.
    """

    __slots__ = ("_due_s", "_floor_s", "_mark_s", "_start_s", "_stream", "left", "op", "work_s")

    def __init__(self, stream: Stream, op: Op, begun: tuple[float, float, float, float] | None = None):
        """`begun`: (start, floor, a time since, the part left then) of a segment that is under way."""
        self._stream = stream
        self.op = op
        lane = stream.lane
        self.work_s = lane.work_s(op)  # before the segment counts as running
        self.left = 1.0
        if begun is None:
            first_s, lead_s = lane.lead_s(op)
            self._start_s = self._mark_s = max(op.ready_s, op.host_s + first_s)
            self._floor_s = op.host_s + lead_s
        else:
            self._start_s, self._floor_s, self._mark_s, self.left = begun
        self._due_s = math.inf
        lane.segments[stream.index] = self
        self._arm()

    def speed_changed(self) -> None:
        """Account for the work done at the old speed, go on at the new one."""
        lane = self._stream.lane
        work_s = lane.work_s(self.op)
        if work_s == self.work_s:
            return
        now = lane.env.now
        if self.left <= 0 or (now > self._start_s and self._mark_s + self.left * self.work_s <= now):
            return  # the kernels' own work is done: only launches hold up the end
        if now > self._mark_s:
            self.left = self._left_at(now)
            self._mark_s = now
        elif now <= self._start_s:  # it has not begun
            self._floor_s = self.op.host_s + lane.lead_s(self.op)[1]
        self.work_s = work_s
        self._arm()

    def _left_at(self, now: float) -> float:
        return max(0.0, self.left - (now - self._mark_s) / self.work_s) if self.work_s > 0 else 0.0

    def _end_s(self) -> float:
        done = self._mark_s + (self.left * self.work_s if self.left > 0 else 0.0)
        return max(done, self._floor_s)

    def _arm(self) -> None:
        end = self._end_s()
        if end < self._due_s:  # a later end is found out when the earlier timer rings
            self._due_s = end
            env = self._stream.lane.env
            env.timeout(max(0.0, end - env.now)).callbacks.append(self._ring)

    def _ring(self, _: Any) -> None:
        stream = self._stream
        if stream.lane.segments.get(stream.index) is not self:
            return
        now = stream.lane.env.now
        if self._end_s() - now <= SAME_TIME * max(1.0, now):
            del stream.lane.segments[stream.index]
            start = min(self._start_s, now)
            done = self._mark_s + (self.left * self.work_s if self.left > 0 else 0.0)
            busy = min(max(0.0, done - start), now - start)
            alone, fault = stream.lane.spent_s(self.op)
            alone = min(alone, busy)
            stream.complete(self.op, start, spent=(busy, alone, min(fault, busy - alone)))
        elif self._due_s - now <= SAME_TIME * max(1.0, now):
            self._due_s = math.inf
            self._arm()


@starter(Copy)
def _start_copy(stream: Stream, op: Op) -> None:
    lane = stream.lane
    work = op.item.work
    assert isinstance(work, Copy)
    rate = lane.gpu.pcie_bandwidth_bytes_per_s * (1.0 if work.pinned else PAGEABLE_RATE)
    start = max(op.ready_s, op.issued_s)
    end = start + work.size_bytes / rate
    timer = lane.env.timeout(max(0.0, end - lane.env.now))
    timer.callbacks.append(lambda _: stream.complete(op, start))
