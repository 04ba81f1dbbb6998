"""Chains: work whose times are known ahead, so that it costs no events.

A chain is a run of kernels and collectives on ranks that meet only each other, each piece waiting for
the one before: the layers of a micro-batch under tensor parallelism. While nobody else touches those
ranks' GPUs or those links, all its times follow from its start. It is planned at once; when something
from outside would change it (another kernel, communication beside it, a capacity, someone who waits for
a piece), it *lands*: what is over is recorded, what is under way goes on as ordinary work.
A run with chains has the times of a run without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import simpy

from simulator.engine.cast import Cast
from simulator.engine.chain_pieces import Piece, Row, Take, leave_queue, progress
from simulator.engine.flows import Flows, Route
from simulator.engine.rendezvous import Meeting, Meetings, at_arrival
from simulator.engine.script import Item
from simulator.engine.streams import NOT_KERNELS, SAME_TIME, Op, Segment, Stream
from simulator.network.collectives import Activity
from simulator.program.instructions import Collective, Launch

if TYPE_CHECKING:
    from simulator.engine.lane import LaneState

#: Fewer pieces are not worth a plan.
FEWEST: Final = 4
#: More are planned again from there: what is planned in vain when something happens stays small.
MOST: Final = 256


#: by (group, kind, size, algorithm); None where lanes take part that are not of the cell
Transfers: TypeAlias = dict[tuple[str, str, float, str], tuple[Activity, Route] | None]


class Chain:
    """A planned run of work on a cell of lanes; its last piece is never begun."""

    __slots__ = (
        "_chains",
        "_collectives",
        "_env",
        "_known",
        "_patterns",
        "_rows",
        "_stop",
        "_timer",
        "_transfers",
        "_under_way",
    )

    def __init__(self, chains: Chains, heads: list[Piece]):
        self._chains = chains
        self._env = chains.env
        self._rows = [Row(head.stream.lane, head) for head in heads]
        self._known = chains.cell(self._rows)
        self._transfers: dict[int, tuple[Activity, Route]] = {}  # by place
        self._collectives: dict[int, int] = {}  # place -> row of the collective
        self._under_way: list[tuple[Route, float]] = []  # (route, end) of the latest
        self._patterns: set[int] = set()  # of links that it has for itself
        self._timer = 0
        self._stop = 0

    # ------------------------------------------------------------------------------------ planning

    def plan(self, heads: list[Piece]) -> bool:
        """Foresee what follows the heads, which have just begun; False if it is too little."""
        item: Item | None = heads[0].op.item
        pieces = heads
        place = 0
        while item is not None:
            if not self._times(item, place, pieces):
                break
            awaited = False
            for row, piece in zip(self._rows, pieces, strict=True):
                row.add(piece)
                awaited = awaited or (bool(piece.op.waiters) and _awaited(piece.op))
            place += 1
            if place == MOST or awaited:
                break
            item = item.then
            pieces = []
            if item is not None:
                for row in self._rows:
                    following = row.next(item)
                    if following is None:
                        item = None
                        break
                    pieces.append(following)
        self._stop = place - 1
        return place >= FEWEST

    def _times(self, item: Item, place: int, pieces: list[Piece]) -> bool:
        """Work out when the pieces begin and end; False if that cannot be known."""
        work = item.work
        if isinstance(work, Launch):
            return all(row.run(piece) for row, piece in zip(self._rows, pieces, strict=True))
        assert isinstance(work, Collective)
        key = (work.group, work.kind, work.size_bytes, work.algorithm)
        if key not in self._known:
            self._known[key] = self._chains.transfer(work, self._rows)
        found = self._known[key]
        if found is None:
            return False
        activity, route = found
        if route.pattern not in self._patterns:
            if not self._chains.flows.idle(route):
                return False
            self._patterns.add(route.pattern)
        begin = -math.inf
        for piece in pieces:
            piece.begin_s = max(piece.ready_s, piece.op.issued_s)
            begin = max(begin, piece.begin_s)
        rate = self._chains.flows.alone(route)
        if rate <= 0:
            return False
        end = begin + work.size_bytes / rate + activity.latency_s
        if end == math.inf or self._shared(route, begin):
            return False
        self._under_way.append((route, end))
        for row, piece in zip(self._rows, pieces, strict=True):
            piece.done_s, piece.end_s = begin, end
            share = activity.hbm_share(rate, row.lane.gpu.memory_bandwidth_bytes_per_s)
            take = Take(piece.begin_s, begin, end, activity.sms, share)
            if row.takes:
                free = row.free.get(0, 0.0)
                row.takes = (*(take for take in row.takes if take.end_s > free), take)
            else:
                row.takes = (take,)
        self._transfers[place] = (activity, route)
        return True

    def _shared(self, route: Route, begin_s: float) -> bool:
        """Whether an earlier collective of the chain is still on links of this route then."""
        under_way = self._under_way
        if len(under_way) > 1 or (under_way and under_way[-1][1] > begin_s):
            self._under_way = [one for one in under_way if one[1] > begin_s]
            return any(self._chains.flows.meet(route, other) for other, _ in self._under_way)
        return False

    def begin(self) -> None:
        """Take the lanes and links over until the chain lands."""
        for row in self._rows:
            row.lane.chain = self
            for place, piece in enumerate(row.pieces):
                piece.op.chain, piece.op.place = self, place
                piece.stream.running = piece.op  # nothing else starts there
        self._chains.flows.claim(self, self._patterns)
        self._arm()

    def _arm(self) -> None:
        """Land before anything could start that is not planned."""
        self._timer = number = self._timer + 1
        until = min(self._until(row) for row in self._rows)

        def ring(_: Any) -> None:
            if self._timer == number:
                self.land()

        self._env.timeout(max(0.0, until - self._env.now)).callbacks.append(ring)

    def _until(self, row: Row) -> float:
        last = row.pieces[self._stop]
        if last.op.item.stream:
            for piece in reversed(row.pieces[: self._stop]):
                if not piece.op.item.stream:
                    return min(piece.end_s, last.ready_s)
        return last.ready_s

    # ------------------------------------------------------------------------------------ while it runs

    def stop_before(self, op: Op) -> None:
        """Someone waits for this piece: land when it begins."""
        if op.place < self._stop:
            self._stop = op.place
            self._arm()

    def latest(self, ops: Iterator[Op], launches: int) -> Op:
        """The first of the ops, all of one stream, up to which so many launches are over (or the last here)."""
        result = next(ops)
        launches -= result.item.launches
        while launches > 0:
            op = next(ops, None)
            if op is None or op.chain is not self:
                break
            result = op
            launches -= op.item.launches
        return result

    def catch_up(self) -> None:
        """Record what is over by now."""
        now = _nearly(self._env.now)
        for row in self._rows:
            pieces, last = row.pieces, len(row.pieces) - 1
            for place in range(row.at, last):
                piece = pieces[place]
                if piece.end_s <= now:
                    if not piece.over:
                        self._over(row.lane, piece, place)
                elif piece.ready_s > now and not piece.op.item.stream:
                    break
            while row.at < last and pieces[row.at].over:
                row.at += 1

    def _over(self, lane: LaneState, piece: Piece, place: int) -> None:
        op, stream = piece.op, piece.stream
        piece.over = True
        leave_queue(piece, place)
        op.chain = None
        for waiter in op.waiters:
            if not _is_stream(waiter):  # those go on when it lands
                waiter()
        op.waiters.clear()
        if place in self._transfers:
            stream.record(op, piece.begin_s, piece.end_s, self._collective(place), NOT_KERNELS)
            return
        busy = piece.done_s - piece.begin_s
        alone, fault = lane.spent_s(op)
        alone = min(alone, busy)
        stream.record(op, piece.begin_s, piece.end_s, -1, (busy, alone, min(fault, busy - alone)))

    def _collective(self, place: int) -> int:
        """The row of a collective that is over, made when its first member asks."""
        known = self._collectives.get(place)
        if known is None:
            activity, route = self._transfers[place]
            pieces = [row.pieces[place] for row in self._rows]
            begin, end = pieces[0].done_s, pieces[0].end_s
            known = self._collectives[place] = self._chains.meetings.record(
                pieces[0].op.item, activity, begin, end, *self._order(pieces)
            )
            self._chains.flows.log_alone(route, begin, begin + activity.size_bytes / route.rate_alone)
        return known

    def _order(self, pieces: list[Piece]) -> tuple[float, int, int]:
        """(when the first arrives, the lane that arrives last, members)."""
        first = min(piece.begin_s for piece in pieces)
        last = max(pieces, key=lambda piece: piece.begin_s).stream.lane.index
        return first, last, self._chains.members(pieces[0].op.item, self._rows[0].lane)

    # ------------------------------------------------------------------------------------ landing

    def land(self) -> None:
        """Give the lanes and links back; what is under way goes on as ordinary work."""
        self._timer += 1
        self._chains.flows.unclaim(self)
        self.catch_up()
        for row in self._rows:
            row.lane.chain = None
            for piece in row.pieces:
                piece.op.chain = None
                piece.stream.running = None
        now = _nearly(self._env.now)
        met: dict[int, list[Piece]] = {}
        for row in self._rows:
            for place, piece in self._under_way_in(row, now):
                leave_queue(piece, place)
                piece.stream.running = piece.op
                if place in self._transfers:
                    met.setdefault(place, []).append(piece)
        for place, pieces in met.items():
            self._meet(place, pieces, now)
        for row in self._rows:
            self._go_on(row)

    @staticmethod
    def _under_way_in(row: Row, now: float) -> list[tuple[int, Piece]]:
        """What a lane has begun and not ended, with its place."""
        found = []
        for place in range(row.at, len(row.pieces)):
            piece = row.pieces[place]
            if piece.ready_s > now and not piece.op.item.stream:
                break
            if piece.ready_s <= now and not piece.over:
                found.append((place, piece))
        return found

    def _go_on(self, row: Row) -> None:
        """Kernels that are under way go on; other streams see what has ended."""
        lane, now = row.lane, self._env.now
        for place in range(row.at, len(row.pieces)):
            piece = row.pieces[place]
            if piece.stream.running is piece.op and place not in self._transfers:
                lane.settle_speed()
                mark_s, left = progress(piece, now) if piece.begin_s < now else (piece.begin_s, 1.0)
                Segment(piece.stream, piece.op, (piece.begin_s, piece.floor_s, mark_s, left))
        for stream in lane.streams:
            stream.advance()

    def _meet(self, place: int, pieces: list[Piece], now: float) -> None:
        meetings = self._chains.meetings
        pieces = sorted(pieces, key=lambda piece: piece.begin_s)
        if len(pieces) == len(self._rows) and pieces[0].done_s <= now:
            activity, route = self._transfers[place]
            first, last, members = self._order(pieces)
            arrivals = [(piece.stream, piece.op, piece.begin_s) for piece in pieces]
            meetings.resume(activity, route, arrivals, (pieces[0].done_s, first), last, members)
            return
        for piece in pieces:
            if piece.begin_s <= now:
                meetings.collective(piece.stream, piece.op, piece.begin_s)
            else:
                at_arrival(piece.stream, piece.op, meetings.collective)


def _nearly(time_s: float) -> float:
    return time_s + SAME_TIME * max(1.0, time_s)


def _awaited(op: Op) -> bool:
    """Whether the host waits for it; streams that do are the chain's own."""
    return not all(map(_is_stream, op.waiters))


def _is_stream(waiter: Any) -> bool:
    return isinstance(getattr(waiter, "__self__", None), Stream)


class Chains:
    """Where chains begin. `enabled=False`: nowhere (for comparison)."""

    def __init__(
        self, env: simpy.Environment, cast: Cast, flows: Flows, meetings: Meetings, *, enabled: bool = True
    ):
        self.env = env
        self.flows = flows
        self.meetings = meetings
        self._cast = cast
        self._enabled = enabled
        self._lanes: list[LaneState] = []
        self._known: dict[frozenset[int], Transfers] = {}
        meetings.chains = self

    def know(self, lanes: list[LaneState]) -> None:
        """All lanes, by index."""
        self._lanes = lanes

    def begin(self, stream: Stream, op: Op) -> bool:
        """Plan a chain that begins with these kernels; False if none can.

        Lanes that will meet are planned together, as the last of them comes to the same kernels.
        """
        lane = stream.lane
        if not self._enabled or lane.segments or _awaited(op):
            return False
        heads = [Piece(op, stream, op.ready_s, op.blocker)]
        name = op.item.meets
        if name:
            for number in self._cast.groups[name][lane.index].lanes:
                if number != lane.index:
                    head = self._under_way(self._lanes[number], op.item)
                    if head is None:
                        return False
                    heads.append(head)
        chain = Chain(self, heads)
        if not chain.plan(heads):
            return False
        for head in heads[1:]:
            head.stream.lane.segments.clear()
        chain.begin()
        return True

    def at_meeting(self, meeting: Meeting) -> bool:
        """Plan a chain that begins with a collective whose lanes have all just arrived; False if none can."""
        arrivals = meeting.arrivals
        item = arrivals[0][1].item
        if not self._enabled or item.then is None:
            return False
        heads = []
        for stream, op, _ in arrivals:
            lane = stream.lane
            if op.item is not item or lane.segments or lane.chain is not None or _awaited(op):
                return False
            heads.append(Piece(op, stream, op.ready_s, op.blocker))
        sms = meeting.activity.sms
        for head in heads:
            head.stream.lane.take(-sms, 0.0)
        chain = Chain(self, heads)
        if chain.plan(heads):
            chain.begin()
            return True
        for head in heads:
            head.stream.lane.take(sms, 0.0)
        return False

    @staticmethod
    def _under_way(lane: LaneState, item: Item) -> Piece | None:
        """A lane's run of the same kernels, begun a moment ago and at one speed since."""
        segment = lane.segments.get(0)
        if lane.chain is not None or segment is None or len(lane.segments) > 1 or lane.stale:
            return None
        op = segment.op
        if op.item is not item or segment.left != 1.0 or _awaited(op):
            return None
        if segment.work_s != lane.work_beside(op, 0.0, 0.0):
            return None
        return Piece(op, lane.streams[0], op.ready_s, op.blocker)

    def cell(self, rows: list[Row]) -> Transfers:
        """What is known of the collectives of exactly these lanes."""
        return self._known.setdefault(frozenset(row.lane.index for row in rows), {})

    def transfer(self, work: Collective, rows: list[Row]) -> tuple[Activity, Route] | None:
        """What a collective of exactly these lanes moves, and where; None if others take part."""
        group = self._cast.groups[work.group][rows[0].lane.index]
        if set(group.lanes) != {row.lane.index for row in rows}:
            return None
        return self.meetings.plan(group, work)

    def members(self, item: Item, lane: LaneState) -> int:
        """Ranks in a lane's group of a collective."""
        work = item.work
        assert isinstance(work, Collective)
        return len(self._cast.groups[work.group][lane.index].ranks)
