"""What one timeline shows, in the order in which it is read: idle, the host meanwhile, collectives.

Engines and profiler traces fill the same columns, so that one reading serves both. Seconds are those of
a step: the mean over the ranks, by `weight`, and over the measured steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis.causes import ITEMS, OF_HOST
from simulator.analysis.host_gaps import covered_between
from simulator.analysis.intervals import Floats, Ints, clip, covered, overlap, total, union
from simulator.network.activity import BUS_FACTORS
from simulator.timeline import DeviceKind, HostKind, Timeline

Spans = tuple[Ints, Floats, Floats]

WORK: Final = (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER, DeviceKind.RECOMPUTE)
DATA: Final = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)
#: edges of the histogram of gaps, seconds
EDGES_S: Final = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
#: names of collectives as NCCL and profilers write them
_PLAIN: Final = {name.replace("-", ""): name for name in BUS_FACTORS}


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of a timeline counts: steps from `first_step` on, lanes by `weight` (sum 1), seconds in
    the timeline times `scale` are seconds of a step.
    """

    low_s: Floats
    high_s: Floats
    weight: Floats
    scale: float
    first_step: int = 0

    def mean(self, by_lane: Floats) -> float:
        """A step's mean of what each lane has in the window."""
        return float(self.weight @ by_lane) * self.scale


@dataclass(frozen=True, slots=True)
class Idle:
    """No kernel ran: `seconds` and `count` of gaps a step, `lengths_s` of all gaps seen.

    `inside_s`: of the seconds, those between the launches of one run of kernels, which has no gap of its
    own in the timeline.
    """

    seconds: float
    share: float
    count: float
    inside_s: float
    lengths_s: Floats

    def quantiles_s(self) -> tuple[float, float, float]:
        """Median, 90th percentile and longest; zeros of none."""
        if not len(self.lengths_s):
            return 0.0, 0.0, 0.0
        middle, high, longest = np.quantile(self.lengths_s, [0.5, 0.9, 1.0]).tolist()
        return middle, high, longest

    def histogram(self) -> tuple[int, ...]:
        """How many gaps are below each of EDGES_S and above the last, between neighbours."""
        place = np.searchsorted(np.array(EDGES_S), self.lengths_s, side="right")
        return tuple(np.bincount(place, minlength=len(EDGES_S) + 1).tolist())


@dataclass(frozen=True, slots=True)
class Evidence:
    """A host span that filled gaps: all of that name filled `filled_s` of a step; the longest, and where."""

    name: str
    filled_s: float
    rank: int
    start_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """An axis' (or all) collectives, seconds of a step in which at least one was under way.

    Of `total_s`, compute ran during `overlapped_s`; `waiting_s` passed before the last member came (NaN
    where the others were not traced), the rest moved bytes. busbw as nccl-tests defines it, of all of
    them together; `fabric_busbw`: on an idle, healthy fabric; NaN where unknown.
    """

    total_s: float
    overlapped_s: float
    waiting_s: float
    busbw_bytes_per_s: float
    fabric_busbw_bytes_per_s: float

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.total_s - self.overlapped_s)

    @property
    def moving_s(self) -> float:
        return self.total_s - self.waiting_s


def window(timeline: Timeline, first_step: int, weight: Floats) -> Window:
    """The measured steps; lanes without spans do not count."""
    steps = timeline.steps.shape[1] - first_step
    seen = np.zeros(len(timeline.ranks))
    seen[np.unique(timeline.device.rank)] = 1.0
    weight = weight * seen
    weight = weight / weight.sum() if weight.sum() > 0 else weight
    return Window(timeline.steps[:, first_step, 0], timeline.steps[:, -1, 1], weight, 1.0 / steps, first_step)


def idle(timeline: Timeline, part: Window) -> tuple[Idle, Spans]:
    """Gaps of each lane in which nothing ran, and the gaps themselves."""
    lanes = len(timeline.ranks)
    everything = _spans(timeline, np.arange(len(timeline.device)), part)
    rank, start, end = union(*everything)
    lane = np.flatnonzero(part.weight > 0)
    ranks = np.concatenate([rank, lane])
    opens = np.concatenate([end, part.low_s[lane]])  # a gap opens where a stretch of work ends
    closes = np.concatenate([start, part.high_s[lane]])
    low = np.lexsort((opens, ranks))
    high = np.lexsort((closes, ranks))
    opens, closes, ranks = opens[low], closes[high], ranks[low]
    real = closes - opens > 1e-12
    gaps: Spans = (ranks[real], opens[real], closes[real])
    between = part.mean(covered(*gaps, lanes))
    inside = part.mean(_inside(timeline, part))
    length = float(part.weight @ (part.high_s - part.low_s)) * part.scale
    seconds = between + inside
    count = part.mean(np.bincount(gaps[0], minlength=lanes).astype(np.float64))
    share = seconds / length if length > 0 else 0.0
    return Idle(seconds, share, count, inside, gaps[2] - gaps[1]), gaps


def _inside(timeline: Timeline, part: Window) -> Floats:
    """Between the launches of runs of kernels, where no communication ran beside; shape (lanes,)."""
    device, lanes = timeline.device, len(timeline.ranks)
    duration = device.end_s - device.start_s
    rows = np.flatnonzero(np.isin(device.kind, WORK) & (duration - device.busy_s > 1e-12))
    inside = (device.start_s[rows] >= part.low_s[device.rank[rows]]) & (
        device.end_s[rows] <= part.high_s[device.rank[rows]]
    )
    rows = rows[inside]
    result = np.zeros(lanes)
    other = union(*_spans(timeline, np.flatnonzero(~np.isin(device.kind, WORK)), part))
    for lane in np.unique(device.rank[rows]).tolist():
        mine = rows[device.rank[rows] == lane]
        here = other[0] == lane
        beside = covered_between(other[1][here], other[2][here], device.start_s[mine], device.end_s[mine])
        result[lane] = float(((duration - device.busy_s)[mine] * (1 - beside / duration[mine])).sum())
    return result


def evidence(timeline: Timeline, part: Window, gaps: Spans, most: int = 3) -> dict[str, tuple[Evidence, ...]]:
    """By item of the host: names of its spans that filled most of the gaps, where it filled any."""
    host = timeline.host
    filled = np.zeros(len(host))
    for lane in np.unique(gaps[0]).tolist() if len(host) else []:
        rows = np.flatnonzero(host.rank == lane)
        here = gaps[0] == lane
        filled[rows] = covered_between(gaps[1][here], gaps[2][here], host.start_s[rows], host.end_s[rows])
    share = filled * part.weight[host.rank] * part.scale
    item = np.array([ITEMS.index(OF_HOST[kind]) for kind in HostKind])[host.kind]
    keys, index = np.unique(item * len(timeline.names) + host.name, return_inverse=True)
    sums = total(index, share, len(keys))
    found: dict[str, list[Evidence]] = {}
    for key in np.argsort(-sums, kind="stable").tolist():
        shown = found.setdefault(ITEMS[int(keys[key]) // len(timeline.names)], [])
        if sums[key] > 0 and len(shown) < most:
            rows = np.flatnonzero(index == key)
            longest = int(rows[np.argmax(filled[rows])])
            name = timeline.names[int(keys[key]) % len(timeline.names)]
            rank = timeline.ranks[int(host.rank[longest])].rank
            start, end = float(host.start_s[longest]), float(host.end_s[longest])
            shown.append(Evidence(name, float(sums[key]), rank, start, end - start))
    return {name: tuple(shown) for name, shown in found.items() if shown}


def traffic(timeline: Timeline, part: Window) -> dict[str, Traffic]:
    """By axis (a trace's process groups), "all" of them together last; pipeline transfers are axis pp."""
    device, met = timeline.device, timeline.collectives
    rows = np.flatnonzero(np.isin(device.kind, DATA))
    known = device.collective[rows] >= 0
    number = np.where(known, met.axis[np.maximum(device.collective[rows], 0)] if len(met) else 0, -1)
    work = _spans(timeline, np.flatnonzero(np.isin(device.kind, WORK)), part)
    found = {}
    for axis in np.unique(number).tolist():
        name = timeline.names[axis] if axis >= 0 else "pp"
        found[name] = _traffic(timeline, part, rows[number == axis], work)
    if found:
        found["all"] = _traffic(timeline, part, rows, work)
    return found


def _traffic(timeline: Timeline, part: Window, rows: Ints, work: Spans) -> Traffic:
    device, met, lanes = timeline.device, timeline.collectives, len(timeline.ranks)
    spans = _spans(timeline, rows, part)
    held, hidden = covered(*spans, lanes), overlap(work, spans, lanes)
    rows = rows[device.collective[rows] >= 0]
    of = device.collective[rows]
    begin = np.clip(met.begin_s[of], device.start_s[rows], device.end_s[rows])
    bounds = part.low_s, part.high_s
    moving = covered(*clip((device.rank[rows], begin, device.end_s[rows]), *bounds), lanes)
    waiting = part.mean(np.maximum(0.0, held - moving))
    if not len(of) or (met.last_rank[of] < 0).all():
        waiting = float("nan")
    achieved, ideal = _busbw(timeline, of)
    return Traffic(part.mean(held), part.mean(hidden), waiting, achieved, ideal)


def _busbw(timeline: Timeline, of: Ints) -> tuple[float, float]:
    """busbw achieved and of the idle, healthy fabric: bytes by the bus factor over time that moved them."""
    met = timeline.collectives
    of = np.unique(of)
    kinds = [_PLAIN.get(timeline.names[kind].replace("-", "").replace("_", "")) for kind in met.kind[of]]
    factor = np.array(
        [
            BUS_FACTORS[kind or "send-recv"](max(2, int(n)))
            for kind, n in zip(kinds, met.group_size[of], strict=True)
        ]
    )
    moved = factor * met.size_bytes[of] if len(of) else np.empty(0)
    length = met.end_s[of] - met.begin_s[of]
    # messages of a few bytes take their latency whatever the network: they say nothing of its rate
    sure = np.isfinite(moved) & (length > 0) & (met.size_bytes[of] > 1024)
    if not sure.any():
        return float("nan"), float("nan")
    achieved = float(moved[sure].sum() / length[sure].sum())
    ideal = met.ideal_s[of][sure]
    fabric = float(moved[sure].sum() / ideal.sum()) if np.isfinite(ideal).all() else float("nan")
    return achieved, fabric


def busy(timeline: Timeline, part: Window, kinds: tuple[DeviceKind, ...]) -> float:
    """Seconds of a step in which work of these kinds ran."""
    rows = np.flatnonzero(np.isin(timeline.device.kind, kinds))
    return part.mean(covered(*_spans(timeline, rows, part), len(timeline.ranks)))


def _spans(timeline: Timeline, rows: Ints, part: Window) -> Spans:
    device = timeline.device
    return clip((device.rank[rows], device.start_s[rows], device.end_s[rows]), part.low_s, part.high_s)


def plain_traffic(found: Mapping[str, Traffic]) -> dict[str, object]:
    """For JSON: totals by their own names, and each axis by its name; None for what is not known."""
    names = ("total_s", "overlapped_s", "exposed_s", "waiting_s", "moving_s")
    rates = ("busbw_bytes_per_s", "fabric_busbw_bytes_per_s")
    plain: dict[str, object] = {}
    whole = found.get("all")
    for name in names[:4]:
        plain[name] = known(getattr(whole, name)) if whole else 0.0
    for axis, values in found.items():
        if axis != "all":
            plain[axis] = {name: known(getattr(values, name)) for name in (*names, *rates)}
    return plain


def known(value: float) -> float | None:
    """None for NaN: JSON has none."""
    return None if np.isnan(value) else float(value)
