"""From the hardware's peak down to MFU: every second of a step in exactly one item.

Each instant of each rank's compute stream belongs to one item; averaged over the ranks and the
measured steps, the items add up to the step time, and divided by it, to 100%. The first item is the
time that the model's FLOPs would take at peak: its share of the step is the MFU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.analysis.causes import (
    BELOW_PEAK,
    CONTENTION,
    LAUNCH,
    MODEL,
    SLOW_GPUS,
    Causes,
)
from simulator.analysis.gaps import Pieces, pieces
from simulator.analysis.intervals import Bools, Floats, Ints, expand, last_at_or_before, last_before
from simulator.timeline import DeviceKind, HostKind, Timeline

_WORK = (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER, DeviceKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Item:
    """`seconds` of a step, mean over ranks and measured steps; `mfu_points`: its share of the step
    in %.
    """

    name: str
    seconds: float
    mfu_points: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """Seconds by lane, step and item, shape (lanes, steps, items); `names` of the items.

    A lane whose spans the timeline does not have is all zero and False in `known`, shape (lanes,).
    """

    names: tuple[str, ...]
    seconds: Floats
    known: Bools

    def of(self, name: str) -> Floats:
        """One item, shape (lanes, steps)."""
        result: Floats = self.seconds[:, :, self.names.index(name)]
        return result


def ledger(timeline: Timeline, peak_flops_per_s: Floats) -> Ledger:
    """All items of all lanes and steps. `peak_flops_per_s`: each lane's GPU, shape (lanes,)."""
    causes = Causes(timeline)
    parts = by_step(pieces(timeline, causes), timeline)
    lanes, steps = timeline.steps.shape[:2]
    shape = (lanes, steps, len(causes))
    cell = (parts[0].rank * steps + parts[1]) * len(causes)
    table = np.zeros(lanes * steps * len(causes))

    def add(where: Ints, cause: int, seconds: Floats) -> None:
        np.add.at(table, where + cause, seconds)

    length = parts[0].end_s - parts[0].start_s
    row = parts[0].row
    work = row >= 0
    work[work] = np.isin(timeline.device.kind[row[work]], _WORK)
    np.add.at(table, (cell + parts[0].cause)[~work], length[~work])
    split = _split(timeline, row[work], length[work], peak_flops_per_s)
    at = cell[work]
    for name, seconds in split.items():
        if name:
            add(at, causes[name], seconds)
    np.add.at(table, at + parts[0].cause[work], split[""])
    _idle_inside(timeline, causes, table, at=at, row=row[work], length=length[work])
    known = np.zeros(lanes, dtype=np.bool_)
    known[np.unique(parts[0].rank)] = True
    return Ledger(causes.names, table.reshape(shape), known)


def by_step(whole: Pieces, timeline: Timeline) -> tuple[Pieces, Ints]:
    """The pieces cut at the edges of each lane's steps, and the step of each; what is outside is
    dropped.
    """
    lanes, steps = timeline.steps.shape[:2]
    lane = np.repeat(np.arange(lanes), steps)
    starts, ends = timeline.steps[:, :, 0].ravel(), timeline.steps[:, :, 1].ravel()
    first = last_at_or_before(lane, ends, whole.rank, whole.start_s) + 1
    first = np.maximum(first, whole.rank * steps)  # none has ended yet: the lane's first step
    owner, cell = expand(first, last_before(lane, starts, whole.rank, whole.end_s))
    low = np.maximum(whole.start_s[owner], starts[cell])
    high = np.minimum(whole.end_s[owner], ends[cell])
    keep = (high > low) & (lane[np.minimum(cell, lanes * steps - 1)] == whole.rank[owner])
    owner, cell = owner[keep], cell[keep]
    cut = Pieces(whole.rank[owner], low[keep], high[keep], whole.cause[owner], whole.row[owner])
    return cut, cell % steps


def _split(timeline: Timeline, row: Ints, length: Floats, peak: Floats) -> dict[str, Floats]:
    """Seconds of pieces of working kernels by item; "" is the item of the span's own kind.

    A compute span's time is its FLOPs at peak, what its kernels take longer when alone at full
    speed, what overlapping communication adds, what faults add, and the gaps between its launches.
    """
    device = timeline.device
    duration = device.end_s[row] - device.start_s[row]
    part = np.where(duration > 0, length / np.where(duration > 0, duration, 1.0), 0.0)
    busy = np.minimum(_or(device.busy_s[row], duration), duration)
    alone = _or(device.alone_s[row], busy)
    fault = _or(device.fault_s[row], 0.0)
    model = np.where(device.model_flops[row] > 0, device.model_flops[row], 0.0) / peak[device.rank[row]]
    return {
        MODEL: part * model,
        "": part * (alone - model),
        SLOW_GPUS: part * fault,
        CONTENTION: part * (busy - alone - fault),
    }


def _idle_inside(
    timeline: Timeline, causes: Causes, table: Floats, *, at: Ints, row: Ints, length: Floats
) -> None:
    """Add the gaps between launches inside spans: to what the host did there, else launch-bound."""
    device, host = timeline.device, timeline.host
    duration = device.end_s[row] - device.start_s[row]
    idle = np.maximum(0.0, duration - _or(device.busy_s[row], duration))
    idle *= np.where(duration > 0, length / np.where(duration > 0, duration, 1.0), 0.0)
    some = idle > 0
    if not some.any():
        return
    at, row, idle = at[some], row[some], idle[some]
    interrupts = np.flatnonzero(~np.isin(host.kind, (HostKind.LAUNCH, HostKind.FRAMEWORK)))
    interrupts = interrupts[np.lexsort((host.start_s[interrupts], host.rank[interrupts]))]
    rank, start = host.rank[interrupts], host.start_s[interrupts]
    first = last_at_or_before(rank, start, device.rank[row], device.start_s[row])
    first = np.maximum(first, np.searchsorted(rank, device.rank[row]))
    owner, span = expand(first, last_before(rank, start, device.rank[row], device.end_s[row]))
    overlap = np.minimum(host.end_s[interrupts[span]], device.end_s[row[owner]]) - np.maximum(
        host.start_s[interrupts[span]], device.start_s[row[owner]]
    )
    overlap = np.maximum(0.0, overlap)
    total = np.bincount(owner, weights=overlap, minlength=len(row))
    scale = np.where(total > 0, np.minimum(1.0, idle / np.where(total > 0, total, 1.0)), 0.0)
    kind = causes.of_host[host.kind[interrupts[span]]]
    np.add.at(table, at[owner] + kind, overlap * scale[owner])
    np.add.at(table, at + causes[LAUNCH], idle - total * scale)


def _or(values: Floats, default: Floats | float) -> Floats:
    return np.where(np.isnan(values), default, values)


def weights(timeline: Timeline, peak_flops_per_s: Floats) -> Floats:
    """How much each lane counts, shape (lanes,): the ranks it stands for, by their peak.

    By peak, so that in a mixed fleet the first item is still MFU times step time, with MFU the
    model's FLOPs over what the whole fleet could have done.
    """
    ranks = np.array([lane.multiplicity for lane in timeline.ranks], dtype=np.float64)
    share = ranks * peak_flops_per_s
    result: Floats = share / share.sum()
    return result


def waterfall(book: Ledger, weight: Floats, first_step: int, step_time_s: float) -> tuple[Item, ...]:
    """The items over the measured steps, from `first_step` on; they add up to `step_time_s`.

    Where the timeline has the spans of some lanes only, these stand for all: their items are scaled
    to the step time of all lanes (a ratio near 1: a synchronous job's ranks share their steps).
    """
    known = weight * book.known
    seconds = np.einsum("l,lsi->i", known, book.seconds[:, first_step:])
    whole = float(seconds.sum())
    if whole > 0:
        seconds *= step_time_s / whole
    points = 100 * seconds / step_time_s if step_time_s > 0 else np.zeros_like(seconds)
    return tuple(
        Item(name, float(value), float(share))
        for name, value, share in zip(book.names, seconds, points, strict=True)
    )


__all__ = ["BELOW_PEAK", "Item", "Ledger", "by_step", "ledger", "waterfall", "weights"]
