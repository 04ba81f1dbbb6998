"""The chain of work that sets the time of a step, from a timeline's records of what held what.

From the span that ends a step last we go back: to what it waited for on another stream or rank, to the
work before it on its stream, or to its host if the host issued it last. A collective leads to the member
that arrived last. What a stretch of the path is made of is its derivative: a second less of that kind of
work is a second less of step, as long as the path stays the same (dPRO: Hu et al. 2022, arXiv:2205.02473).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.timeline import DeviceKind, HostKind, Timeline

#: Times that a sum of durations gives may differ in their last bits.
_TIE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Link:
    """A stretch of the path: `kind` is a DeviceKind's or HostKind's name in small letters."""

    kind: str
    name: str
    rank: int
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """`links` in order of time; they cover the step without gaps."""

    step: int
    links: tuple[Link, ...]

    @property
    def length_s(self) -> float:
        return self.links[-1].end_s - self.links[0].start_s if self.links else 0.0

    def by_kind(self) -> dict[str, float]:
        """Seconds of the path by kind of work, most first: the derivative of the step by each."""
        found: dict[str, float] = {}
        for link in self.links:
            found[link.kind] = found.get(link.kind, 0.0) + link.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def critical_path(timeline: Timeline, step: int = -1) -> CriticalPath:
    """The path of one step (the last if -1). Raises ValueError for a timeline without device spans."""
    count = timeline.steps.shape[1]
    step = step % count
    lane = int(timeline.steps[:, step, 1].argmax())
    begin = float(timeline.steps[:, step, 0].min())
    return CriticalPath(step, tuple(_Walk(timeline, begin).back(lane, float(timeline.steps[lane, step, 1]))))


class _Walk:
    """Goes back through a timeline."""

    def __init__(self, timeline: Timeline, begin_s: float):
        self._t = timeline
        self._begin = begin_s
        device = timeline.device
        if not len(device):
            raise ValueError("the timeline has no device spans")
        self._order = np.lexsort((device.start_s, device.end_s, device.stream, device.rank))
        self._previous = np.full(len(device), -1)
        same = (np.diff(device.rank[self._order]) == 0) & (np.diff(device.stream[self._order]) == 0)
        self._previous[self._order[1:][same]] = self._order[:-1][same]
        self._members: dict[int, list[int]] = {}
        for row in np.flatnonzero(device.collective >= 0).tolist():
            self._members.setdefault(int(device.collective[row]), []).append(row)

    def back(self, lane: int, end_s: float) -> list[Link]:
        device = self._t.device
        mine = np.flatnonzero(
            (device.rank == lane) & (np.abs(device.end_s - end_s) <= _TIE * max(1.0, end_s))
        )
        row = int(mine[-1]) if len(mine) else int(np.flatnonzero(device.rank == lane)[-1])
        links: list[Link] = []
        now = end_s
        for _ in range(len(device) + len(self._t.host) + 2):
            if now <= self._begin + _TIE:
                break
            row, now = self._one(row, now, links)
            if row < 0:
                break
        return links[::-1]

    def _one(self, row: int, now: float, links: list[Link]) -> tuple[int, float]:
        """Add the span's stretch that ends now; return what held its start, and when."""
        device, names = self._t.device, self._t.names
        start = float(device.start_s[row])
        meeting = int(device.collective[row])
        if meeting >= 0:  # from the last arrival on
            start = float(self._t.collectives.begin_s[meeting])
        start = max(start, self._begin)
        kind = DeviceKind(int(device.kind[row])).name.lower()
        if now > start:
            links.append(Link(kind, names[int(device.name[row])], self._rank(row), start, now))
        if meeting >= 0:
            members = self._members[meeting]
            row = max(members, key=lambda one: device.start_s[one])
            start = min(start, max(self._begin, float(device.start_s[row])))
        return self._holder(row, start, links)

    def _rank(self, row: int) -> int:
        return self._t.ranks[int(self._t.device.rank[row])].rank

    def _holder(self, row: int, now: float, links: list[Link]) -> tuple[int, float]:
        device = self._t.device
        ready, issued = float(device.ready_s[row]), float(device.issued_s[row])
        if np.isfinite(issued) and issued > ready + _TIE and issued >= now - 1e-5:
            return self._host(row, now, links)
        blocker = int(device.blocker[row])
        if blocker >= 0:
            return blocker, now
        previous = int(self._previous[row])
        return (previous, now) if previous >= 0 else self._host(row, now, links)

    def _host(self, row: int, now: float, links: list[Link]) -> tuple[int, float]:
        """The host issued it last: what the host did, back to where it waited for the GPU or to the start."""
        host, lane = self._t.host, int(self._t.device.rank[row])
        spans = np.flatnonzero((host.rank == lane) & (host.start_s < now - _TIE))
        spans = spans[np.argsort(host.end_s[spans])][::-1]
        for span in spans.tolist():
            kind = HostKind(int(host.kind[span]))
            end = min(now, float(host.end_s[span]))
            if kind in (HostKind.SYNC, HostKind.QUEUE_FULL):
                held = self._ended_at(lane, float(host.end_s[span]))
                if held >= 0:
                    return held, min(now, end)
            start = max(self._begin, float(host.start_s[span]))
            if end > start:
                name = self._t.names[int(host.name[span])]
                links.append(Link(f"host {kind.name.lower()}", name, self._t.ranks[lane].rank, start, end))
            now = start
            if now <= self._begin + _TIE:
                break
        return -1, now

    def _ended_at(self, lane: int, time: float) -> int:
        device = self._t.device
        rows = np.flatnonzero((device.rank == lane) & (np.abs(device.end_s - time) <= 1e-9))
        return int(rows[0]) if len(rows) else -1
