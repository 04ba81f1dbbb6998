"""What each rank of a profiler trace was at, moment by moment: the stronger of all that went on.

A trace does not tell what work waited for, so gaps cannot be walked back (`analysis/gaps.py`). Instead
each moment belongs to the strongest thing that covers it: compute, then communication that no compute
hides, copies, then what the host did, in the order in which it is believed; the rest is a stall.
"""

from __future__ import annotations

import numpy as np

from simulator.analysis import causes as names
from simulator.analysis.causes import Causes
from simulator.analysis.gaps import Pieces
from simulator.analysis.host_gaps import ORDER
from simulator.analysis.intervals import Floats, Ints, union
from simulator.timeline import DeviceKind, Timeline

_DATA = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)
_STRONG = (
    ((DeviceKind.COPY, DeviceKind.MEMSET), names.COPIES),
    (_DATA, ""),
    ((DeviceKind.OPTIMIZER,), names.OPTIMIZER),
    ((DeviceKind.RECOMPUTE,), names.RECOMPUTE),
    ((DeviceKind.COMPUTE,), names.BELOW_PEAK),
)
_Layer = tuple[Ints, Floats, Floats, int]


def stretches(timeline: Timeline, causes: Causes, low_s: Floats, high_s: Floats) -> Pieces:
    """Each lane's time between `low_s` and `high_s`, shape (lanes,), by cause; without gaps or overlaps."""
    layers = list(_layers(timeline, causes))
    parts = []
    for lane in range(len(timeline.ranks)):
        if high_s[lane] > low_s[lane]:
            parts.append(_paint(lane, layers, float(low_s[lane]), float(high_s[lane]), causes[names.STALL]))
    return Pieces.joined(parts)


def _layers(timeline: Timeline, causes: Causes) -> list[_Layer]:
    """What there is, the weakest first; a layer's intervals are apart and in order on each lane."""
    host, device = timeline.host, timeline.device
    layers: list[_Layer] = []
    for name, kinds in reversed(ORDER):
        rows = np.isin(host.kind, kinds)
        layers.append((*union(host.rank[rows], host.start_s[rows], host.end_s[rows]), causes[name]))
    axis = causes.axis_of_spans(timeline) if len(device) else np.empty(0, dtype=np.int64)
    for of_kinds, name in _STRONG:
        mine = np.isin(device.kind, of_kinds)
        for cause in np.unique(axis[mine]).tolist() if not name else [causes[name]]:
            rows = mine & (axis == cause) if not name else mine
            layers.append((*union(device.rank[rows], device.start_s[rows], device.end_s[rows]), cause))
    return layers


def _paint(lane: int, layers: list[_Layer], low: float, high: float, ground: int) -> Pieces:
    mine = []
    for rank, start, end, cause in layers:
        here = rank == lane
        begin, until = np.maximum(start[here], low), np.minimum(end[here], high)
        keep = until > begin
        mine.append((begin[keep], until[keep], cause))
    edges = np.unique(np.concatenate([[low, high], *(part for one in mine for part in one[:2])]))
    colour = np.full(len(edges) - 1, ground)
    for begin, until, cause in mine:
        depth = np.zeros(len(edges), dtype=np.int64)
        np.add.at(depth, np.searchsorted(edges, begin), 1)
        np.add.at(depth, np.searchsorted(edges, until), -1)
        colour[np.cumsum(depth)[:-1] > 0] = cause
    first = np.flatnonzero(np.diff(colour, prepend=-1))
    starts = edges[:-1][first]
    ends = np.append(starts[1:], edges[-1])
    none = np.full(len(first), -1, dtype=np.int64)
    return Pieces(np.full(len(first), lane), starts, ends, colour[first], none)
