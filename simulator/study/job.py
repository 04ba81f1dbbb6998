"""What-if replay of a production job's operation table, as the OSDI'25 straggler study defines it

Each rank's operations run in traced order; sends and receives of one start are one batch; a transfer begins
when its last member has arrived. Launch delays are left out. Not told apart: virtual stages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.errors import SpecError
from simulator.formats.op_tables import OpTable

_LOCAL = frozenset({"forward-compute", "backward-compute", "optimizer", "gc"})
_Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class JobReport:
    """Mean seconds a step as traced, replayed, and with ideal durations; slowdowns over the last."""

    traced_s: float
    replayed_s: float
    ideal_s: float
    by_stage: dict[str, float]
    by_dp_rank: dict[str, float]
    by_optype: dict[str, float]

    @property
    def slowdown(self) -> float:
        """S: mean replayed step over mean ideal step"""
        return self.replayed_s / self.ideal_s


def study_job(table: OpTable) -> JobReport:
    """Replay a job with traced and with ideal durations. Raises SpecError where operations never meet."""
    job = _Job(table)
    actual, ideal = job.actual, job.ideal()
    base = job.replay(ideal)

    def kept(column: str) -> dict[str, float]:
        values = table.columns[column]
        found = {}
        for one in np.unique(values):
            mine = np.array([any(values[i] == one for i in members) for members in job.groups])
            found[str(one)] = job.replay(np.where(mine, actual, ideal)) / base
        return found

    traced = float(np.mean(list(table.step_seconds().values())))
    return JobReport(traced, job.replay(actual), base, kept("stage"), kept("dp_rank"), kept("optype"))


class _Job:
    def __init__(self, table: OpTable) -> None:
        c = {name: values.tolist() for name, values in table.columns.items()}
        self.type: list[str] = c["optype"]
        if len(set(c["gmc"]) - {-1}) > len(set(c["stage"])) or any(mc > 0 for mc in c["mc"]):
            raise SpecError.of("operation table", "virtual stages: expected one model chunk a stage")
        self.where = list(zip(c["step"], c["rank"], strict=True))
        cells: dict[tuple[int, int], set[int]] = defaultdict(set)
        for dp, stage, rank in zip(c["dp_rank"], c["stage"], c["rank"], strict=True):
            cells[dp, stage].add(rank)
        lane = {rank: k for ranks in cells.values() for k, rank in enumerate(sorted(ranks))}
        self.queues: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        before: Any = None
        for i in sorted(range(len(table)), key=lambda i: (*self.where[i], c["start_ts"][i])):
            kind, step, stage, seq, dp = (
                self.type[i],
                c["step"][i],
                c["stage"][i],
                c["seq_id"][i],
                c["dp_rank"][i],
            )
            rank_lane = lane[c["rank"][i]]
            pair = kind.endswith(("-send", "-recv"))
            now = (self.where[i], c["start_ts"][i]) if pair else None
            if pair and now == before:
                self.queues[self.where[i]][-1].append(i)
            else:
                self.queues[self.where[i]].append([i])
            before = now
            if pair:
                edge = stage if kind in ("forward-send", "backward-recv") else stage - 1
                key: tuple[Any, ...] = (step, kind.split("-")[0], dp, rank_lane, edge, seq)
            elif kind in ("params-all-gather", "grads-reduce-scatter"):
                key = (step, kind, stage, rank_lane, seq)
            elif kind == "embedding-grads-all-reduce":
                key = (step, kind, dp, rank_lane, seq)
            elif kind == "layernorm-grads-all-reduce":
                key = (step, kind, dp, stage, seq)
            else:
                key = (step, kind, seq) if kind == "optimizer-clip-main-grad" else (step, kind, "own", i)
            groups[key].append(i)
        self.groups = list(groups.values())
        self.group_of = {i: g for g, members in enumerate(self.groups) for i in members}
        start, length = table.columns["start_ts"], table.columns["duration"]
        end = start + length
        self.kinds = np.array([self._kind(m[0]) for m in self.groups])
        self.actual: _Floats = np.array(
            [
                length[m[0]] if self.type[m[0]] in _LOCAL else max(0.0, end[m].min() - start[m].max())
                for m in self.groups
            ]
        )

    def _kind(self, i: int) -> str:
        kind = self.type[i]
        return kind.split("-")[0] if kind.endswith(("-send", "-recv")) else kind

    def ideal(self) -> _Floats:
        """Mean of its type for compute, median for transfers"""
        found = self.actual.copy()
        for kind in np.unique(self.kinds):
            mine = self.kinds == kind
            found[mine] = self.actual[mine].mean() if kind in _LOCAL else np.median(self.actual[mine])
        return found

    def replay(self, seconds: _Floats) -> float:
        """Mean step in seconds where each group of operations takes `seconds`"""
        cost: list[float] = seconds.tolist()
        need, ready = [len(m) for m in self.groups], [0.0] * len(self.groups)
        position, pending = dict.fromkeys(self.queues, 0), dict.fromkeys(self.queues, 0)
        clock, steps = dict.fromkeys(self.queues, 0.0), dict.fromkeys((step for step, _ in self.queues), 0.0)
        free = list(self.queues)
        finished = 0
        while free:
            rank = free.pop()
            now = clock[rank]
            if position[rank] == len(self.queues[rank]):
                steps[rank[0]] = max(steps[rank[0]], now)
                finished += 1
                continue
            batch = self.queues[rank][position[rank]]
            position[rank] += 1
            pending[rank] = len(batch)
            for i in batch:
                g = self.group_of[i]
                need[g] -= 1
                ready[g] = max(ready[g], now)
                if need[g]:
                    continue
                for member in self.groups[g]:
                    other = self.where[member]
                    pending[other] -= 1
                    clock[other] = max(clock[other], ready[g] + cost[g])
                    if not pending[other]:
                        free.append(other)
        if finished < len(self.queues):
            raise SpecError.of(
                "operation table", "operations wait for each other: expected an order that runs"
            )
        return float(np.mean(list(steps.values())))
