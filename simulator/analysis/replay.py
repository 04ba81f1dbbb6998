"""A trace run again on its own dependency graph: unchanged, it gives its own times; changed, what causes cost.

A device span starts when its launch was called, the span before it on the stream has ended, and, where
neither tells why it began so late, the span of another stream that ended just before; a collective ends
when the last member has come and the bytes have moved. A call of the host follows the one before by what
the host did between; one that waits returns when the work issued before it is done. What no edge explains
stays as a delay. The idea is dPRO's (arXiv:2205.02473).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis import causes
from simulator.analysis.host_gaps import ORDER, covered_between
from simulator.analysis.intervals import Floats, Ints, last_at_or_before, union
from simulator.timeline import DeviceKind, HostKind, Timeline

#: a start that its launch and stream do not explain within this waited for something else
_UNEXPLAINED_S: Final = 20e-6

_CALLS: Final = (HostKind.LAUNCH, HostKind.SYNC)


@dataclass(frozen=True, slots=True)
class Change:
    """What is different: causes whose time the host does not spend, device rows that take no time, and
    whether calls of the host and members of collectives wait.
    """

    host: tuple[str, ...] = ()
    instant: Ints | None = None
    syncs: bool = True
    waits: bool = True


class Replay:
    """The graph of one timeline, made once and run as often as wanted."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        device, host = timeline.device, timeline.host
        calls = np.flatnonzero(np.isin(host.kind, _CALLS))
        self.calls = calls[np.lexsort((host.start_s[calls], host.rank[calls]))]
        self.called_s = host.start_s[self.calls]
        rank = host.rank[self.calls]
        self.before = np.arange(len(calls)) - 1
        self.before[np.diff(rank, prepend=-1) != 0] = -1
        place = np.full(len(host) + 1, -1, dtype=np.int64)
        place[self.calls] = np.arange(len(calls))
        self.launch = place[device.launch]
        self._device_edges()
        self._host_edges(rank)
        # in order of start; at ties calls first, then shorter spans
        when = np.concatenate([self.called_s, device.start_s])
        ends = np.concatenate([self.called_s, device.end_s])
        sort = np.repeat([0, 1], [len(calls), len(device)])
        self.order = np.lexsort((ends, sort, when)).tolist()

    def _device_edges(self) -> None:
        """What each span follows: its stream's span before, or another stream's that ended just before."""
        device, met = self.timeline.device, self.timeline.collectives
        count = len(device)
        lane = device.rank * max(1, len(self.timeline.streams)) + device.stream
        order = np.lexsort((device.end_s, device.start_s, lane))
        self.previous = np.full(count, -1, dtype=np.int64)
        follows = lane[order][1:] == lane[order][:-1]
        self.previous[order[1:][follows]] = order[:-1][follows]
        at = np.maximum(device.collective, 0)
        self.shared = np.zeros(count, dtype=np.bool_)
        self.apart = np.zeros(count)  # how long before the meeting's end a member's kernel ended
        if len(met):  # members that were not traced may have come last
            self.shared = (device.collective >= 0) & (met.last_rank[at] >= 0) & (met.group_size[at] > 1)
            self.apart = np.where(self.shared, met.end_s[at] - device.end_s, 0.0)
        launched = np.where(self.launch >= 0, self._of_call(self.called_s, self.launch), -np.inf)
        before = np.where(self.previous >= 0, device.end_s[np.maximum(self.previous, 0)], -np.inf)
        known = np.maximum(launched, before)
        by_end = np.lexsort((device.end_s, device.rank))
        place = last_at_or_before(device.rank[by_end], device.end_s[by_end], device.rank, device.start_s)
        near = by_end[np.maximum(place, 0)]
        late = (device.start_s - known > _UNEXPLAINED_S) & (place >= 0) & (device.end_s[near] > known)
        self.blocker = np.where(late & (near != np.arange(count)), near, -1)
        by_other, by_launch = self.blocker >= 0, launched >= before
        held = np.where(by_other, device.end_s[near], known)
        self.delay = device.start_s - np.where(np.isfinite(held), held, 0.0)
        # what held a span last keeps its delay; the other edges get none of it
        early = np.minimum(0.0, self.delay)
        self.lags = (
            np.where(by_launch & ~by_other, self.delay, early),
            np.where(~by_launch & ~by_other, self.delay, early),
            np.where(by_other, self.delay, early),
        )

    def _of_call(self, values: Floats, call: Ints) -> Floats:
        return values[np.maximum(call, 0)] if len(values) else np.zeros(len(call))

    def _host_edges(self, rank: Ints) -> None:
        """What each call waits for, from when the host went on, and what it did until the next call."""
        device, host = self.timeline.device, self.timeline.host
        returned = host.end_s[self.calls]
        by_end = np.lexsort((device.end_s, device.rank))
        place = last_at_or_before(device.rank[by_end], device.end_s[by_end], rank, returned)
        row = by_end[np.maximum(place, 0)]
        waits = (host.kind[self.calls] == HostKind.SYNC) & (place >= 0) & (device.end_s[row] > self.called_s)
        self.waits = np.where(waits, row, -1)
        on = np.where(waits, device.end_s[row], self.called_s)
        self.base = np.where(self.before >= 0, on[np.maximum(self.before, 0)], self.called_s)
        # calls of several threads may overlap: then the next one did not wait for this one
        apart = self.called_s >= self.base
        self.waits[self.before[~apart & (self.before >= 0)]] = -1
        self.base = np.where(apart, self.base, self.called_s[np.maximum(self.before, 0)])
        self.doing = {name: np.zeros(len(self.calls)) for name, _ in ORDER}
        for lane in range(len(self.timeline.ranks)):
            self._doing(lane, np.flatnonzero(rank == lane))

    def _doing(self, lane: int, mine: Ints) -> None:
        """Seconds of each cause between what a call follows and the call."""
        host = self.timeline.host
        low, high = self.base[mine], self.called_s[mine]
        taken = np.zeros(len(mine))
        kinds: list[HostKind] = []
        for name, more in ORDER:
            kinds += more
            rows = np.flatnonzero((host.rank == lane) & np.isin(host.kind, kinds))
            inside = covered_between(
                *union(host.rank[rows], host.start_s[rows], host.end_s[rows])[1:], low, high
            )
            self.doing[name][mine] = np.maximum(0.0, inside - taken)
            taken = inside
        self.doing[causes.STALL][mine] += np.maximum(0.0, high - low - taken)

    def run(self, change: Change | None = None) -> Floats:
        """When each device span ends, in seconds on the timeline's clock."""
        what = change or Change()
        device, met = self.timeline.device, self.timeline.collectives
        calls, gap = len(self.calls), self.called_s - self.base
        for name in what.host:
            gap = gap - self.doing[name]
        duration, moving = device.end_s - device.start_s, met.end_s - met.begin_s
        if what.instant is not None:
            duration[what.instant] = 0.0
            of = device.collective[what.instant]
            moving[of[of >= 0]] = 0.0
        if not what.waits and len(met):
            duration = np.where(
                self.shared, np.minimum(duration, moving[np.maximum(device.collective, 0)]), duration
            )
        meeting = np.where(self.shared & what.waits, device.collective, -1).tolist()
        durations, moves, gaps = duration.tolist(), moving.tolist(), np.maximum(0.0, gap).tolist()
        before, waits, traced = self.before.tolist(), self.waits.tolist(), self.called_s.tolist()
        launch, previous, delay = self.launch.tolist(), self.previous.tolist(), self.delay.tolist()
        after_call, after_stream, after_other = (lag.tolist() for lag in self.lags)
        blocker, apart = self.blocker.tolist(), self.apart.tolist()
        called, start = [0.0] * calls, [0.0] * len(device)
        arrived = [-math.inf] * len(met)

        def ended(row: int) -> float:
            at: int = meeting[row]
            own: float = start[row] + durations[row]
            return own if at < 0 else float(max(own - durations[row], arrived[at] + moves[at] - apart[row]))

        for node in self.order:
            if node < calls:
                last = before[node]
                if last < 0:
                    called[node] = traced[node]
                    continue
                went_on = called[last]
                if what.syncs and waits[last] >= 0:
                    went_on = max(went_on, ended(waits[last]))
                called[node] = went_on + gaps[node]
                continue
            row = node - calls
            at = called[launch[row]] + after_call[row] if launch[row] >= 0 else -math.inf
            if previous[row] >= 0:
                at = max(at, ended(previous[row]) + after_stream[row])
            if blocker[row] >= 0:
                at = max(at, ended(blocker[row]) + after_other[row])
            start[row] = at if at > -math.inf else delay[row]
            if meeting[row] >= 0:
                arrived[meeting[row]] = max(arrived[meeting[row]], start[row])
        return np.array([ended(row) for row in range(len(device))])

    def span_s(self, change: Change | None = None) -> float:
        """From the first traced span's start to the last one's end, the mean over ranks."""
        device, lanes = self.timeline.device, len(self.timeline.ranks)
        end = np.full(lanes, -np.inf)
        np.maximum.at(end, device.rank, self.run(change))
        begin = np.full(lanes, np.inf)
        np.minimum.at(begin, device.rank, device.start_s)
        return float((end - begin).mean())

    def rows(self, *kinds: DeviceKind) -> Ints:
        """The device spans of these kinds."""
        return np.flatnonzero(np.isin(self.timeline.device.kind, kinds))
