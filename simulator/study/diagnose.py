"""Where the time of a scenario's step went, in a fixed order, and what each cause is worth.

First how much is unaccounted for; then the timeline: GPU idle, what the host did meanwhile, collectives, the
optimizer; then one metric a suspect; at last the causes by worth, each found by running again without it.
What cannot be switched off is worth its item of the waterfall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simulator.analysis import causes as names
from simulator.analysis.result import Result
from simulator.analysis.spread import spread
from simulator.analysis.utilisation import utilisation
from simulator.analysis.waterfall import weights
from simulator.spec import Checkpoint, Distribution, Recompute, Scenario
from simulator.study.simulate import simulate

#: Causes below this share of the step are left out.
_LEAST: Final = 0.002


@dataclass(frozen=True, slots=True)
class Cause:
    """`seconds` of a step, and points of MFU if it were gone."""

    cause: str
    seconds: float
    mfu_points: float
    confidence: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that the report and JSON show."""

    result: Result
    step_predicted_s: float
    gpu_idle_s: float
    gaps: float  # a step
    host: Mapping[str, float]
    collectives: Mapping[str, Mapping[str, float]]
    optimizer_s: float
    suspects: Mapping[str, float]
    spread: Mapping[str, Any]
    causes: tuple[Cause, ...]

    @property
    def to_explain_s(self) -> float:
        return self.result.step_time_s - self.step_predicted_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        step = self.result.step_time_s
        return {
            "scenario": self.result.scenario,
            "step_predicted_s": self.step_predicted_s,
            "step_s": step,
            "to_explain_s": self.to_explain_s,
            "mfu": self.result.mfu,
            "gpu_idle": {"seconds": self.gpu_idle_s, "share": self.gpu_idle_s / step, "count": self.gaps},
            "gaps": dict(self.host),
            "collectives": {axis: dict(values) for axis, values in self.collectives.items()},
            "optimizer_s": self.optimizer_s,
            "suspects": dict(self.suspects),
            "spread": dict(self.spread),
            "causes": [cause.to_dict() for cause in self.causes],
        }


Removal = Callable[[Scenario], Scenario]

#: cause -> (the scenario without it, advice)
REMOVALS: Final[Mapping[str, tuple[Removal, str]]] = {
    "faults": (
        lambda s: replace(s, faults=()),
        "take the faulty machines out; plan collections and pauses at common steps",
    ),
    "dataloader": (
        lambda s: replace(s, dataloader=replace(s.dataloader, load_time=Distribution("constant", 0.0))),
        "more workers: load time over workers bounds the step; more prefetch against jitter",
    ),
    "launches": (
        lambda s: replace(s, software=replace(s.software, cuda_graphs=True)),
        "CUDA graphs, torch.compile, larger micro-batches",
    ),
    "host synchronisation": (
        lambda s: replace(s, software=replace(s.software, log_every=0, clip_syncs_host=False)),
        "read the loss and the norm less often, or a step late",
    ),
    "checkpoints": (
        lambda s: replace(s, checkpoint=Checkpoint()),
        "save asynchronously, or less often (trainsim plan checkpoint)",
    ),
    "recomputation": (
        lambda s: replace(s, recompute=Recompute()),
        "recompute less: smaller micro-batches, sharding or sequence parallelism make room",
    ),
    "gradient communication without overlap": (
        lambda s: replace(s, overlap=replace(s.overlap, grad_reduce=True)),
        "reduce gradients during the backward",
    ),
}

#: item of the waterfall -> advice, for what cannot be switched off
ITEMS: Final[Mapping[str, str]] = {
    names.BELOW_PEAK: "larger products (micro-batch, less TP), fused kernels, a faster attention",
    names.CONTENTION: "fewer SMs for NCCL, or less overlap where it does not pay",
    names.BUBBLE: "more micro-batches a step, more virtual stages, or a zero bubble schedule",
    names.WAITING: "find the rank that computes longest: machine, data or stage",
    "optimizer": "a fused optimizer; shard it over the data-parallel ranks (zero-1)",
    "exposed TP communication": "keep TP inside the node; overlap.tp; less TP",
    "exposed CP communication": "a ring where compute hides it, or less CP",
    "exposed EP communication": "keep experts near; overlap the all-to-all",
    "exposed PP communication": "a schedule that overlaps sends; larger micro-batches",
    "exposed DP communication": "overlap, larger buckets, more micro-batches a step, better placement",
}


def diagnose(
    scenario: Scenario, *, allow_oom: bool = False, progress: Callable[[int], None] | None = None
) -> Diagnosis:
    """Run a scenario and explain its step."""
    result = simulate(scenario, allow_oom=allow_oom)
    first = min(scenario.run.warmup, result.timeline.steps.shape[1] - 1)
    peak = np.array([result.peak_flops_per_gpu_per_s] * len(result.timeline.ranks))
    weight = weights(result.timeline, peak)
    used = utilisation(result.timeline, first)
    steps = result.timeline.steps.shape[1] - first
    seconds = {item.name: item.seconds for item in result.waterfall}

    def mean(values: Any) -> float:
        return float(np.asarray(weight * values).sum()) / float(steps)

    return Diagnosis(
        result=result,
        step_predicted_s=seconds[names.MODEL],
        gpu_idle_s=mean(used.idle_s),
        gaps=round(mean(used.gaps), 2),
        host={name: seconds.get(name, 0.0) for name in _HOST_ITEMS},
        collectives=_collectives(result, first, seconds),
        optimizer_s=seconds.get("optimizer", 0.0),
        suspects=_suspects(result, scenario, first, used, mean),
        spread=_spread(result) | _verdict(result, first),
        causes=_causes(scenario, result, seconds, allow_oom, progress),
    )


_HOST_ITEMS: Final = (
    names.LOADER, names.LAUNCH, names.SYNC, names.GARBAGE, names.CHECKPOINT, names.STALL, names.UNEXPLAINED,
)  # fmt: skip


def _collectives(result: Result, first: int, seconds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """By axis: seconds a step from arrival to end, exposed, waiting for the last; busbw is the network's."""
    timeline = result.timeline
    device, meetings = timeline.device, timeline.collectives
    steps = timeline.steps.shape[1] - first
    ranks = np.array([lane.multiplicity for lane in timeline.ranks], dtype=np.float64)
    rows = np.flatnonzero((device.collective >= 0) & (device.step >= first))
    share = (ranks / ranks.sum())[device.rank[rows]] / steps
    axis = meetings.axis[device.collective[rows]]
    held = (device.end_s - device.start_s)[rows] * share
    waited = np.maximum(0.0, meetings.begin_s[device.collective[rows]] - device.start_s[rows]) * share
    found = {}
    for number in np.unique(axis).tolist():
        name = timeline.names[number]
        mine = axis == number
        exposed = seconds.get(names.exposed(name), 0.0)
        total, wait = float(held[mine].sum()), float(waited[mine].sum())
        found[name] = {"total_s": total, "exposed_s": exposed, "waiting_s": wait}
    return found


def _suspects(
    result: Result, scenario: Scenario, first: int, used: Any, mean: Callable[[Any], float]
) -> dict[str, float]:
    """One metric a suspect, each a share of the step; HBM a share of its bandwidth."""
    timeline = result.timeline
    device = timeline.device
    step = result.step_time_s
    lanes = len(timeline.ranks)
    rows = np.flatnonzero((device.step >= first) & np.isfinite(device.ideal_s))
    tensor = np.bincount(device.rank[rows], weights=device.ideal_s[rows], minlength=lanes)
    kernels = rows[device.collective[rows] < 0]
    moved = np.bincount(device.rank[kernels], weights=np.nan_to_num(device.bytes[kernels]), minlength=lanes)
    return {
        "dataloader_wait": result.item(names.LOADER).seconds / step,
        "sm_activity": mean(used.busy_s) / step,
        "tensor_activity": mean(tensor) / step,
        "hbm_throughput": mean(moved) / step / scenario.cluster.gpu.memory_bandwidth_bytes_per_s,
        "collectives": mean(used.communication_s) / step,
        "rank_spread": _spread(result)["compute_spread"],
    }


def _spread(result: Result) -> dict[str, Any]:
    """How far ranks of one stage differ in compute, and who is slowest."""
    slowest, worst = None, 0.0
    for stage in {rank.stage for rank in result.ranks}:
        mine = [rank for rank in result.ranks if rank.stage == stage]
        middle = float(np.median(np.repeat([r.compute_s for r in mine], [r.multiplicity for r in mine])))
        for rank in mine:
            excess = rank.compute_s / middle - 1 if middle > 0 else 0.0
            if excess > worst:
                slowest, worst = rank, excess
    found: dict[str, Any] = {"compute_spread": worst, "rank": None, "node": None}
    if slowest is not None and worst > 0.005:
        found |= {"rank": slowest.rank, "node": slowest.node, "stage": slowest.stage}
    return found


def _verdict(result: Result, first: int) -> dict[str, Any]:
    """Who differs, by a robust test of all ranks, and in words."""
    found = spread(result.timeline, first)
    return {"sort": found.sort, "excess": found.excess, "p_value": found.p_value, "text": found.text}


def _causes(
    scenario: Scenario,
    result: Result,
    seconds: Mapping[str, float],
    allow_oom: bool,
    progress: Callable[[int], None] | None,
) -> tuple[Cause, ...]:
    step, found = result.step_time_s, []
    for number, (name, (removal, advice)) in enumerate(REMOVALS.items()):
        changed = removal(scenario)
        if changed != scenario:
            without = simulate(changed, allow_oom=True)
            saved = step - without.step_time_s
            found.append(
                Cause(name, saved, 100 * (without.mfu - result.mfu), "high: run again without it", advice)
            )
        if progress is not None:
            progress(number + 1)
    for name, advice in ITEMS.items():
        spent = seconds.get(name, 0.0)
        gain = 100 * (result.mfu * step / (step - spent) - result.mfu) if spent < step else 0.0
        found.append(Cause(name, spent, gain, "medium: its item of the waterfall", advice))
    del allow_oom
    shown = [cause for cause in found if cause.seconds > _LEAST * step]
    # what any healthy run has comes after what this one suffers from
    return tuple(sorted(shown, key=lambda cause: (cause.cause == names.BELOW_PEAK, -cause.seconds)))
