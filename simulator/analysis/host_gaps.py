"""What the host did while a rank's GPU had nothing to run, from what a timeline shows of both.

Each moment of a gap goes to the most telling of the host's spans that cover it: a wait for the
loader before a call of the driver, that before the framework's own time. What none covers is a stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis import causes
from simulator.analysis.intervals import Floats, Ints, covered, overlap, union
from simulator.timeline import HostKind, Timeline

#: kinds in the order in which they are believed
ORDER: Final = (
    (causes.LOADER, (HostKind.LOADER,)),
    (causes.CHECKPOINT, (HostKind.CHECKPOINT,)),
    (causes.GARBAGE, (HostKind.GARBAGE_COLLECTION,)),
    (causes.SYNC, (HostKind.SYNC,)),
    (causes.LAUNCH, (HostKind.LAUNCH, HostKind.FRAMEWORK, HostKind.QUEUE_FULL)),
    (causes.STALL, (HostKind.STALL,)),
)
Spans = tuple[Ints, Floats, Floats]


@dataclass(frozen=True, slots=True)
class HostGaps:
    """`gaps`: (rank, start_s, end_s) in order; `seconds[cause]` by rank, shape (lanes,)."""

    gaps: Spans
    seconds: dict[str, Floats]
    evidence: dict[str, tuple[str, ...]]  # names of the host's spans that filled most of the gaps

    @property
    def lengths_s(self) -> Floats:
        return self.gaps[2] - self.gaps[1]


def host_gaps(timeline: Timeline) -> HostGaps:
    """The gaps of every rank between its first device span and its last, and the host in them."""
    lanes, device = len(timeline.ranks), timeline.device
    rank, start, end = union(device.rank, device.start_s, device.end_s)
    follows = rank[1:] == rank[:-1]
    gaps: Spans = (rank[1:][follows], end[:-1][follows], start[1:][follows])
    left = covered(*gaps, lanes)
    host = timeline.host
    taken: Spans = (np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
    seconds, evidence, before = {}, {}, np.zeros(lanes)
    for name, kinds in ORDER:
        rows = np.flatnonzero(np.isin(host.kind, kinds))
        mine: Spans = (host.rank[rows], host.start_s[rows], host.end_s[rows])
        taken = (
            np.concatenate([taken[0], mine[0]]).astype(np.int64),
            np.concatenate([taken[1], mine[1]]),
            np.concatenate([taken[2], mine[2]]),
        )
        inside = overlap(gaps, taken, lanes)
        seconds[name] = inside - before
        before = inside
        if seconds[name].any():
            evidence[name] = _evidence(timeline, rows, gaps)
    seconds[causes.STALL] = np.maximum(0.0, seconds[causes.STALL] + left - before)
    return HostGaps(gaps, seconds, evidence)


def _evidence(timeline: Timeline, rows: Ints, gaps: Spans, count: int = 3) -> tuple[str, ...]:
    """The names whose spans fill most of the gaps, by the gap in which each begins or that it spans."""
    host = timeline.host
    filled = np.zeros(len(timeline.names))
    for lane in range(len(timeline.ranks)):
        mine = rows[host.rank[rows] == lane]
        low, high = (edge[gaps[0] == lane] for edge in gaps[1:])
        np.add.at(filled, host.name[mine], covered_between(low, high, host.start_s[mine], host.end_s[mine]))
    order = np.argsort(-filled, kind="stable")[:count].tolist()
    return tuple(timeline.names[name] for name in order if filled[name] > 0)


def covered_between(low_s: Floats, high_s: Floats, start_s: Floats, end_s: Floats) -> Floats:
    """How much of each [start, end] lies inside the intervals [low, high], which are apart and in order."""
    if not len(low_s):
        return np.zeros(len(start_s))
    sums = np.concatenate([[0.0], np.cumsum(high_s - low_s)])
    return _before(low_s, high_s, sums, end_s) - _before(low_s, high_s, sums, start_s)


def _before(low: Floats, high: Floats, sums: Floats, at_s: Floats) -> Floats:
    """How much of the intervals lies before each time."""
    place = np.searchsorted(low, at_s, side="right") - 1
    at = np.maximum(place, 0)
    inside = np.clip(at_s - low[at], 0.0, (high - low)[at])
    result: Floats = np.where(place >= 0, sums[at] + inside, 0.0)
    return result
