"""What a diagnosis' page draws: stretches of chosen ranks by cause, and compute by rank and step.

Times go out as whole steps of 0.1 us from the window's start, so that a page of tens of thousands of
stretches stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from simulator.analysis.causes import BUBBLE, LAUNCH, OF_HOST, WAITING, Causes
from simulator.analysis.gaps import Pieces, pieces
from simulator.analysis.intervals import Floats, Ints, total, union
from simulator.analysis.stretches import stretches
from simulator.analysis.utilisation import compute_by_step
from simulator.analysis.waterfall import by_step
from simulator.report.trace import choose
from simulator.study.finding import Diagnosis
from simulator.timeline import DeviceKind, HostKind, Timeline

#: ranks of the timeline unless asked for others
_RANKS: Final = 8
#: stretches that a page holds; beyond it fewer steps are shown, then short stretches join
_STRETCHES: Final = 40_000
#: rows of the heat map
_ROWS: Final = 128
#: time of one unit of the page
_TICK_S: Final = 1e-7

#: a host that issues work, which is no fault of its own
LAUNCHING: Final = "launching"

_DATA: Final = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)


def timeline_data(found: Diagnosis, ranks: Iterable[int] | None = None) -> dict[str, Any]:
    """Rows of stretches of the chosen ranks. Raises SpecError for ranks that have no lane of their own."""
    timeline = found.timeline
    causes = Causes(timeline)
    lanes = list(choose(timeline, ranks).lanes) if ranks is not None else telling(found)
    steps = _steps(found, lanes)
    low = float(timeline.steps[lanes, steps[0], 0].min())
    high = float(timeline.steps[lanes, steps[-1], 1].max())
    bounds = np.full(len(timeline.ranks), low), np.full(len(timeline.ranks), high)
    whole = stretches(timeline, causes, *bounds) if found.profiled else pieces(timeline, causes)
    rows = []
    for lane in lanes:
        about = timeline.ranks[lane]
        label = f"rank {about.rank}" + (
            f" (and {about.multiplicity - 1:,} alike)" if about.multiplicity > 1 else ""
        )
        stage = f", stage {about.role}" if len({one.role for one in timeline.ranks}) > 1 else ""
        node = f"node {about.node}{stage}" if about.node >= 0 else stage.removeprefix(", ")
        parts = [("GPU", *_of_pieces(whole, lane)), *_talks(timeline, causes, lane)]
        parts.append(("host", *_of_host(timeline, causes, lane)))
        rows.append(
            {
                "label": label,
                "about": node,
                "rows": [_row(*part, low, high, _STRETCHES // max(1, 3 * len(lanes))) for part in parts],
            }
        )
    return {
        "causes": [*causes.names, LAUNCHING],
        "lanes": rows,
        "tick_s": _TICK_S,
        "length": round((high - low) / _TICK_S),
        "start_s": low,
        "steps": [
            [step, *(round((edge - low) / _TICK_S) for edge in _edges(timeline, lanes, step))]
            for step in steps
        ],
    }


def telling(found: Diagnosis) -> list[int]:
    """Lanes worth a look: who is named, who computes longest and least, the first of each stage."""
    timeline = found.timeline
    compute = compute_by_step(timeline)[:, found.first_step :].mean(axis=1)
    seen = np.flatnonzero(np.bincount(timeline.device.rank, minlength=len(timeline.ranks)) > 0).tolist()
    named = [i for i in seen if timeline.ranks[i].rank == found.spread.get("rank")]
    stages: dict[int, int] = {}
    for lane in seen:
        stages.setdefault(timeline.ranks[lane].role, lane)
    by_compute = sorted(seen, key=lambda lane: -compute[lane])
    firsts = list(stages.values())
    evidence = [one.rank for shown in found.evidence.values() for one in shown[:1]]
    seen_at = [i for i in seen if timeline.ranks[i].rank in evidence]
    order = [*named, *seen_at[:2], *by_compute[:1], firsts[0], firsts[-1], *by_compute[-1:], *firsts, *seen]
    return sorted(list(dict.fromkeys(order))[:_RANKS])


def _steps(found: Diagnosis, lanes: Sequence[int]) -> list[int]:
    """The measured steps, or, where they hold too much, the slowest one."""
    timeline = found.timeline
    count = timeline.steps.shape[1]
    spans = np.isin(timeline.device.rank, lanes) & (timeline.device.step >= found.first_step)
    if int(spans.sum()) <= _STRETCHES:
        return list(range(found.first_step, count))
    lengths = (timeline.steps[lanes, :, 1] - timeline.steps[lanes, :, 0]).mean(axis=0)
    return [found.first_step + int(lengths[found.first_step :].argmax())]


def _edges(timeline: Timeline, lanes: Sequence[int], step: int) -> tuple[float, float]:
    return float(timeline.steps[lanes, step, 0].min()), float(timeline.steps[lanes, step, 1].max())


_Part = tuple[Floats, Floats, Ints]


def _of_pieces(whole: Pieces, lane: int) -> _Part:
    mine = whole.rank == lane
    return whole.start_s[mine], whole.end_s[mine], whole.cause[mine]


def _talks(timeline: Timeline, causes: Causes, lane: int) -> list[tuple[str, Floats, Floats, Ints]]:
    """A row an axis: until the last member came, then bytes."""
    device, met = timeline.device, timeline.collectives
    rows = np.flatnonzero((device.rank == lane) & np.isin(device.kind, _DATA))
    axis = causes.axis_of_spans(timeline)[rows] if len(rows) else rows
    found = []
    for number in np.unique(axis).tolist():
        mine = rows[axis == number]
        known = device.collective[mine] >= 0
        begin = device.start_s[mine].copy()
        begin[known] = met.begin_s[device.collective[mine[known]]]
        begin = np.clip(begin, device.start_s[mine], device.end_s[mine])
        none = np.zeros(len(mine), dtype=np.int64)
        waits = union(none, device.start_s[mine], begin)
        moves = union(none, begin, device.end_s[mine])
        colour = np.concatenate([np.full(len(waits[0]), causes[WAITING]), np.full(len(moves[0]), number)])
        name = causes.names[number].removeprefix("exposed ").removesuffix(" communication")
        found.append(
            (name, np.concatenate([waits[1], moves[1]]), np.concatenate([waits[2], moves[2]]), colour)
        )
    return found


def _of_host(timeline: Timeline, causes: Causes, lane: int) -> _Part:
    host = timeline.host
    mine = np.flatnonzero(host.rank == lane)
    mine = mine[np.argsort(host.start_s[mine], kind="stable")]
    colours = [len(causes) if OF_HOST[kind] == LAUNCH else causes[OF_HOST[kind]] for kind in HostKind]
    colour = np.array(colours)[host.kind[mine]]
    return host.start_s[mine], host.end_s[mine], colour


def _row(
    name: str, start: Floats, end: Floats, cause: Ints, low: float, high: float, most: int
) -> dict[str, Any]:
    """Stretches in order, joined where neighbours have one cause; the shortest left out if there are too many."""
    keep = (end > low) & (start < high) & (end > start)
    start, end, cause = np.clip(start[keep], low, high), np.clip(end[keep], low, high), cause[keep]
    order = np.argsort(start, kind="stable")
    start, end, cause = start[order], end[order], cause[order]
    if len(start):
        new = np.ones(len(start), dtype=np.bool_)
        new[1:] = (cause[1:] != cause[:-1]) | (start[1:] > end[:-1] + _TICK_S / 2)
        first = np.flatnonzero(new)
        start, end, cause = start[first], np.maximum.reduceat(end, first), cause[first]
    if len(start) > most:
        longest = np.sort(np.argsort(start - end, kind="stable")[:most])
        start, end, cause = start[longest], end[longest], cause[longest]
    return {
        "name": name,
        "start": np.round((start - low) / _TICK_S).astype(np.int64).tolist(),
        "length": np.maximum(1, np.round((end - start) / _TICK_S)).astype(np.int64).tolist(),
        "cause": cause.tolist(),
    }


def heat_data(found: Diagnosis) -> dict[str, Any]:
    """Each rank's time in each step against the median of its stage: its compute, and what it held others up
    with (the step less its own waits for others), which a profiler's trace does not tell.
    """
    timeline = found.timeline
    first = found.first_step
    compute = compute_by_step(timeline)[:, first:]
    seen = np.flatnonzero((compute > 0).any(axis=1))
    measures = {"compute": compute}
    if not found.profiled:
        measures = {"own time, the step less its waits for others": _own(timeline)[:, first:], **measures}
    against = {name: _against(timeline, seconds, seen) for name, seconds in measures.items()}
    shown = seen
    if len(seen) > _ROWS:  # those that stand out, in order of rank
        most = np.max([np.nanmax(np.abs(one[seen]), axis=1) for one in against.values()], axis=0)
        shown = np.sort(seen[np.argsort(-most, kind="stable")[:_ROWS]])
    lanes = [timeline.ranks[lane] for lane in shown.tolist()]
    return {
        "ranks": [
            f"rank {one.rank}" + (f" (x{one.multiplicity:,})" if one.multiplicity > 1 else "")
            for one in lanes
        ],
        "nodes": [one.node for one in lanes],
        "steps": list(range(first, timeline.steps.shape[1])),
        "measures": [
            {
                "name": name,
                "seconds": np.round(measures[name][shown], 7).tolist(),
                "against": [
                    [None if np.isnan(x) else round(x, 5) for x in row]
                    for row in against[name][shown].tolist()
                ],
            }
            for name in measures
        ],
        "left_out": len(seen) - len(lanes),
    }


def _own(timeline: Timeline) -> Floats:
    """Seconds of each lane's steps that it did not wait for others, shape (lanes, steps)."""
    causes = Causes(timeline)
    parts, step = by_step(pieces(timeline, causes), timeline)
    lanes, steps = timeline.steps.shape[:2]
    waits = np.isin(parts.cause, (causes[WAITING], causes[BUBBLE]))
    spent = np.where(waits, 0.0, parts.end_s - parts.start_s)
    return total(parts.rank * steps + step, spent, lanes * steps).reshape(lanes, steps)


def _against(timeline: Timeline, seconds: Floats, seen: Ints) -> Floats:
    """Each lane's seconds over the median of its stage in that step, less one; NaN for unseen lanes."""
    stage = np.array([lane.role for lane in timeline.ranks])
    count = np.array([lane.multiplicity for lane in timeline.ranks])
    found = np.full(seconds.shape, np.nan)
    for one in np.unique(stage[seen]).tolist():
        mine = seen[stage[seen] == one]
        middle = np.median(np.repeat(seconds[mine], count[mine], axis=0), axis=0)
        found[mine] = seconds[mine] / np.where(middle > 0, middle, np.nan) - 1
    return found
