"""How busy the GPUs were: unions of intervals, never sums of spans that overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.analysis.causes import Causes
from simulator.analysis.gaps import main_streams
from simulator.analysis.intervals import Bools, Floats, Ints, clip, covered, overlap, total
from simulator.timeline import DeviceKind, HostKind, Timeline

_DATA = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)
_WORK = (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER, DeviceKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Seconds by lane over the window, each a union of intervals, shape (lanes,).

    `busy_s`: anything runs on the GPU; `compute_s`: computing kernels; `communication_s`:
    collectives, sends and receives (waiting for the others included); `overlapped_s`: both;
    `optimizer_s`; `waiting_s`: from arriving at a collective to the last member's arrival, added
    over collectives. `host_s`: what the main thread did, by HostKind. `gaps`: stretches in which no
    kernel ran.
    """

    window_s: Floats
    busy_s: Floats
    compute_s: Floats
    communication_s: Floats
    overlapped_s: Floats
    optimizer_s: Floats
    waiting_s: Floats
    gaps: Ints
    host_s: Mapping[HostKind, Floats]

    @property
    def exposed_s(self) -> Floats:
        """Communication that no compute hides, shape (lanes,)."""
        return self.communication_s - self.overlapped_s

    @property
    def idle_s(self) -> Floats:
        """Time in which nothing runs on the GPU, shape (lanes,)."""
        return self.window_s - self.busy_s


def utilisation(timeline: Timeline, first_step: int = 0) -> Utilisation:
    """Measure every lane from the start of `first_step` to the end of the last step."""
    lanes = len(timeline.ranks)
    low, high = timeline.steps[:, first_step, 0], timeline.steps[:, -1, 1]
    device, host = timeline.device, timeline.host

    def spans(mask: Bools) -> tuple[Ints, Floats, Floats]:
        rows = np.flatnonzero(mask)
        return clip((device.rank[rows], device.start_s[rows], device.end_s[rows]), low, high)

    work, data = spans(np.isin(device.kind, _WORK)), spans(np.isin(device.kind, _DATA))
    everything = spans(np.ones(len(device), dtype=np.bool_))
    busy = covered(*everything, lanes)
    by_kind = {
        kind: covered(*_host_spans(timeline, host.kind == kind, low, high), lanes) for kind in HostKind
    }
    return Utilisation(
        window_s=high - low,
        busy_s=busy,
        compute_s=covered(*work, lanes),
        communication_s=covered(*data, lanes),
        overlapped_s=overlap(work, data, lanes),
        optimizer_s=covered(*spans(device.kind == DeviceKind.OPTIMIZER), lanes),
        waiting_s=waiting(timeline, first_step),
        gaps=_gaps(everything, low, high, lanes),
        host_s=by_kind,
    )


def _host_spans(timeline: Timeline, mask: Bools, low: Floats, high: Floats) -> tuple[Ints, Floats, Floats]:
    host = timeline.host
    return clip((host.rank[mask], host.start_s[mask], host.end_s[mask]), low, high)


def _gaps(busy: tuple[Ints, Floats, Floats], low: Floats, high: Floats, lanes: int) -> Ints:
    """Number of stretches of each lane's window in which nothing of `busy` ran."""
    rank, start, end = busy
    everyone = np.arange(lanes)
    # intervals of no length at the window's edges would be lost: compare running ends instead
    order = np.lexsort((start, rank))
    rank, start, end = rank[order], start[order], end[order]
    count = np.zeros(lanes, dtype=np.int64)
    reached = low.copy()
    for lane, first, last in zip(
        everyone, np.searchsorted(rank, everyone), np.searchsorted(rank, everyone, side="right"),
        strict=True,
    ):  # fmt: skip
        ends = np.maximum.accumulate(np.concatenate([[reached[lane]], end[first:last]]))
        starts = np.concatenate([start[first:last], [high[lane]]])
        count[lane] = int((starts > ends).sum())
    return count


def arrivals(timeline: Timeline, first_step: int = 0) -> tuple[Ints, Floats, Floats]:
    """Every member's arrival at every collective since `first_step`: (device row, wait_s, late_s).

    `wait_s`: until the last member arrived; `late_s`: since the first did. Waiting names nobody
    (the slowest waits least); being late does. Sends and receives are left out: a receive is posted
    early on purpose, and says when a stage has its turn.
    """
    device, table = timeline.device, timeline.collectives
    member = (device.kind == DeviceKind.COLLECTIVE) & (device.collective >= 0)
    row = np.flatnonzero(member & (device.step >= first_step))
    of = device.collective[row]
    wait = np.maximum(0.0, np.minimum(table.begin_s[of], device.end_s[row]) - device.start_s[row])
    return row, wait, np.maximum(0.0, device.start_s[row] - table.first_s[of])


def waiting(timeline: Timeline, first_step: int = 0) -> Floats:
    """Time from a lane's arrivals at collectives to the last member's, added up, shape (lanes,)."""
    row, wait, _ = arrivals(timeline, first_step)
    return total(timeline.device.rank[row], wait, len(timeline.ranks))


def compute_by_step(timeline: Timeline) -> Floats:
    """Time in which the compute stream's kernels ran, shape (lanes, steps); gaps inside spans left
    out.
    """
    device = timeline.device
    lanes, steps = timeline.steps.shape[:2]
    mask = np.isin(device.kind, _WORK) & (device.step >= 0) & (device.step < steps)
    mask &= main_streams(timeline)[device.stream] if len(device) else mask
    duration = device.end_s - device.start_s
    busy = np.where(np.isnan(device.busy_s), duration, np.minimum(device.busy_s, duration))
    cell = device.rank[mask] * steps + device.step[mask]
    return total(cell, busy[mask], lanes * steps).reshape(lanes, steps)


__all__ = ["Causes", "Utilisation", "arrivals", "compute_by_step", "utilisation", "waiting"]
