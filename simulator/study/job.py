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

    `by_...` are slowdowns with only that kept as traced, `regained` the share of what is lost that comes
    back where only that is made ideal. Workers are named "dp rank,stage". `sort` is one of worker, stage,
    dp rank, communication, data, spread, none; `finding` says it in words.
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
    replay_error: float  # the largest of a step, as a share
    regained: Mapping[str, Shares]
    forward_backward_correlation: float
    sort: str
    finding: str

    @property
    def slowdown(self) -> float:
        """S: mean step without launch delays over mean ideal step"""
        return self.undelayed_s / self.ideal_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"slowdown": self.slowdown, **asdict(self)}


def study_job(table: OpTable) -> JobReport:
    """Replay a job with traced and with ideal durations. Raises SpecError where operations never meet."""
    graph = job_graph(table)
    parts = _parts(table)
    ideal = _ideal(graph.cost, table.columns["optype"])
    masks = [mask for part in parts.values() for mask in part.values()]
    kept = _means(graph, ideal, graph.cost, masks)
    removed = _means(graph, graph.cost, ideal, masks)
    undelayed = graph.run(graph.cost[:, None])[:, 0]
    best = graph.run(ideal[:, None])[:, 0]
    traced = np.array(list(table.step_seconds().values()))
    replayed = graph.run(graph.cost[:, None], graph.delay)[:, 0]
    lost = float(undelayed.mean() - best.mean())
    by: dict[str, dict[str, float]] = {}
    regained: dict[str, dict[str, float]] = {}
    place = 0
    for name, part in parts.items():
        by[name] = {one: float(kept[place + k] / best.mean()) for k, one in enumerate(part)}
        back = {one: float(undelayed.mean() - removed[place + k]) for k, one in enumerate(part)}
        regained[name] = {one: value / lost if lost > 1e-12 else 0.0 for one, value in back.items()}
        place += len(part)
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
        by_step={str(step): float(value) for step, value in zip(graph.steps, undelayed / best, strict=True)},
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


def _means(graph: JobGraph, base: Floats, other: Floats, masks: list[np.ndarray[Any, Any]]) -> Floats:
    """Mean step for each mask, with `other` where it holds and `base` elsewhere."""
    batch = max(1, _CELLS // len(base))
    found = []
    for at in range(0, len(masks), batch):
        costs = np.where(np.stack(masks[at : at + batch], axis=1), other[:, None], base[:, None])
        found.append(graph.run(costs).mean(axis=0))
    return np.concatenate(found)


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
    """What the job suffers from: the narrowest of worker, stage, dp rank that holds it, else what does."""
    c = table.columns
    if slowdown < _LEAST:
        return "none", f"No straggler to speak of: the job is {100 * (slowdown - 1):.1f}% slower than ideal."
    compute = np.isin(c["optype"], [FORWARD, BACKWARD])

    def longer(mine: np.ndarray[Any, Any]) -> str:
        """How much longer than its peers it computes."""
        own, rest = cost[compute & mine], cost[compute & ~mine]
        return f"{100 * (own.mean() / rest.mean() - 1):.0f}%" if len(own) and len(rest) else "no"

    parts = _parts(table)
    for name in ("worker", "stage", "dp rank"):
        one = max(regained[name], key=lambda key: regained[name][key])
        share, mine = regained[name][one], parts[name][one]
        if share < _HOLDS or len(regained[name]) < 2:
            continue
        much = "all" if share > 0.995 else f"{100 * share:.0f}%"
        back = f"with ideal durations it gives back {much} of what is lost"
        if name == "worker":
            dp, stage = one.split(",")
            ranks = ", ".join(map(str, np.unique(c["rank"][mine]).tolist()))
            return name, (
                f"One slow worker: dp rank {dp}, stage {stage} (rank {ranks}) computes {longer(mine)} "
                f"longer than the others, and everyone waits; {back}. Look at that machine."
            )
        if name == "stage":
            last = " (the last: output layer and loss)" if one == str(c["stage"].max()) else ""
            return name, (
                f"Stages out of balance: stage {one}{last} computes {longer(mine)} longer a micro-batch "
                f"than the others; {back}. Give it fewer layers."
            )
        return name, (
            f"One slow replica: dp rank {one} computes {longer(mine)} longer than the others; {back}. "
            "Look at its machines and its data."
        )
    kind = max(regained["type"], key=lambda key: regained["type"][key])
    if kind not in COMPUTE and regained["type"][kind] >= _HOLDS:
        return "communication", (
            f"Slow transfers: {kind} at its usual time gives back {100 * regained['type'][kind]:.0f}% of what "
            "is lost. Look at NICs and links."
        )
    if together >= _TOGETHER:
        return "data", (
            f"Micro-batches differ, and forward and backward agree on it (correlation {together:.2f}): "
            "sequence lengths. Balance them over micro-batches and dp ranks."
        )
    worst = max(regained["stage"], key=lambda key: regained["stage"][key])
    return "spread", (
        f"No worker, stage or replica holds it; stage {worst} alone gives back "
        f"{100 * regained['stage'][worst]:.0f}%. Most of it is {kind} time that varies everywhere."
    )
