"""Where ranks meet: collectives, and sends with their receives.

A collective starts when the last member has arrived; until then (and while it moves bytes) it holds
SMs on every rank that is there, for its kernel spins. Members match by order: the n-th collective that
a rank issues in a group is the n-th of every other member.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from simulator.engine.cast import Cast, Group
from simulator.engine.flows import Flows, Route
from simulator.engine.record import Recorder
from simulator.engine.script import Item
from simulator.engine.streams import Op, Stream, starter
from simulator.network.collectives import Activity
from simulator.program.instructions import Collective, Recv, Send

if TYPE_CHECKING:
    from simulator.engine.chain import Chains
    from simulator.engine.lane import LaneState


class Meeting:
    """One instance of a collective (or of a send with its receive): who is there, and what it moves."""

    __slots__ = (
        "activity",
        "arrivals",
        "begin_s",
        "first_s",
        "hbm",
        "last",
        "needed",
        "route",
        "size",
        "size_bytes",
    )

    def __init__(self, activity: Activity, route: Route, needed: int, size: int):
        self.activity = activity
        self.route = route
        self.size_bytes = activity.size_bytes
        self.needed = needed  # lanes that must arrive; folded, fewer than the members
        self.size = size
        self.arrivals: list[tuple[Stream, Op, float]] = []
        self.first_s = self.begin_s = 0.0
        self.last = -1
        self.hbm: list[float] = []


class Meetings:
    """All meetings under way."""

    chains: Chains  # set by them

    def __init__(self, cast: Cast, flows: Flows, recorder: Recorder):
        self._cast = cast
        self._flows = flows
        self._recorder = recorder
        self._open: dict[tuple[Any, ...], Meeting] = {}
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._ideals: dict[int, float] = {}
        self._plans: dict[tuple[Any, ...], tuple[Activity, Route]] = {}

    def collective(self, stream: Stream, op: Op, arrived_s: float | None = None) -> None:
        """A rank has arrived at a collective, now or (found out late) at `arrived_s`."""
        work = op.item.work
        assert isinstance(work, Collective)
        lane = stream.lane.index
        group = self._cast.groups[work.group][lane]
        turn = (work.group, lane)
        count = self._counts[turn]
        self._counts[turn] = count + 1
        key = (work.group, group.number, count)
        meeting = self._open.get(key)
        if meeting is None:
            activity, route = self.plan(group, work)
            meeting = self._open[key] = Meeting(activity, route, len(group.lanes), len(group.ranks))
        self._arrive(key, meeting, stream, op, arrived_s)

    def plan(self, group: Group, work: Collective) -> tuple[Activity, Route]:
        """What a collective of a group moves, and where."""
        return self._plan(work.kind, group.name, group.ranks, work.size_bytes, work.algorithm)

    def resume(
        self,
        activity: Activity,
        route: Route,
        arrivals: list[tuple[Stream, Op, float]],
        times_s: tuple[float, float],
        last: int,
        members: int,
    ) -> None:
        """Go on with a collective that began on idle links; `times_s`: its begin and first arrival."""
        meeting = Meeting(activity, route, len(arrivals), members)
        meeting.arrivals, meeting.last = arrivals, last
        meeting.begin_s, meeting.first_s = times_s
        for stream, _, _ in arrivals:
            stream.lane.take(activity.sms, 0.0)
        self._start(meeting)

    def record(
        self,
        item: Item,
        activity: Activity,
        begin_s: float,
        end_s: float,
        first_s: float,
        last: int,
        size: int,
    ) -> int:
        """Note a collective that is over; its row."""
        rows = self._recorder.collectives
        rows.append((item, begin_s, end_s, self._ideal(activity), first_s, last, size))
        return len(rows) - 1

    def transfer(self, stream: Stream, op: Op) -> None:
        """One end of a send or receive has arrived."""
        work = op.item.work
        assert isinstance(work, Send | Recv)
        lane = stream.lane.index
        peer = self._cast.peer(lane, work.peer)
        ends = (lane, peer) if isinstance(work, Send) else (peer, lane)
        turn = (type(work), lane, peer, work.tag)
        count = self._counts[turn]
        self._counts[turn] = count + 1
        key = ("send", *ends, work.tag, count)
        meeting = self._open.get(key)
        if meeting is None:
            ranks = (self._cast.lanes[ends[0]].rank, self._cast.lanes[ends[1]].rank)
            roles = (self._cast.lanes[ends[0]].role, self._cast.lanes[ends[1]].role)
            name = f"send {roles[0]}-{roles[1]}"
            activity, route = self._plan("send-recv", name, ranks, work.size_bytes, "auto")
            meeting = self._open[key] = Meeting(activity, route, 2, 2)
        self._arrive(key, meeting, stream, op)

    def waiting(self) -> list[str]:
        """Who waits for whom, for a report of a deadlock."""
        return [
            f"{meeting.arrivals[0][1].item.name}: {len(meeting.arrivals)} of {meeting.needed} arrived, "
            f"first rank {meeting.arrivals[0][0].lane.lane.rank}"
            for meeting in self._open.values()
        ]

    # ------------------------------------------------------------------------------------ inside

    def _plan(
        self, kind: str, name: str, ranks: tuple[int, ...], size_bytes: float, algorithm: str
    ) -> tuple[Activity, Route]:
        key = (kind, ranks, size_bytes, algorithm)
        known = self._plans.get(key)
        if known is None:
            activity = self._cast.setting.activity(kind, ranks, size_bytes, algorithm)
            known = self._plans[key] = (
                activity,
                self._flows.route(activity, *self._cast.wire(activity, name, ranks[0])),
            )
        return known

    def _ideal(self, activity: Activity) -> float:
        known = self._ideals.get(id(activity))
        if known is None:
            capacity = self._cast.setting.fabric.capacity_bytes_per_s
            known = self._ideals[id(activity)] = activity.alone_s(capacity)
        return known

    def _arrive(
        self,
        key: tuple[Any, ...],
        meeting: Meeting,
        stream: Stream,
        op: Op,
        arrived_s: float | None = None,
    ) -> None:
        now = stream.lane.env.now if arrived_s is None else arrived_s
        if not meeting.arrivals:
            meeting.first_s = now
        meeting.arrivals.append((stream, op, now))
        meeting.last = stream.lane.index
        stream.lane.take(meeting.activity.sms, 0.0)
        if len(meeting.arrivals) < meeting.needed:
            return
        del self._open[key]
        meeting.begin_s = now
        if not self.chains.at_meeting(meeting):
            self._start(meeting)

    def _start(self, meeting: Meeting) -> None:
        meeting.hbm = [0.0] * meeting.needed
        self._flows.start(
            meeting.route,
            meeting.size_bytes,
            meeting.activity.latency_s,
            lambda: self._done(meeting),
            (lambda rate: self._moving(meeting, rate)) if meeting.activity.hbm_bytes else None,
            begun_s=meeting.begin_s,
        )

    def _moving(self, meeting: Meeting, rate: float) -> None:
        """The transfer's rate has changed: it takes another part of each member's HBM bandwidth."""
        for i, (stream, _, _) in enumerate(meeting.arrivals):
            share = meeting.activity.hbm_share(rate, stream.lane.gpu.memory_bandwidth_bytes_per_s)
            stream.lane.take(0.0, share - meeting.hbm[i])
            meeting.hbm[i] = share

    def _done(self, meeting: Meeting) -> None:
        item = meeting.arrivals[0][1].item
        end = meeting.arrivals[0][0].lane.env.now
        row = self.record(
            *(item, meeting.activity, meeting.begin_s, end, meeting.first_s, meeting.last, meeting.size)
        )
        for i, (stream, _, _) in enumerate(meeting.arrivals):
            stream.lane.take(-meeting.activity.sms, -meeting.hbm[i])
        for stream, op, arrived in meeting.arrivals:
            stream.complete(op, arrived, row)


def at_arrival(stream: Stream, op: Op, then: Any) -> None:
    """Call `then` when the work's kernel starts: now, or when the host has issued it."""
    lane: LaneState = stream.lane
    arrival = max(op.ready_s, op.issued_s)
    if arrival <= lane.env.now:
        then(stream, op)
    else:
        lane.env.timeout(arrival - lane.env.now).callbacks.append(lambda _: then(stream, op))


@starter(Collective)
def _start_collective(stream: Stream, op: Op) -> None:
    at_arrival(stream, op, stream.lane.meetings.collective)


@starter(Send)
def _start_send(stream: Stream, op: Op) -> None:
    at_arrival(stream, op, stream.lane.meetings.transfer)


@starter(Recv)
def _start_recv(stream: Stream, op: Op) -> None:
    at_arrival(stream, op, stream.lane.meetings.transfer)
