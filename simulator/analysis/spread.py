"""How the ranks of a run differ, and what that says: one machine, one GPU, one host, one group's
network, one stage, everyone's network, work that changes from step to step, or everyone alike.

The questions are asked in a fixed order, each a robust test of its own, and the first that says yes
is the verdict. The tests share `false_alarms` evenly, so that on healthy machines, whose lasting
differences and jitter are normal, some machine is accused with at most that probability. A
difference below `least` is never called: it would not explain a slow step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from simulator.analysis.gaps import main_streams
from simulator.analysis.intervals import Bools, Floats, Ints, total
from simulator.analysis.outliers import Outlier, machines, ranks_of_machines, weighted_median
from simulator.analysis.utilisation import arrivals
from simulator.timeline import DeviceKind, Timeline

Sort = Literal["node", "rank", "host", "group", "stage", "network", "lengths", "jitter", "everyone"]

#: tests that can accuse a machine: nodes, ranks, hosts, groups
_TESTS: Final = 4
#: work varies if the slowest rank of a step is this far above the median of its stage
_VARIES: Final = 0.02
#: lengths change forwards and backwards, jitter the optimizer too: spreads this many times apart
_APART: Final = 2.0
#: a group's network is slow if its collectives take this much longer than those of their like
_SLOW_NETWORK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    """The verdict.

    `sort`: what differs. `ranks`, `nodes`: who is meant (all members of the group, or ranks of the
    stage); empty where nobody is. `excess`: how far above the others, as a share: of their compute
    (node, rank, stage, lengths, jitter), of the step (host), of the time that collectives move bytes
    (group; network: above an idle, healthy fabric). `p_value`: of the test, Bonferroni included; 1
    where none was made.
    """

    sort: Sort
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    excess: float
    p_value: float
    text: str


def spread(
    timeline: Timeline, first_step: int = 0, *, false_alarms: float = 0.01, least: float = 0.02
) -> Spread:
    """Say how ranks differ over the steps from `first_step` on.

    `false_alarms`: probability of accusing a machine when all are alike, 0 to 1; `least`: smallest
    difference of interest, a share.
    """
    view = _View(timeline, first_step)
    for found in _verdicts(view, false_alarms / _TESTS, least):
        if found is not None:
            return found
    return Spread("everyone", (), (), 0.0, 1.0, "ranks are alike: what is slow is slow for everyone")


class _View:
    """What the tests look at, for the lanes that have spans."""

    def __init__(self, timeline: Timeline, first_step: int):
        self.timeline, self.first_step = timeline, first_step
        compute = _own_compute(timeline)[:, first_step:]
        self.lanes: Ints = np.flatnonzero((compute > 0).all(axis=1))
        self.compute = compute[self.lanes]  # (lanes, steps)
        ranks = timeline.ranks
        self.node = np.array([ranks[i].node for i in self.lanes], dtype=np.int64)
        self.stage = np.array([ranks[i].role for i in self.lanes], dtype=np.int64)
        self.count = np.array([ranks[i].multiplicity for i in self.lanes], dtype=np.float64)
        steps = timeline.steps
        self.step_s = float((steps[:, -1, 1] - steps[:, first_step, 0]).mean()) / compute.shape[1]

    def of_stage(self, values: Floats) -> Floats:
        """Each value less its stage's median, which is taken over ranks; shape of `values`."""
        result = np.empty_like(values)
        for stage in np.unique(self.stage):
            mine = self.stage == stage
            columns = values[mine].reshape(int(mine.sum()), -1)
            middle = [weighted_median(column, self.count[mine]) for column in columns.T]
            result[mine] = values[mine] - (middle if values.ndim > 1 else middle[0])
        return result

    def accuse(
        self, sort: Sort, mask: Bools, outlier: Outlier, text: str, excess: float | None = None
    ) -> Spread:
        lanes = [self.timeline.ranks[i] for i in self.lanes[mask]]
        nodes = tuple(sorted({lane.node for lane in lanes}))
        ranks = tuple(lane.rank for lane in lanes)
        how = float(np.expm1(outlier.excess)) if excess is None else excess
        return Spread(sort, ranks, nodes, how, outlier.p_value, text.format(100 * how))


def _verdicts(view: _View, false_alarms: float, least: float) -> Iterator[Spread | None]:
    if len(view.lanes) == 0:
        return
    compute = view.of_stage(np.log(view.compute).mean(axis=1))  # logarithms: their mean is nearer normal
    yield _node(view, compute, false_alarms, least)
    yield _rank(view, compute, false_alarms, least)
    yield _host(view, false_alarms, least)
    yield _group(view, false_alarms)
    yield _stage(view, least)
    yield _network(view, least)
    yield _varying(view)


def _node(view: _View, compute: Floats, false_alarms: float, least: float) -> Spread | None:
    found = machines(compute, view.node, view.count, false_alarms=false_alarms, least=least)
    if not found:
        return None
    text = f"node {found[0].unit} computes {{:.1f}}% longer than the others"
    if len(found) > 1:
        text += f", and {len(found) - 1} more nodes do"
    return view.accuse("node", view.node == found[0].unit, found[0], text)


def _rank(view: _View, compute: Floats, false_alarms: float, least: float) -> Spread | None:
    found = ranks_of_machines(compute, view.node, view.count, false_alarms=false_alarms, least=least)
    if not found:
        return None
    lane = view.timeline.ranks[view.lanes[found[0].unit]]
    text = f"rank {lane.rank} on node {lane.node} computes {{:.1f}}% longer than the others of its node"
    return view.accuse("rank", np.arange(len(view.lanes)) == found[0].unit, found[0], text)


def _host(view: _View, false_alarms: float, least: float) -> Spread | None:
    """Who comes late to collectives in every step though it computes no longer: its host held it up.

    Lateness has a long tail, so its size gives no probability. Its order does: of n ranks alike, one
    is among the latest share q in all of k steps with probability q^k, whatever the distribution.
    """
    late = _lateness(view)
    if late is None:
        return None
    excess = (view.of_stage(late) - np.maximum(0.0, view.of_stage(view.compute))) / view.step_s
    share = np.empty_like(excess)
    for step, column in enumerate(excess.T):
        values, index = np.unique(-column, return_inverse=True)
        reached = np.cumsum(np.bincount(index, weights=view.count, minlength=len(values)))
        share[:, step] = reached[index] / reached[-1]
    p_value = np.minimum(1.0, view.count.sum() * share.max(axis=1) ** share.shape[1])
    size = np.median(excess, axis=1)
    found = np.flatnonzero((p_value <= false_alarms) & (size >= least))
    if not len(found):
        return None
    worst = found[np.argmax(size[found])]
    node = view.node[worst]
    whole = view.node == node
    outlier = Outlier(int(worst), float(size[worst]), float(p_value[worst]))
    tail = "comes late to collectives in every step, by {:.1f}% of it, and computes no longer: its host"
    if whole.sum() > 1 and np.isin(np.flatnonzero(whole), found).mean() > 0.5:
        return view.accuse("host", whole, outlier, f"node {node} {tail}", outlier.excess)
    who = view.timeline.ranks[view.lanes[worst]]
    text = f"rank {who.rank} on node {who.node} {tail}"
    return view.accuse("host", np.arange(len(view.lanes)) == worst, outlier, text, outlier.excess)


def _lateness(view: _View) -> Floats | None:
    """Mean lateness at collectives, shape (lanes with spans, steps); None without collectives."""
    row, _, late = arrivals(view.timeline, view.first_step)
    if not len(row):
        return None
    lanes, steps = len(view.timeline.ranks), view.compute.shape[1]
    step = view.timeline.device.step[row] - view.first_step
    inside = step < steps
    cell = (view.timeline.device.rank[row] * steps + step)[inside]
    counts = np.maximum(1, np.bincount(cell, minlength=lanes * steps))
    means = total(cell, late[inside], lanes * steps) / counts
    result: Floats = means.reshape(lanes, steps)[view.lanes]
    return result


def _group(view: _View, false_alarms: float) -> Spread | None:
    """A group whose collectives move bytes more slowly than those of other groups along its axis.

    A ring goes at the pace of its slowest link, so that all its members see the same: the group is
    named, and one of its members' NICs or links is meant.
    """
    paces = _paces(view)
    axis = np.array([one.axis for one in paces], dtype=np.int64)
    pace = np.log([max(1e-9, one.moving_s / one.ideal_s) for one in paces])
    for number in np.unique(axis).tolist():
        mine = np.flatnonzero(axis == number)
        ranks = np.array([paces[i].ranks for i in mine], dtype=np.float64)
        found = machines(
            pace[mine], np.arange(len(mine)), ranks,
            false_alarms=false_alarms / len(np.unique(axis)), least=float(np.log1p(_SLOW_NETWORK)),
        )  # fmt: skip
        if found:
            one = paces[mine[found[0].unit]]
            text = (
                f"collectives of one group along {view.timeline.names[number]} move bytes {{:.1f}}% longer "
                "than those of its like: a NIC or a link of its members"
            )
            return view.accuse("group", np.isin(view.lanes, one.lanes), found[0], text)
    return None


def _network(view: _View, least: float) -> Spread | None:
    """Collectives that take longer than on an idle, healthy fabric, in all groups alike."""
    worst: tuple[float, float, int] | None = None
    paces = _paces(view)
    steps, lanes = view.compute.shape[1], max(1, len(view.lanes))
    for number in {one.axis for one in paces}:
        mine = [one for one in paces if one.axis == number]
        moving = sum(one.moving_s * len(one.lanes) for one in mine)
        ideal = sum(one.ideal_s * len(one.lanes) for one in mine)
        lost = (moving - ideal) / steps / lanes
        if moving > (1 + _SLOW_NETWORK) * ideal and lost > least * view.step_s:
            worst = max(worst or (0.0, 0.0, 0), (lost, moving / ideal - 1, number))
    if worst is None:
        return None
    name = view.timeline.names[worst[2]]
    text = (
        f"collectives along {name} move bytes {100 * worst[1]:.1f}% longer than on an idle, healthy fabric, "
        "for everyone alike: a slow link that all cross, other traffic, or collectives in each other's way"
    )
    return Spread("network", (), (), worst[1], 1.0, text)


@dataclass(frozen=True, slots=True)
class _Pace:
    """A group's collectives along an axis: seconds that moved bytes, and on an idle healthy fabric.

    `lanes`: its members' that the timeline has; `ranks`: ranks that those stand for.
    """

    axis: int
    lanes: tuple[int, ...]
    ranks: int
    moving_s: float
    ideal_s: float


def _paces(view: _View) -> list[_Pace]:
    device, table = view.timeline.device, view.timeline.collectives
    row = np.flatnonzero(
        (device.kind == DeviceKind.COLLECTIVE) & (device.collective >= 0) & (device.step >= view.first_step)
    )
    row = row[np.argsort(device.collective[row], kind="stable")]
    first = np.flatnonzero(np.diff(device.collective[row], prepend=-1))
    sums: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for rows in np.split(row, first[1:]) if len(row) else []:
        one = int(device.collective[rows[0]])
        if table.ideal_s[one] > 0:
            key = int(table.axis[one]), tuple(np.unique(device.rank[rows]).tolist())
            entry = sums.setdefault(key, [0.0, 0.0])
            entry[0] += float(table.end_s[one] - table.begin_s[one])
            entry[1] += float(table.ideal_s[one])
    ranks = view.timeline.ranks
    return [
        _Pace(axis, lanes, sum(ranks[lane].multiplicity for lane in lanes), moving, ideal)
        for (axis, lanes), (moving, ideal) in sums.items()
    ]


def _stage(view: _View, least: float) -> Spread | None:
    """A stage that computes longer than the middle one: the layers are not balanced."""
    stages = np.unique(view.stage)
    if len(stages) < 2:
        return None
    mean = view.compute.mean(axis=1)
    middle = np.array(
        [weighted_median(mean[view.stage == stage], view.count[view.stage == stage]) for stage in stages]
    )
    worst = int(middle.argmax())
    excess = float(np.log(middle[worst] / np.median(middle)))
    if excess < least:
        return None
    text = f"stage {stages[worst]} computes {{:.1f}}% longer than the middle stage: imbalance"
    return view.accuse("stage", view.stage == stages[worst], Outlier(worst, excess, 1.0), text)


def _varying(view: _View) -> Spread | None:
    """Each step another rank is slowest: lengths of sequences, or jitter of every kernel."""
    logs = view.of_stage(np.log(view.compute))
    slowest = float(np.expm1(np.median(logs.max(axis=0))))
    if view.compute.shape[1] < 2 or slowest < _VARIES or _lasting(logs):
        return None
    work = _scatter(view, _by_kind(view, (DeviceKind.COMPUTE, DeviceKind.RECOMPUTE)))
    optimizer = _scatter(view, _by_kind(view, (DeviceKind.OPTIMIZER,)))
    if work > _APART * optimizer:
        text = (
            "each step another rank computes longest, {:.1f}% above the median, the optimizer alike: lengths"
        )
        sort: Sort = "lengths"
    else:
        text = "each step another rank computes longest, {:.1f}% above the median, the optimizer too: jitter"
        sort = "jitter"
    return Spread(sort, (), (), slowest, 1.0, text.format(100 * slowest))


def _lasting(logs: Floats) -> bool:
    """Whether ranks differ for good more than from step to step: variances between and within."""
    steps = logs.shape[1]
    within = float(logs.var(axis=1, ddof=1).mean())
    between = float(logs.mean(axis=1).var()) - within / steps
    return bool(between > within)


def _scatter(view: _View, seconds: Floats) -> float:
    """Standard deviation of the logarithm over ranks within steps, 0 where there is nothing."""
    if not (seconds > 0).all():
        return 0.0
    logs = view.of_stage(np.log(seconds))
    return float((logs - logs.mean(axis=1, keepdims=True)).std())


def _by_kind(view: _View, kinds: tuple[DeviceKind, ...]) -> Floats:
    own = _own_compute(view.timeline, kinds)
    return own[view.lanes][:, view.first_step :]


def _own_compute(
    timeline: Timeline,
    kinds: tuple[DeviceKind, ...] = (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER, DeviceKind.RECOMPUTE),
) -> Floats:
    """Time that kernels took by themselves, shape (lanes, steps).

    What overlapping communication added is left out where it is known: who waits longest is slowed
    by it most, which would hide who is slow.
    """
    device = timeline.device
    lanes, steps = timeline.steps.shape[:2]
    mask = np.isin(device.kind, kinds) & (device.step >= 0) & (device.step < steps)
    mask &= main_streams(timeline)[device.stream] if len(device) else mask
    duration = device.end_s - device.start_s
    busy = np.where(np.isnan(device.busy_s), duration, np.minimum(device.busy_s, duration))
    own = np.where(np.isnan(device.alone_s), busy, device.alone_s + np.nan_to_num(device.fault_s))
    cell = device.rank[mask] * steps + device.step[mask]
    return total(cell, np.maximum(0.0, own[mask]), lanes * steps).reshape(lanes, steps)
