"""Where the time of a scenario's step went, in a fixed order, and what each cause is worth.

First how much is unaccounted for; then the timeline: GPU idle, what the host did meanwhile, collectives, the
optimizer; then one metric a suspect; at last the causes by worth, each found by running again without it. In a
saved run they are worth their items of the waterfall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.analysis import causes as names
from simulator.analysis import reading
from simulator.analysis.intervals import Floats, total
from simulator.analysis.result import Result, lane_peaks
from simulator.analysis.spread import spread
from simulator.analysis.utilisation import compute_by_step
from simulator.analysis.waterfall import Item, ledger, weights
from simulator.analysis.waterfall import waterfall as make_waterfall
from simulator.errors import SpecError
from simulator.report import store
from simulator.spec import Scenario
from simulator.study.finding import Cause, Diagnosis
from simulator.study.memory import check_memory
from simulator.study.removals import ALWAYS
from simulator.study.simulate import simulate
from simulator.study.worth import Worth, worth
from simulator.timeline import Timeline

#: Causes below this share of the step are left out.
_LEAST: Final = 0.002


#: what every run has
_LAST: Final = (names.BELOW_PEAK, *ALWAYS)

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


_ADVICE_OF_HOST: Final[Mapping[str, str]] = {
    names.LOADER: "more workers and prefetch; move decoding and augmentation off the step",
    names.LAUNCH: "CUDA graphs, torch.compile, larger micro-batches",
    names.SYNC: "read the loss and the norm less often, or a step late",
    names.GARBAGE: "collect at common steps: gc.disable() and gc.collect()",
    names.CHECKPOINT: "save asynchronously, or less often (trainsim plan checkpoint)",
    names.STALL: "the host is outside training: look at CPU throttling and neighbours",
    names.SLOW_GPUS: "take the slow machines out: clocks, power, cooling, memory",
    names.RECOMPUTE: "recompute less: smaller micro-batches or sharding make room",
    names.COPIES: "copies on a stream of their own, from pinned memory",
    names.UNEXPLAINED: "nothing in the timeline says what held it",
}


def diagnose(
    scenario: Scenario,
    *,
    method: str = "single",
    processes: int = 2,
    allow_oom: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Run a scenario and explain its step; `method`: how causes are priced, see `study.worth`.

    `progress` is called with the runs that are made and all that there are.
    """
    check_memory(scenario, allow_oom=allow_oom)  # before anything runs
    results: list[Result] = []

    def base() -> float:
        results.append(simulate(scenario, allow_oom=allow_oom))
        return results[0].step_time_s

    gone = worth(scenario, method, processes=processes, base=base, progress=progress)
    result = results[0]
    about = _About(
        gpus=f"{result.model} on {result.gpus:,} GPU{'s' * (result.gpus != 1)}",
        scenario=result.scenario,
        warmup=scenario.run.warmup,
        peak=lane_peaks(scenario, result.timeline),
        hbm_bytes_per_s=scenario.cluster.gpu.memory_bandwidth_bytes_per_s,
    )
    found = read(result.timeline, result.waterfall, result.step_time_s, result.mfu, about)
    return replace(found, causes=priced(gone, result.mfu), result=result, worth=gone)


@dataclass(frozen=True, slots=True)
class _About:
    """What a run's timeline does not tell by itself. `peak`: FLOP/s of each lane's GPU."""

    gpus: str
    scenario: str
    warmup: int
    peak: Floats
    hbm_bytes_per_s: float


def read(
    timeline: Timeline, waterfall: Iterable[Item], step_s: float, mfu: float, about: _About
) -> Diagnosis:
    """A simulated timeline in the fixed order; each item of the waterfall is a cause."""
    first = min(about.warmup, timeline.steps.shape[1] - 1)
    part = reading.window(timeline, first, weights(timeline, about.peak))
    idle, gaps = reading.idle(timeline, part)
    items = tuple(waterfall)
    seconds = {item.name: item.seconds for item in items}
    return Diagnosis(
        title=f"{about.scenario}: {about.gpus}",
        about={"scenario": about.scenario},
        step_predicted_s=seconds[names.MODEL],
        step_s=step_s,
        mfu=mfu,
        idle=idle,
        host={name: seconds.get(name, 0.0) for name in _HOST_ITEMS},
        evidence=reading.evidence(timeline, part, gaps),
        collectives=reading.traffic(timeline, part),
        optimizer_s=seconds.get(names.OPTIMIZER, 0.0),
        suspects=_suspects(timeline, part, seconds, step_s, about.hbm_bytes_per_s, idle),
        spread=_spread(timeline, first) | _verdict(timeline, first),
        causes=_items(seconds, step_s, mfu),
        waterfall=items,
        timeline=timeline,
        first_step=first,
    )


_HOST_ITEMS: Final = (
    names.LOADER, names.LAUNCH, names.SYNC, names.GARBAGE, names.CHECKPOINT, names.STALL, names.UNEXPLAINED,
)  # fmt: skip


def _suspects(
    timeline: Timeline,
    part: reading.Window,
    seconds: Mapping[str, float],
    step_s: float,
    hbm_bytes_per_s: float,
    idle: reading.Idle,
) -> dict[str, float]:
    """One metric a suspect, each a share of the step; HBM a share of its bandwidth."""
    device = timeline.device
    lanes = len(timeline.ranks)
    rows = np.flatnonzero(device.start_s >= part.low_s[device.rank])
    ideal = np.nan_to_num(device.ideal_s[rows])
    tensor = total(device.rank[rows], ideal, lanes)
    kernels = rows[np.isin(device.kind[rows], reading.WORK)]
    moved = total(device.rank[kernels], np.nan_to_num(device.bytes[kernels]), lanes)
    return {
        "dataloader_wait": seconds.get(names.LOADER, 0.0) / step_s,
        "sm_activity": 1.0 - idle.share,
        "tensor_activity": part.mean(tensor) / step_s,
        "hbm_throughput": part.mean(moved) / step_s / hbm_bytes_per_s,
        "collectives": reading.busy(timeline, part, reading.DATA) / step_s,
        "rank_spread": _spread(timeline, part.first_step)["compute_spread"],
    }


def _spread(timeline: Timeline, first: int) -> dict[str, Any]:
    """How far ranks of one stage differ in compute, and who is slowest."""
    compute = compute_by_step(timeline)[:, first:].mean(axis=1)
    stage = np.array([lane.role for lane in timeline.ranks])
    count = np.array([lane.multiplicity for lane in timeline.ranks])
    excess = np.zeros(len(stage))
    for one in np.unique(stage):
        mine = (stage == one) & (compute > 0)
        if mine.any():
            middle = np.median(np.repeat(compute[mine], count[mine]))
            excess[mine] = compute[mine] / middle - 1
    worst = int(excess.argmax())
    found: dict[str, Any] = {"compute_spread": float(max(0.0, excess[worst])), "rank": None, "node": None}
    if excess[worst] > 0.005:
        lane = timeline.ranks[worst]
        found |= {"rank": lane.rank, "node": lane.node, "stage": lane.role}
    return found


def _verdict(timeline: Timeline, first: int) -> dict[str, Any]:
    """Who differs, by a robust test of all ranks, and in words."""
    found = spread(timeline, first)
    return {"sort": found.sort, "excess": found.excess, "p_value": found.p_value, "text": found.text}


def priced(found: Worth, mfu: float) -> tuple[Cause, ...]:
    """What runs without each cause say it is worth."""
    step = found.step_s
    how = _HOW[found.method]
    causes = [
        Cause(name, spent, _points(spent, step, mfu), how, found.advice[name])
        for name, spent in found.seconds.items()
    ]
    return _ranked(causes, step)


_HOW: Final[Mapping[str, str]] = {
    "single": "high: run again without it",
    "cumulative": "high: run again without it and those before it",
    "shapley": "high: run again without it, mean over orders",
}


def _points(seconds: float, step_s: float, mfu: float) -> float:
    """Points of MFU if so much of the step were gone."""
    return 100 * mfu * seconds / (step_s - seconds) if seconds < step_s else 0.0


def _items(seconds: Mapping[str, float], step_s: float, mfu: float) -> tuple[Cause, ...]:
    """Every item of a waterfall as a cause, for a run that cannot run again."""
    lost = {name: spent for name, spent in seconds.items() if name != names.MODEL}
    return _ranked(_priced(lost, step_s, mfu), step_s)


def _priced(seconds: Mapping[str, float], step_s: float, mfu: float) -> list[Cause]:
    return [
        Cause(
            name, spent, _points(spent, step_s, mfu),
            "medium: its item of the waterfall", ITEMS.get(name, _ADVICE_OF_HOST.get(name, "")),
        )
        for name, spent in seconds.items()
    ]  # fmt: skip


def _ranked(found: Iterable[Cause], step_s: float) -> tuple[Cause, ...]:
    """By worth; what any healthy run has comes after what this one suffers from."""
    shown = [cause for cause in found if cause.seconds > _LEAST * step_s]
    return tuple(sorted(shown, key=lambda cause: (cause.cause in _LAST, -cause.seconds)))


def diagnose_saved(path: Path) -> Diagnosis:
    """Explain a run that `trainsim simulate --save` wrote. Raises FileFormatError for what is none."""
    from simulator.hardware.gpus import gpu

    saved = store.load(path)
    result, timeline = saved.result, saved.timeline
    step_s, mfu = float(result["step_time_s"]), float(result["mfu"])
    weight = weights(timeline, saved.peak_flops_per_s)
    items = make_waterfall(ledger(timeline, saved.peak_flops_per_s), weight, saved.warmup, step_s)
    try:
        hbm = gpu(timeline.ranks[0].gpu).memory_bandwidth_bytes_per_s
    except SpecError:  # a GPU that the scenario described itself
        hbm = float("nan")
    gpus = int(result["gpus"])
    about = _About(
        gpus=f"{result['model']} on {gpus:,} GPU{'s' * (gpus != 1)}, saved run",
        scenario=str(result["scenario"]),
        warmup=saved.warmup,
        peak=saved.peak_flops_per_s,
        hbm_bytes_per_s=hbm,
    )
    note = "A saved run cannot run again: causes are worth their items of the waterfall."
    return replace(read(timeline, items, step_s, mfu, about), notes=(note,))
