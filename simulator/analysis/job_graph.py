"""The dependency graph of a production job's operations, and its replay with other durations.

After the straggler study (OSDI'25, "Understanding Stragglers in Large Model Training Using What-if
Analysis"): a rank computes on one stream, each kind of send and receive has its own, parameters and
gradients have one. A receive comes before its compute and is posted once the compute before that has ended;
a send follows its compute. What follows the last compute runs in its order. A transfer starts when the last
member has come; each member keeps its own time to the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from simulator.errors import SpecError
from simulator.formats.op_tables import OpTable

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
#: what takes a rank's own time: ideal is the mean
COMPUTE: Final = frozenset({FORWARD, BACKWARD, "optimizer", "gc"})
#: between stages: direction and end
PAIRS: Final = {
    "forward-send": (FORWARD, 0), "forward-recv": (FORWARD, -1),
    "backward-send": (BACKWARD, -1), "backward-recv": (BACKWARD, 0),
}  # fmt: skip
GATHER: Final = "params-all-gather"
SCATTER: Final = "grads-reduce-scatter"
#: over data-parallel ranks, besides the two above
_DP: Final = frozenset({GATHER, SCATTER, "separate-grads-all-reduce"})
_CLIP: Final = "optimizer-clip-main-grad"
_EMBEDDING: Final = "embedding-grads-all-reduce"
KNOWN: Final = COMPUTE | PAIRS.keys() | _DP | {_CLIP, _EMBEDDING, "layernorm-grads-all-reduce"}

#: how far clocks of streams may be apart
_APART_S: Final = 50e-6

_Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class JobGraph:
    """Operations by row of the table. Costs and delays are in seconds."""

    cost: Floats  # own duration; for transfers from the last member's start
    delay: Floats  # how long after what it waits for an operation began, as traced
    steps: Ints  # the steps, in order
    step_of: Ints  # place in `steps` of each row
    levels: tuple[_Level, ...]

    def run(self, costs: Floats, delay: Floats | None = None) -> Floats:
        """Seconds of each step, shape (steps, runs), with `costs` of shape (rows, runs)."""
        end = np.zeros(costs.shape)
        for level in self.levels:
            came = end[level.source]
            came[level.source < 0] = 0.0
            if delay is not None:
                came += delay[level.target, None]
            arrived = np.maximum.reduceat(came, level.first, axis=0)
            end[level.rows] = arrived[level.group] + costs[level.rows]
        last = np.zeros((len(self.steps), costs.shape[1]))
        np.maximum.at(last, self.step_of, end)
        return last


@dataclass(frozen=True)
class _Level:
    """Groups that only wait for earlier levels: edges sorted by group, then the groups' rows."""

    source: Ints  # row waited for; -1 for the start of the step
    target: Ints
    first: Ints  # where each group's edges begin
    rows: Ints
    group: Ints  # of each row, counted in the level


def job_graph(table: OpTable) -> JobGraph:
    """Build it. Raises SpecError for unknown types, sends without receives, operations that never meet."""
    c = table.columns
    unknown = sorted(set(np.unique(c["optype"]).tolist()) - KNOWN)
    if unknown:
        expected = ", ".join(sorted(KNOWN))
        raise SpecError.of("operation table: optype", f"'{unknown[0]}': expected one of {expected}")
    edges, peers = _within_ranks(c)
    group = _groups(c, peers)
    steps, step_of = np.unique(c["step"], return_inverse=True)
    start, end = c["start_ts"], c["start_ts"] + c["duration"]
    arrived = np.full(group.max() + 1, -np.inf)
    np.maximum.at(arrived, group, start)
    compute = np.isin(c["optype"], list(COMPUTE))
    cost = np.where(compute, c["duration"], np.maximum(0.0, end - arrived[group]))
    begin = np.full(len(steps), np.inf)
    np.minimum.at(begin, step_of, start)
    held = begin[step_of].copy()
    source, target = np.array(edges or np.zeros((0, 2)), dtype=np.int64).T
    latest = np.full(len(start), -np.inf)
    np.maximum.at(latest, target, end[source])
    held = np.where(np.isfinite(latest), latest, held)
    levels = _levels(source, target, group)
    return JobGraph(cost, start - held, steps, step_of.astype(np.int64), levels)


def _within_ranks(c: dict[str, Any]) -> tuple[_Edges, dict[int, tuple[str, int, int]]]:
    """Edges inside ranks; and of each send and receive (direction, chunk that sends forward, micro-batch)."""
    plain = {name: values.tolist() for name, values in c.items()}
    kinds, chunk, when = plain["optype"], plain["gmc"], plain["start_ts"]
    end = (c["start_ts"] + c["duration"]).tolist()
    chunks = max(chunk) + 1
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.lexsort((c["seq_id"], c["start_ts"], c["rank"], c["step"])).tolist():
        ranks[plain["step"][row], plain["rank"][row]].append(row)
    edges: _Edges = []
    peers: dict[int, tuple[str, int, int]] = {}
    for (step, rank), rows in ranks.items():
        by: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            by[kinds[row]].append(row)
        compute = [row for row in rows if kinds[row] in (FORWARD, BACKWARD)]
        after = [row for row in rows if kinds[row] not in (FORWARD, BACKWARD, GATHER, *PAIRS)]
        # gradients reduced while the backward runs have a stream; otherwise they follow it
        gathers, beside = by[GATHER], []
        if compute and by[SCATTER] and when[by[SCATTER][0]] < when[compute[-1]]:
            beside = by[SCATTER]
            after = [row for row in after if kinds[row] != SCATTER]
        for chain in (compute, gathers + beside, after, *(by[name] for name in PAIRS)):
            edges += pairwise(chain)
        for last in (compute[-1:], beside[-1:]) if after else ():
            edges += [(row, after[0]) for row in last]
        mc = plain["mc"]
        edges += [(max(g for g in gathers if mc[g] == one), first) for one, first in _firsts(by[FORWARD], mc)
                  if any(mc[g] == one for g in gathers)]  # fmt: skip
        lasts = {mc[row]: row for row in by[BACKWARD]}
        edges += [(lasts[mc[row]], row) for row in beside if mc[row] in lasts]
        for name, (direction, offset) in PAIRS.items():
            computes = by[direction]
            needed = [row for row in computes if 0 <= chunk[row] + offset < chunks - 1]
            mine = [row for row in by[name] if _of_use(name, when[row], end[row], computes, when, end)]
            # with virtual stages every compute may have one, or all but the first, whether needed or not
            ways = (computes, needed, computes[1:] if name.endswith("-recv") else needed)
            matched = next((way for way in ways if len(way) == len(mine)), needed)
            if len(mine) != len(matched):
                what = f"step {step}, rank {rank}: {len(mine)} {name} for {len(matched)} {direction}"
                raise SpecError.of("operation table", f"{what}: expected one each")
            for place, (transfer, own) in enumerate(zip(mine, matched, strict=True)):
                if own in needed:
                    peers[transfer] = direction, chunk[own] + offset, plain["mb_id"][own]
                if name.endswith("-send"):
                    edges.append((own, transfer))
                    continue
                edges.append((transfer, own))
                if place:
                    edges.append((matched[place - 1], transfer))
        edges += _first_backward(compute, kinds, by)
    return edges, peers


def _of_use(
    name: str, start_s: float, end_s: float, computes: list[int], when: list[float], end: list[float]
) -> bool:
    """Whether a compute can go with it: receives after the last one, sends before the first, are for show."""
    if not computes:
        return True
    if name.endswith("-recv"):
        return start_s <= max(when[row] for row in computes) + _APART_S
    return end_s >= min(end[row] for row in computes) - _APART_S


def _firsts(rows: list[int], mc: list[int]) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for row in rows:
        found.setdefault(mc[row], row)
    return list(found.items())


def _first_backward(compute: list[int], kinds: list[str], by: dict[str, list[int]]) -> _Edges:
    """The first receive of gradients is posted after the last but one forward before the first backward."""
    first = next((place for place, row in enumerate(compute) if kinds[row] == BACKWARD), 0)
    mine = by["backward-recv"][:1] + by["backward-send"][:1]
    return [(compute[first - 2], row) for row in mine] if first >= 2 else []


def _groups(c: dict[str, Any], peers: dict[int, tuple[str, int, int]]) -> Ints:
    """The number of each row's group: itself, or those that transfer together."""
    cells: dict[tuple[int, int], set[int]] = defaultdict(set)
    where = list(zip(c["dp_rank"].tolist(), c["stage"].tolist(), c["rank"].tolist(), strict=True))
    for dp, stage, rank in where:
        cells[dp, stage].add(rank)
    lane = {rank: place for ranks in cells.values() for place, rank in enumerate(sorted(ranks))}
    numbers: dict[Any, int] = {}
    found = []
    columns = zip(
        c["optype"].tolist(), c["step"].tolist(), c["seq_id"].tolist(), c["mc"].tolist(), strict=True
    )
    for row, (kind, step, seq, mc) in enumerate(columns):
        dp, stage, rank = where[row]
        key: Any = row
        if row in peers:
            key = (step, dp, lane[rank], *peers[row])
        elif kind in _DP:
            key = (step, kind, stage, lane[rank], seq, mc)
        elif kind == _EMBEDDING:
            key = (step, kind, dp, lane[rank], seq)
        elif kind == _CLIP:
            key = (step, kind, seq)
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, dtype=np.int64)


def _levels(source: Ints, target: Ints, group: Ints) -> tuple[_Level, ...]:
    """Groups by the longest way from the start. Raises SpecError where they wait for each other."""
    count = int(group.max()) + 1
    into, onto = group[source], group[target]
    order = np.argsort(into, kind="stable")
    begin = np.searchsorted(into[order], np.arange(count + 1))
    waits = np.bincount(onto, minlength=count)
    level = np.full(count, -1, dtype=np.int64)
    front, number = np.flatnonzero(waits == 0), 0
    while len(front):
        level[front] = number
        number += 1
        spans = [order[begin[one] : begin[one + 1]] for one in front.tolist()]
        reached = onto[np.concatenate(spans)]
        np.subtract.at(waits, reached, 1)
        front = np.unique(reached[waits[reached] == 0])
    if (level < 0).any():
        raise SpecError.of("operation table", "operations wait for each other: expected an order that runs")
    # an operation without a predecessor begins with its step
    roots = np.setdiff1d(np.arange(len(group)), target)
    source = np.concatenate([source, np.full(len(roots), -1)])
    target = np.concatenate([target, roots])
    edges = _split(level[group[target]], group[target], number)
    rows = _split(level[group], group, number)
    found = []
    for mine, of in zip(edges, rows, strict=True):
        _, first = np.unique(group[target[mine]], return_index=True)
        _, place = np.unique(group[of], return_inverse=True)
        found.append(_Level(source[mine], target[mine], first, of, place))
    return tuple(found)


def _split(level: Ints, group: Ints, count: int) -> list[Ints]:
    """Indices of each level, by group."""
    order = np.lexsort((group, level))
    return np.split(order, np.searchsorted(level[order], np.arange(1, count)))
