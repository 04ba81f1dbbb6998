"""The figures that HolisticTraceAnalysis defines, of any timeline: what the GPU's time was spent on.

Definitions: `get_temporal_breakdown`, `get_comm_comp_overlap` and `get_idle_time_breakdown` of
HolisticTraceAnalysis 0.5. They leave out what was launched in the last of two or more marked steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis.intervals import Bools, Floats, Ints, covered, overlap, total
from simulator.timeline import DeviceKind, Timeline

#: a gap that the host did not cause and that is shorter is the time between two kernels
KERNEL_GAP_S: Final = 30e-6
#: no trace tells times apart that are closer; half of it is what sums may be off
_RESOLUTION_S: Final = 0.5e-9

_COMMUNICATION: Final = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)
_COMPUTE: Final = (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER, DeviceKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds by rank, shape (lanes,). Of `span_s`, from the first span's start to the last one's end,
    compute ran in `compute_s`, only communication and copies in `other_s`, nothing in `idle_s`.
    """

    span_s: Floats
    idle_s: Floats
    compute_s: Floats
    other_s: Floats
    communication_s: Floats
    overlapped_s: Floats  # communication while compute ran

    @property
    def overlap_share(self) -> Floats:
        """Of communication; NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Floats = self.overlapped_s / self.communication_s
        return share


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Seconds between the spans of each rank's streams, shape (lanes, streams).

    `host_wait_s`: the next launch came after the span before had ended; `kernel_wait_s`: shorter gaps
    than KERNEL_GAP_S; `other_s`: the rest, such as waiting for another stream.
    """

    host_wait_s: Floats
    kernel_wait_s: Floats
    other_s: Floats


def counted(timeline: Timeline, *, last_step: bool = False) -> Bools:
    """Which device spans the figures count: all, or without those launched in or after the last of two
    or more marked steps.
    """
    device = timeline.device
    keep = np.ones(len(device), dtype=np.bool_)
    if not last_step and timeline.steps.shape[1] > 1:
        keep = _called(timeline) < timeline.steps[device.rank, -1, 0]
    return keep


def _called(timeline: Timeline) -> Floats:
    """When each span's launch call began, or ended where only that is known; NaN where unknown."""
    device, host = timeline.device, timeline.host
    if not len(host):
        return device.issued_s
    return np.where(device.launch >= 0, host.start_s[np.maximum(device.launch, 0)], device.issued_s)


def device_time(timeline: Timeline, rows: Bools | None = None) -> DeviceTime:
    """Of the device spans that `rows` marks, by default those that `counted` gives."""
    device, lanes = timeline.device, len(timeline.ranks)
    keep = counted(timeline) if rows is None else rows
    every = _intervals(timeline, keep)
    compute = _intervals(timeline, keep & np.isin(device.kind, _COMPUTE))
    talk = _intervals(timeline, keep & np.isin(device.kind, _COMMUNICATION))
    low, high = np.full(lanes, np.inf), np.full(lanes, -np.inf)
    np.minimum.at(low, every[0], every[1])
    np.maximum.at(high, every[0], every[2])
    span = np.where(high > low, high - low, 0.0)
    busy, computed = covered(*every, lanes), covered(*compute, lanes)
    return DeviceTime(
        span, span - busy, computed, busy - computed, covered(*talk, lanes), overlap(compute, talk, lanes)
    )


def _intervals(timeline: Timeline, keep: Bools) -> tuple[Ints, Floats, Floats]:
    device = timeline.device
    return device.rank[keep], device.start_s[keep], device.end_s[keep]


def stream_idle(timeline: Timeline, rows: Bools | None = None) -> StreamIdle:
    """Gaps between a stream's spans by what held the next one; spans as in `device_time`."""
    device, streams = timeline.device, len(timeline.streams)
    kept = np.flatnonzero(counted(timeline) if rows is None else rows)
    lane = device.rank[kept] * streams + device.stream[kept]
    order = np.lexsort((device.end_s[kept], device.start_s[kept], lane))
    kept, lane = kept[order], lane[order]
    follows = lane[1:] == lane[:-1]
    row, before, lane = kept[1:][follows], kept[:-1][follows], lane[1:][follows]
    gap = device.start_s[row] - device.end_s[before]
    host = _called(timeline)[row] > device.end_s[before] + _RESOLUTION_S
    kernel = ~host & (gap < KERNEL_GAP_S - _RESOLUTION_S)

    def by_stream(mask: Bools) -> Floats:
        shape = (len(timeline.ranks), streams)
        return total(lane[mask], gap[mask], shape[0] * shape[1]).reshape(shape)

    return StreamIdle(by_stream(host), by_stream(kernel), by_stream(~host & ~kernel))
