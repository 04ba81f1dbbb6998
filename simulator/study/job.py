"""What slows a production job: its operations replayed with ideal durations, all or all but some.

The definitions are the straggler study's (OSDI'25): the ideal of compute is the mean of its type, of a transfer the
median; S is the step without launch delays over the step with every duration ideal; what a stage, dp rank,
type or worker is worth is the step in which only it keeps its durations, over the ideal step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from simulator.analysis.job_graph import BACKWARD, COMPUTE, FORWARD, Floats, JobGraph, job_graph
from simulator.formats.op_tables import OpTable

#: below this slowdown a job has no straggler to speak of; the study counts jobs from 1.1 on
_LEAST: Final = 1.03
#: regains at least this share of what is lost: it holds the slowdown
_HOLDS: Final = 0.5
#: forward and backward of a micro-batch agree this well where the data decides, says the study
_TOGETHER: Final = 0.9
#: values of one replay, in batches of runs
_CELLS: Final = 8_000_000

Shares = Mapping[str, float]


@dataclass(frozen=True)
class JobReport:
    """Mean seconds a step: traced, replayed with nothing changed, without launch delays, and ideal.

    `by_...` are slowdowns with only that kept as traced (`per_step`: in each step), `regained` the share of
    what is lost that comes back where only that is made ideal, or ("data") each worker's micro-batches alike.
    Workers are named "dp rank,stage". `sort` is one of data, worker, stage, dp rank, communication, spread,
    none; `finding` says it in words.
    """

    traced_s: float
    replayed_s: float
    undelayed_s: float
    ideal_s: float
    by_stage: Shares
    by_dp_rank: Shares
    by_optype: Shares
    by_worker: Shares
    by_step: Shares
    per_step: Mapping[str, Mapping[str, Shares]]  # stage, dp rank, type -> step -> its parts
    replay_error: float  # the largest of a step, as a share
    regained: Mapping[str, Shares]
    forward_backward_correlation: float
    sort: str
    finding: str

    @property
    def slowdown(self) -> float:
        """S: mean step without launch delays over mean ideal step"""
        return self.undelayed_s / self.ideal_s

    @property
    def by_worker_estimate(self) -> dict[str, float]:
        """The study's own estimate of a worker: the lesser of its dp rank's and its stage's slowdown."""
        pairs = {one: one.split(",") for one in self.by_worker}
        return {one: min(self.by_dp_rank[dp], self.by_stage[stage]) for one, (dp, stage) in pairs.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"slowdown": self.slowdown, **asdict(self), "by_worker_estimate": self.by_worker_estimate}


def study_job(table: OpTable) -> JobReport:
    """Replay a job with traced and with ideal durations. Raises SpecError where operations never meet."""
    graph = job_graph(table)
    parts = _parts(table)
    ideal = _ideal(graph.cost, table.columns["optype"])
    masks = [mask for part in parts.values() for mask in part.values()]
    kept = _runs(graph, ideal, graph.cost, masks)
    removed = _runs(graph, graph.cost, ideal, masks).mean(axis=0)
    alike = graph.run(_alike(table, graph.cost)[:, None])[:, 0]
    undelayed = graph.run(graph.cost[:, None])[:, 0]
    best = graph.run(ideal[:, None])[:, 0]
    traced = np.array(list(table.step_seconds().values()))
    replayed = graph.run(graph.cost[:, None], graph.delay)[:, 0]
    lost = float(undelayed.mean() - best.mean())
    by: dict[str, dict[str, float]] = {}
    regained: dict[str, dict[str, float]] = {}
    per_step: dict[str, dict[str, dict[str, float]]] = {}
    steps = [str(step) for step in graph.steps]
    place = 0
    for name, part in parts.items():
        mine = kept[:, place : place + len(part)]
        by[name] = dict(zip(part, (mine.mean(axis=0) / best.mean()).tolist(), strict=True))
        if name != "worker":
            rows = (mine / best[:, None]).tolist()
            per_step[name] = {
                step: dict(zip(part, row, strict=True)) for step, row in zip(steps, rows, strict=True)
            }
        back = {one: float(undelayed.mean() - removed[place + k]) for k, one in enumerate(part)}
        regained[name] = {one: value / lost if lost > 1e-12 else 0.0 for one, value in back.items()}
        place += len(part)
    gained = float(undelayed.mean() - alike.mean())
    regained["data"] = {"micro-batches alike": gained / lost if lost > 1e-12 else 0.0}
    together = _correlation(table)
    slowdown = float(undelayed.mean() / best.mean())
    sort, finding = _finding(table, graph.cost, slowdown, regained, together)
    return JobReport(
        traced_s=float(traced.mean()),
        replayed_s=float(replayed.mean()),
        undelayed_s=float(undelayed.mean()),
        ideal_s=float(best.mean()),
        by_stage=by["stage"],
        by_dp_rank=by["dp rank"],
        by_optype=by["type"],
        by_worker=by["worker"],
        by_step=dict(zip(steps, (undelayed / best).tolist(), strict=True)),
        per_step=per_step,
        replay_error=float(np.abs(replayed / traced - 1).max()),
        regained=regained,
        forward_backward_correlation=together,
        sort=sort,
        finding=finding,
    )


def _parts(table: OpTable) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Which rows are a stage's, dp rank's, type's and worker's. Sends and receives are one type a direction."""
    c = table.columns
    types = np.array([_type(kind) for kind in np.unique(c["optype"]).tolist()])
    names = types[np.unique(c["optype"], return_inverse=True)[1]]
    cells = sorted(set(zip(c["dp_rank"].tolist(), c["stage"].tolist(), strict=True)))
    return {
        "stage": {str(one): c["stage"] == one for one in np.unique(c["stage"])},
        "dp rank": {str(one): c["dp_rank"] == one for one in np.unique(c["dp_rank"])},
        "type": {str(one): names == one for one in np.unique(names)},
        "worker": {f"{dp},{stage}": (c["dp_rank"] == dp) & (c["stage"] == stage) for dp, stage in cells},
    }


def _type(kind: str) -> str:
    return f"{kind.partition('-')[0]}-pp-comm" if kind.endswith(("-send", "-recv")) else kind


def _ideal(cost: Floats, optype: np.ndarray[Any, Any]) -> Floats:
    """Mean of its type for compute, median for transfers."""
    found = cost.copy()
    for kind in np.unique(optype):
        mine = optype == kind
        found[mine] = cost[mine].mean() if kind in COMPUTE else np.median(cost[mine])
    return found


def _alike(table: OpTable, cost: Floats) -> Floats:
    """Each forward and backward at the mean of its worker, model chunk and kind: no micro-batch is longer."""
    c = table.columns
    found = cost.copy()
    compute = np.flatnonzero(np.isin(c["optype"], [FORWARD, BACKWARD]))
    keys = zip(*(c[name][compute].tolist() for name in ("rank", "gmc", "optype")), strict=True)
    numbers: dict[Any, int] = {}
    of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    if len(of):
        found[compute] = (np.bincount(of, weights=cost[compute]) / np.bincount(of))[of]
    return found


def _runs(graph: JobGraph, base: Floats, other: Floats, masks: list[np.ndarray[Any, Any]]) -> Floats:
    """Each step for each mask, shape (steps, masks), with `other` where it holds and `base` elsewhere."""
    batch = max(1, _CELLS // len(base))
    found = []
    for at in range(0, len(masks), batch):
        costs = np.where(np.stack(masks[at : at + batch], axis=1), other[:, None], base[:, None])
        found.append(graph.run(costs))
    return np.concatenate(found, axis=1)


def _correlation(table: OpTable) -> float:
    """Pearson's, of forward and backward seconds of the same micro-batch; the lowest of all stages.

    The first and the last stage are left out where others are: what they do besides differs. NaN where
    micro-batches are too few or alike.
    """
    c = table.columns
    stages = np.unique(c["stage"]).tolist()
    found = []
    for stage in stages[1:-1] or stages:
        pair: list[dict[Any, float]] = []
        for kind in (FORWARD, BACKWARD):
            rows = np.flatnonzero((c["optype"] == kind) & (c["stage"] == stage))
            keys = zip(*(c[name][rows].tolist() for name in ("step", "rank", "gmc", "mb_id")), strict=True)
            pair.append(dict(zip(keys, c["duration"][rows].tolist(), strict=True)))
        both = [(value, pair[1][key]) for key, value in pair[0].items() if key in pair[1]]
        first, second = np.array(both or [(0.0, 0.0)]).T
        if len(both) > 2 and first.std() > 0.02 * first.mean() and second.std() > 0.02 * second.mean():
            found.append(float(np.corrcoef(first, second)[0, 1]))
    return min(found, default=0.0)


def _finding(
    table: OpTable, cost: Floats, slowdown: float, regained: Mapping[str, Shares], together: float
) -> tuple[str, str]:
    """What the job suffers from: its data, the narrowest of worker, stage, dp rank that holds it, or what does."""
    if slowdown < _LEAST:
        return "none", f"No straggler to speak of: the job is {100 * (slowdown - 1):.1f}% slower than ideal."
    place = _place(table, cost, regained)
    data = regained["data"]["micro-batches alike"]
    if data >= _HOLDS and together >= _TOGETHER:
        # the longest micro-batch may make a place look slow too: it comes second
        next_ = f" Next: {place[1][0].lower()}{place[1][1:]}" if place is not None else ""
        return "data", (
            f"Sequence lengths: micro-batches differ, and their forward and backward agree on it (correlation "
            f"{together:.2f}); alike they give back {_much(data)} of what is lost. Balance lengths over "
            f"micro-batches and dp ranks.{next_}"
        )
    if place is not None:
        return place
    kind = max(regained["type"], key=lambda key: regained["type"][key])
    if kind not in COMPUTE and regained["type"][kind] >= _HOLDS:
        return "communication", (
            f"Slow transfers: {kind} at its usual time gives back {_much(regained['type'][kind])} of what is "
            "lost. Look at NICs and links."
        )
    worst = max(regained["stage"], key=lambda key: regained["stage"][key])
    return "spread", (
        f"No worker, stage or replica holds it; stage {worst} alone gives back "
        f"{_much(regained['stage'][worst])}. Most of it is {kind} time that varies everywhere."
    )


def _much(share: float) -> str:
    return "all" if share > 0.995 else f"{100 * share:.0f}%"


def _place(table: OpTable, cost: Floats, regained: Mapping[str, Shares]) -> tuple[str, str] | None:
    """The worker, else stage, else dp rank that gives back at least half; None where none does."""
    c = table.columns
    compute = np.isin(c["optype"], [FORWARD, BACKWARD])
    parts = _parts(table)
    for name in ("worker", "stage", "dp rank"):
        one = max(regained[name], key=lambda key: regained[name][key])
        share, mine = regained[name][one], parts[name][one]
        own, rest = cost[compute & mine], cost[compute & ~mine]
        if share < _HOLDS or len(regained[name]) < 2 or not len(own) or not len(rest):
            continue
        longer = f"computes {100 * (own.mean() / rest.mean() - 1):.0f}% longer"
        back = f"with ideal durations it gives back {_much(share)} of what is lost"
        if name == "worker":
            dp, stage = one.split(",")
            ranks = ", ".join(map(str, np.unique(c["rank"][mine]).tolist()))
            return name, (
                f"One slow worker: dp rank {dp}, stage {stage} (rank {ranks}) {longer} than the others, and "
                f"everyone waits; {back}. Look at that machine."
            )
        if name == "stage":
            last = " (the last: output layer and loss)" if one == str(c["stage"].max()) else ""
            return name, (
                f"Stages out of balance: stage {one}{last} {longer} a micro-batch than the others; {back}. "
                "Give it fewer layers."
            )
        return name, (
            f"One slow replica: dp rank {one} {longer} than the others; {back}. Look at its machines and its data."
        )
    return None
