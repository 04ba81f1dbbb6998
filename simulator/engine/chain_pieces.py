"""What a chain foresees of each lane: when its kernels and collectives begin and end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simulator.engine.script import Item
from simulator.engine.streams import Op, Stream

if TYPE_CHECKING:
    from simulator.engine.lane import LaneState


class Piece:
    """One lane's part in one piece of a chain.

    `begin_s`: when kernels start, or the lane arrives at the collective; `done_s`: when the kernels' own
    work is done, or the transfer begins; `floor_s`: the earliest end that launches allow.
    """

    __slots__ = (
        "begin_s", "blocker", "done_s", "end_s", "floor_s", "op", "over", "phases", "ready_s", "stream",
    )  # fmt: skip

    def __init__(self, op: Op, stream: Stream, ready_s: float, blocker: Op | None):
        self.op = op
        self.stream = stream
        self.ready_s = ready_s
        self.blocker = blocker
        self.over = False
        self.phases: tuple[tuple[float, float], ...] = ()  # (until, time of the whole work at its speed)
        self.begin_s = self.done_s = self.end_s = self.floor_s = ready_s


class Row:
    """A lane's pieces, in the order in which its host issues them."""

    __slots__ = ("at", "ends", "free", "lane", "pieces", "queues", "takes")

    def __init__(self, lane: LaneState, head: Piece):
        self.lane = lane
        self.pieces: list[Piece] = []
        self.at = 0  # the first piece that is not over
        self.ends: dict[Op, float] = {}
        self.free: dict[int, float] = {}  # by stream
        self.queues: dict[int, Iterator[Op]] = {head.stream.index: iter(head.stream.queue)}
        self.takes: tuple[Take, ...] = ()  # those that later kernels may run beside

    def next(self, item: Item) -> Piece | None:
        """The lane's piece of an item; None if it is not issued yet or waits for something unknown."""
        number = item.stream
        stream = self.lane.streams[number]
        queue = self.queues.get(number)
        if queue is None:
            if stream.running is not None:
                return None
            queue = self.queues[number] = iter(stream.queue)
        op = next(queue, None)
        if op is None or op.item is not item:
            return None
        ready, blocker = op.ready_s, op.blocker
        for other in reversed(op.waits):
            done = other.done_s
            if done is None:
                done = self.ends.get(other)
                if done is None:
                    return None
            if done > ready:
                ready, blocker = done, other
        free = self.free.get(number, stream.free_s)
        if free > ready:
            ready, blocker = free, None
        return Piece(op, stream, ready, blocker)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.ends[piece.op] = piece.end_s
        self.free[piece.op.item.stream] = piece.end_s

    def run(self, piece: Piece) -> bool:
        """When the piece's kernels start and end, beside the chain's own collectives; False if never."""
        lane, op = self.lane, piece.op
        first_s, lead_s, work_s = lane.foresee(op)
        start = op.host_s + first_s
        piece.begin_s = start = start if start > piece.ready_s else piece.ready_s
        piece.floor_s = floor = op.host_s + lead_s
        takes = self.takes
        if takes and takes[-1].end_s <= start:  # most often the only one
            takes = self.takes = tuple(take for take in takes if take.end_s > start)
        if takes:
            piece.phases = tuple(
                (until, lane.work_beside(op, sms, hbm)) for until, sms, hbm in phases(takes, start)
            )
            done = progress(piece, math.inf)[0]
        else:
            piece.phases = ((math.inf, work_s),)
            done = start + work_s
        piece.done_s = done
        piece.end_s = done if done > floor else floor
        return piece.end_s < math.inf


def progress(piece: Piece, until_s: float) -> tuple[float, float]:
    """(when the kernels' own work is done, or `until_s`; the part left then)."""
    now, left = piece.begin_s, 1.0
    for until, work in piece.phases:
        if until <= now:
            continue
        edge = min(until, until_s)
        if now + left * work <= edge:
            return now + left * work, 0.0
        left, now = left - (edge - now) / work, edge
        if now >= until_s:
            break
    return now, left


class Take:
    """What a collective takes from the kernels beside it on one lane: SMs once it is there, then HBM too."""

    __slots__ = ("arrival_s", "begin_s", "end_s", "hbm", "sms")

    def __init__(self, arrival_s: float, begin_s: float, end_s: float, sms: float, hbm: float):
        self.arrival_s = arrival_s
        self.begin_s = begin_s
        self.end_s = end_s
        self.sms = sms
        self.hbm = hbm


def phases(takes: tuple[Take, ...], start_s: float) -> Iterator[tuple[float, float, float]]:
    """(until, SMs, part of the HBM bandwidth) that the takes add up to, from a time on."""
    if len(takes) == 1 and takes[0].begin_s <= start_s < takes[0].end_s:
        yield takes[0].end_s, takes[0].sms, takes[0].hbm
        yield math.inf, 0.0, 0.0
        return
    edges = {edge for take in takes for edge in (take.arrival_s, take.begin_s, take.end_s)}
    since = start_s
    for until in (*sorted(edge for edge in edges if edge > start_s), math.inf):
        yield (
            until,
            sum(take.sms for take in takes if take.arrival_s <= since < take.end_s),
            sum(take.hbm for take in takes if take.begin_s <= since < take.end_s),
        )
        since = until


def leave_queue(piece: Piece, place: int) -> None:
    """The piece leaves its stream's queue; the first of a chain has left before."""
    if place:
        op = piece.stream.queue.popleft()
        assert op is piece.op
        op.ready_s, op.blocker = piece.ready_s, piece.blocker
        op.waits.clear()
