"""Why the compute stream of each rank stood still: every gap taken apart by walking back through
it.

Work on a stream starts when three things have come: the host has issued it, the work before it on
the stream is done, and the events it waits for have happened. Whichever came last *held* it. From
the start of the work that ends a gap we go back to what held it, from there to what held that,
until the gap's own start; each stretch of time belongs to what was under way then. The walk takes
all gaps one link back at a time, as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis.causes import Causes
from simulator.analysis.intervals import (
    Bools,
    Floats,
    Ints,
    expand,
    last_at_or_before,
    last_before,
)
from simulator.timeline import DeviceKind, HostKind, Timeline

#: A synchronising call returns a little after the work it waited for: within this.
_SYNC_RETURN_S: Final = 50e-6
#: Times that a sum of durations gives may differ in their last bits.
_TIE: Final = 1e-12

_DATA: Final = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Stretches of the compute streams' time, each with one cause; together they cover each lane.

    `rank` indexes Timeline.ranks, `cause` Causes; `row`: the device span that ran there, or -1.
    """

    rank: Ints
    start_s: Floats
    end_s: Floats
    cause: Ints
    row: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def joined(cls, parts: list[Pieces]) -> Pieces:
        return cls(
            rank=_joined([part.rank for part in parts]),
            start_s=np.concatenate([np.empty(0), *(part.start_s for part in parts)]),
            end_s=np.concatenate([np.empty(0), *(part.end_s for part in parts)]),
            cause=_joined([part.cause for part in parts]),
            row=_joined([part.row for part in parts]),
        )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def main_streams(timeline: Timeline) -> Bools:
    """Which streams are "compute" streams, shape (streams,): by name, else the one with most
    compute.
    """
    named = np.array([name == "compute" for name in timeline.streams], dtype=np.bool_)
    if named.any() or not len(timeline.device):
        return named
    device = timeline.device
    is_compute = device.kind == DeviceKind.COMPUTE
    time = np.bincount(
        device.stream[is_compute],
        weights=(device.end_s - device.start_s)[is_compute],
        minlength=len(timeline.streams),
    )
    named[int(np.argmax(time))] = True
    return named


def pieces(timeline: Timeline, causes: Causes) -> Pieces:
    """All time of the compute streams, from the first step's start to the last's end, by cause."""
    return _Walk(timeline, causes).run()


class _Walk:
    """Working state: what has been explained so far and the gaps still open."""

    def __init__(self, timeline: Timeline, causes: Causes):
        self.timeline = timeline
        self.causes = causes
        self.device = timeline.device
        self.done: list[Pieces] = []
        streams = main_streams(timeline)
        self.is_main: Bools = streams[self.device.stream] if len(self.device) else np.empty(0, np.bool_)
        self._order_streams()
        self._order_host()
        self._communication()

    def _order_streams(self) -> None:
        device = self.device
        order = np.lexsort((device.end_s, device.start_s, device.stream, device.rank))
        same = (device.rank[order][1:] == device.rank[order][:-1]) & (
            device.stream[order][1:] == device.stream[order][:-1]
        )
        self.previous = np.full(len(device), -1, dtype=np.int64)
        self.previous[order[1:][same]] = order[:-1][same]
        side = np.flatnonzero(~self.is_main)
        self.side_by_end = side[np.lexsort((device.end_s[side], device.rank[side]))]

    def _order_host(self) -> None:
        host = self.timeline.host
        order = np.lexsort((host.start_s, host.rank))
        rank, end = host.rank[order], host.end_s[order]
        origin = np.full(len(self.timeline.ranks), -np.inf)
        reached = _running_end(rank, end, origin)[: len(order)]
        start = np.maximum(host.start_s[order], reached)  # a thread does one thing at a time
        real = end > start
        self.host_rank, self.host_kind = rank[real], host.kind[order][real]
        self.host_start, self.host_end = start[real], end[real]

    def _communication(self) -> None:
        """For every communication span, when its bytes began to move, and the causes before and
        after.
        """
        device, table = self.device, self.timeline.collectives
        self.begin = device.start_s.copy()
        known = device.collective >= 0
        self.begin[known] = table.begin_s[device.collective[known]]
        lone = ~known & np.isin(device.kind, (DeviceKind.SEND, DeviceKind.RECV))
        self.begin[lone] = self._begin_of_lone(np.flatnonzero(lone))
        self.begin = np.clip(self.begin, device.start_s, device.end_s)
        self.after = np.empty(len(device), dtype=np.int64)
        self.before = np.empty(len(device), dtype=np.int64)
        for kind in DeviceKind:
            of_kind = device.kind == kind
            self.after[of_kind] = self.causes.of_device[kind]
            self.before[of_kind] = self.causes.of_device[kind]
        axis = self.causes.axis_of_spans(self.timeline)
        data = np.isin(device.kind, _DATA)
        self.after[data] = axis[data]
        self.before[data] = self.causes.waiting
        roles = np.array([lane.role for lane in self.timeline.ranks], dtype=np.int64)
        last = np.full(len(device), -1, dtype=np.int64)
        last[known] = table.last_rank[device.collective[known]]
        elsewhere = last >= 0
        elsewhere[elsewhere] = roles[last[elsewhere]] != roles[device.rank[elsewhere]]
        stages = elsewhere | np.isin(device.kind, (DeviceKind.SEND, DeviceKind.RECV))
        self.before[data & stages] = self.causes.bubble

    def _begin_of_lone(self, rows: Ints) -> Floats:
        """Of sends and receives that no row of the collectives describes: when both sides were
        there.
        """
        device = self.device
        start, end, ready = device.start_s[rows], device.end_s[rows], device.ready_s[rows]
        ideal = device.ideal_s[rows]
        by_size = np.where(ideal > 0, end - ideal, end)  # NaN compares false
        return np.where(ready > start, ready, by_size)

    # ------------------------------------------------------------------------------------ the walk

    def run(self) -> Pieces:
        rank, low, high, row = self._busy_and_gaps()
        self._explain(rank, low, high, row)
        return Pieces.joined(self.done)

    def _emit(self, rank: Ints, start: Floats, end: Floats, cause: Ints, row: Ints | None = None) -> None:
        keep = end > start
        if keep.any():
            rows = np.full(int(keep.sum()), -1, dtype=np.int64) if row is None else row[keep]
            self.done.append(Pieces(rank[keep], start[keep], end[keep], cause[keep], rows))

    def _busy_and_gaps(self) -> tuple[Ints, Floats, Floats, Ints]:
        """Emit what ran; give the gaps: (rank, start, end, row of the span that ends it or -1)."""
        device, steps = self.device, self.timeline.steps
        lanes = len(self.timeline.ranks)
        main = np.flatnonzero(self.is_main)
        main = main[np.lexsort((device.end_s[main], device.start_s[main], device.rank[main]))]
        rank = device.rank[main]
        origin, finish = steps[:, 0, 0], steps[:, -1, 1]
        reached = _running_end(rank, device.end_s[main], origin)
        start = np.maximum(device.start_s[main], reached[:-1] if len(main) else reached)
        end = device.end_s[main]
        wait = np.isin(device.kind[main], _DATA)  # communication on the compute stream itself
        begin = np.maximum(self.begin[main], start)
        self._emit(rank[wait], start[wait], np.minimum(begin, end)[wait], self.before[main][wait])
        start_of_work = np.where(wait, begin, start)
        self._emit(rank, start_of_work, end, self.after[main], main)
        seen = np.unique(rank)
        last = np.zeros(lanes)
        np.maximum.at(last, rank, end)
        return (
            np.concatenate([rank, seen]),
            np.concatenate([reached[:-1] if len(main) else reached, np.maximum(last, origin)[seen]]),
            np.concatenate([start, finish[seen]]),
            np.concatenate([main, np.full(len(seen), -1, dtype=np.int64)]),
        )

    def _explain(self, rank: Ints, low: Floats, high: Floats, row: Ints) -> None:
        """Open gaps [low, high] before the start of span `row`: one link back at a time."""
        limit = len(self.device) + 2
        while len(rank) and limit:
            limit -= 1
            open_ = high > low
            rank, low, high, row = rank[open_], low[open_], high[open_], row[open_]
            holder, by_host = self._held_by(row, low, high)
            by_device = holder >= 0
            neither = ~by_device & ~by_host
            self._emit(
                rank[neither], low[neither], high[neither],
                np.full(int(neither.sum()), self.causes.unexplained, dtype=np.int64),
            )  # fmt: skip
            chased = self._host_held(rank[by_host], low[by_host], high[by_host], row[by_host])
            rank, low, high, row = (
                np.concatenate([mine[by_device], other])
                for mine, other in zip((rank, low, high, holder), chased, strict=True)
            )
            high = self._within(rank, low, high, row)
        if len(rank):  # spans that hold each other in a ring: not a timeline that can have happened
            self._emit(rank, low, high, np.full(len(rank), self.causes.unexplained, dtype=np.int64))

    def _held_by(self, row: Ints, low: Floats, high: Floats) -> tuple[Ints, Bools]:
        """What held span `row` until `high`: (row of a device span or -1, whether the host did)."""
        if not len(row):
            return row, np.zeros(0, dtype=np.bool_)
        device = self.device
        none = row < 0
        at = np.maximum(row, 0)
        issued = np.minimum(device.issued_s[at], high)
        ready = np.minimum(device.ready_s[at], high)
        blocker = device.blocker[at]
        blocks = (blocker >= 0) & np.isfinite(ready)
        known = np.maximum(blocker, 0)
        blocks &= (device.rank[known] == device.rank[at]) & (device.end_s[known] > low) & ~none
        previous = self.previous[at]
        before = np.where((previous >= 0) & ~self.is_main[at] & ~none,
                          device.end_s[np.maximum(previous, 0)], -np.inf)  # fmt: skip
        ready_at = np.where(blocks, ready, -np.inf)
        issued_at = np.where(np.isfinite(issued) & ~none, issued, -np.inf)
        tie = _TIE * np.maximum(1.0, np.abs(high))
        by_blocker = blocks & (ready_at >= np.maximum(before, issued_at) - tie)
        by_previous = ~by_blocker & (before > low) & (before >= issued_at - tie)
        by_host = ~by_blocker & ~by_previous & (np.isfinite(issued_at) | none)
        holder = np.where(by_blocker, blocker, np.where(by_previous, previous, -1))
        return holder, by_host

    def _within(self, rank: Ints, low: Floats, high: Floats, row: Ints) -> Floats:
        """Emit the part of [low, high] after the start of the holding span `row`; give the new
        high.
        """
        start = np.maximum(self.device.start_s[row], low)
        start = np.minimum(start, high)
        begin = np.clip(self.begin[row], start, high)
        self._emit(rank, begin, high, self.after[row])
        self._emit(rank, start, begin, self.before[row])
        return start

    # ------------------------------------------------------------------------------------ the host

    def _host_held(
        self, rank: Ints, low: Floats, high: Floats, row: Ints
    ) -> tuple[Ints, Floats, Floats, Ints]:
        """Emit what the host did in [low, high]; give what is left for spans that it waited for."""
        first = last_at_or_before(self.host_rank, self.host_start, rank, low)
        last = last_before(self.host_rank, self.host_start, rank, high)
        before = np.maximum(first - 1, 0)  # a wait that ended just as the gap began
        starts_here = np.searchsorted(self.host_rank, rank)
        owner, span = expand(np.maximum(before, starts_here), last)
        synced, waited_for = self._synchronised(rank, low, owner, span)
        low_left = np.where(waited_for >= 0, synced, low)
        start = np.maximum(self.host_start[span], low_left[owner])
        end = np.minimum(self.host_end[span], high[owner])
        cause = self.causes.of_host[self.host_kind[span]]
        after_sync = (start >= synced[owner]) & (cause == self.causes.launch)
        cause = np.where(after_sync, self.causes.sync, cause)
        self._emit(rank[owner], start, end, cause)
        self._uncovered(rank, low_left, high, row, (owner, start, end))
        chased = waited_for >= 0
        return rank[chased], low[chased], synced[chased], waited_for[chased]

    def _synchronised(self, rank: Ints, low: Floats, owner: Ints, span: Ints) -> tuple[Floats, Ints]:
        """End of the last synchronisation in each gap (inf if none) and the side span it waited
        for, or -1.
        """
        synced = np.full(len(rank), np.inf)
        waited_for = np.full(len(rank), -1, dtype=np.int64)
        is_sync = (self.host_kind[span] == HostKind.SYNC) & (self.host_end[span] >= low[owner])
        owner, span = owner[is_sync], span[is_sync]
        if not len(owner):
            return synced, waited_for
        end = self.host_end[span]
        synced[owner] = end  # spans are in order of time: the last one stays
        side = self.side_by_end
        place = last_at_or_before(self.device.rank[side], self.device.end_s[side], rank[owner], end + _TIE)
        found = side[np.maximum(place, 0)] if len(side) else np.zeros(len(owner), dtype=np.int64)
        from_ = np.maximum(np.maximum(self.host_start[span], low[owner]), end - _SYNC_RETURN_S)
        good = (place >= 0) & (self.device.end_s[found] > from_) if len(side) else place >= 0
        waited_for[owner] = np.where(good, found, -1)
        return synced, waited_for

    def _uncovered(
        self, rank: Ints, low: Floats, high: Floats, row: Ints, parts: tuple[Ints, Floats, Floats]
    ) -> None:
        """Emit the time of [low, high] in which the host's doings are not known."""
        owner, start, end = parts
        keep = end > start
        owner, start, end = owner[keep], start[keep], end[keep]
        cause = np.where(row >= 0, self.causes.launch, self.causes.unexplained)
        first = np.ones(len(owner), dtype=np.bool_)
        first[1:] = owner[1:] != owner[:-1]
        before = np.where(first, low[owner], np.concatenate([[0.0], end[:-1]]) if len(end) else end)
        self._emit(rank[owner], before, start, cause[owner])
        reached = low.copy()
        np.maximum.at(reached, owner, end)
        self._emit(rank, reached, high, cause)


def _running_end(rank: Ints, end: Floats, origin: Floats) -> Floats:
    """How far each rank has come before each span (and, as last entry, after all), shape (n + 1,).

    Spans are sorted by rank and start; before a rank's first span it has come to its `origin`.
    """
    reached = np.empty(len(rank) + 1)
    if not len(rank):
        return reached[:0]
    edges = np.flatnonzero(np.diff(rank)) + 1
    starts = np.concatenate([[0], edges])
    reached[1:] = end
    overlapping = (end[:-1] > end[1:]) & (rank[:-1] == rank[1:])
    if overlapping.any():
        for low, high in zip(starts, np.concatenate([edges, [len(rank)]]), strict=True):
            reached[low + 1 : high + 1] = np.maximum.accumulate(end[low:high])
    reached[starts] = origin[rank[starts]]
    return reached
