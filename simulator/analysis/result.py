"""What a simulation tells: one frozen value, and its plain form for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from simulator.analysis.intervals import Floats, clip, covered, total
from simulator.analysis.utilisation import arrivals, compute_by_step
from simulator.analysis.waterfall import Item, Ledger, ledger, waterfall, weights
from simulator.spec import Gpu, LayerList, Scenario
from simulator.timeline import DeviceKind, Timeline

#: version of `Result.to_dict()`; grows when a name changes or goes
SCHEMA_VERSION: Final = 1

#: precision of a scenario -> the peak that MFU is counted against, where the names differ
_PEAK_OF: Final = {"fp8-blockwise": "fp8"}


class MemoryLike(Protocol):
    """What `build` needs to know of a rank's memory; bytes on the fullest rank."""

    @property
    def peak_bytes(self) -> float: ...
    @property
    def parameters_bytes(self) -> float: ...
    @property
    def gradients_bytes(self) -> float: ...
    @property
    def optimizer_bytes(self) -> float: ...
    @property
    def activations_bytes(self) -> float: ...
    @property
    def working_bytes(self) -> float: ...
    @property
    def buffers_bytes(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest rank; `capacity_bytes`: HBM of its GPU; `margin_bytes`: what the peak leaves of it."""

    peak_bytes: float
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    working_bytes: float
    buffers_bytes: float
    capacity_bytes: float
    margin_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank, or `multiplicity` ranks that did the same; means over the measured steps.

    `compute_s`: kernels of the compute stream a step; `wait_s`: at collectives until the last
    member came, waits of several streams at once counted once; `lateness_s`: arrival after the first member, mean over
    collectives.
    """

    rank: int
    node: int
    stage: int
    multiplicity: int
    step_s: float
    compute_s: float
    wait_s: float
    lateness_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """A simulated run over its measured steps (after the warm-up).

    `step_time_s`: mean; `step_times_s`: of each step, mean over ranks. `mfu`: model FLOPs over
    (step time x sum of the GPUs' peaks), 0 to 1; recomputation counts in `hfu` only.
    """

    scenario: str
    model: str
    engine: str
    gpus: int
    precision: str
    sample: str
    step_time_s: float
    step_time_median_s: float
    step_time_p95_s: float
    step_times_s: tuple[float, ...]
    mfu: float
    hfu: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    model_flops_per_gpu_per_s: float
    peak_flops_per_gpu_per_s: float
    waterfall: tuple[Item, ...]
    memory: Memory | None
    ranks: tuple[RankResult, ...]
    timeline: Timeline
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, described in docs/reference/result.md; the timeline is left out."""
        plain = (
            *("scenario", "model", "engine", "gpus", "precision", "sample", "step_time_s"),
            *("step_time_median_s", "step_time_p95_s", "step_times_s", "mfu", "hfu"),
            *("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s"),
            *("model_flops_per_gpu_per_s", "peak_flops_per_gpu_per_s", "notes"),
        )
        memory = None if self.memory is None else _fields(self.memory)
        return {
            "schema_version": SCHEMA_VERSION,
            **{name: _plain(getattr(self, name)) for name in plain},
            "waterfall": [_fields(item) for item in self.waterfall],
            "memory": memory,
            "ranks": [_fields(rank) for rank in self.ranks],
        }

    def item(self, name: str) -> Item:
        """The waterfall's item of that name; raises KeyError if there is none."""
        for item in self.waterfall:
            if item.name == name:
                return item
        raise KeyError(name)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def build(
    scenario: Scenario,
    timeline: Timeline,
    memory: MemoryLike | None = None,
    notes: tuple[str, ...] = (),
) -> Result:
    """Everything that is asked of a run, from its timeline.

    The MFU counts the model's FLOPs that the timeline's kernels carry: forward and backward of the
    matrix multiplications (6 per parameter and token) and of attention, never the recomputed
    forward.
    """
    peak = lane_peaks(scenario, timeline)
    warmup = min(scenario.run.warmup, timeline.steps.shape[1] - 1)
    weight = weights(timeline, peak)
    durations = timeline.steps[:, warmup:, 1] - timeline.steps[:, warmup:, 0]
    step_times = weight @ durations
    step_time = float(step_times.mean())
    items = waterfall(ledger(timeline, peak), weight, warmup, step_time)
    mfu = items[0].seconds / step_time if step_time > 0 else 0.0
    samples = scenario.batch.global_batch / step_time if step_time > 0 else 0.0
    tokens = samples * scenario.batch.sequence_length
    gpus = scenario.cluster.gpus
    multiplicity = np.array([lane.multiplicity for lane in timeline.ranks], dtype=np.float64)
    mean_peak = float(multiplicity @ peak / multiplicity.sum())
    return Result(
        scenario=scenario.name,
        model=scenario.model.name,
        engine=str(timeline.meta.get("engine", scenario.run.engine)),
        gpus=gpus,
        precision=scenario.precision,
        sample=scenario.model.sample if isinstance(scenario.model, LayerList) else "token",
        step_time_s=step_time,
        step_time_median_s=float(np.median(step_times)),
        step_time_p95_s=float(np.percentile(step_times, 95)),
        step_times_s=tuple(step_times.tolist()),
        mfu=mfu,
        hfu=mfu + _recomputed(timeline, weight, warmup) / step_time if step_time > 0 else 0.0,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / gpus,
        samples_per_s=samples,
        model_flops_per_gpu_per_s=mfu * mean_peak,
        peak_flops_per_gpu_per_s=mean_peak,
        waterfall=items,
        memory=None if memory is None else _memory(memory, scenario),
        ranks=_ranks(timeline, warmup),
        timeline=timeline,
        notes=notes,
    )


def peak_flops_per_s(gpu: Gpu, precision: str) -> float:
    """The dense peak that MFU is counted against."""
    return gpu.peak_flops_per_s[_PEAK_OF.get(precision, precision)]


def lane_peaks(scenario: Scenario, timeline: Timeline) -> Floats:
    """Peak of each lane's GPU, shape (lanes,)."""
    cluster = scenario.cluster
    return np.array(
        [
            peak_flops_per_s(cluster.node_gpus.get(lane.node, cluster.gpu), scenario.precision)
            for lane in timeline.ranks
        ]
    )


def _recomputed(timeline: Timeline, weight: Floats, first_step: int) -> float:
    """Seconds at peak of the FLOPs that repeat a forward, a step, weighted over lanes."""
    device = timeline.device
    mask = (device.kind == DeviceKind.RECOMPUTE) & (device.step >= first_step)
    seconds = np.nan_to_num(device.ideal_s[mask])
    by_lane = total(device.rank[mask], seconds, len(weight))
    return float(weight @ by_lane) / float(timeline.steps.shape[1] - first_step)


def _memory(memory: MemoryLike, scenario: Scenario) -> Memory:
    capacity = min(gpu.memory_bytes for gpu in (scenario.cluster.gpu, *scenario.cluster.node_gpus.values()))
    return Memory(
        peak_bytes=memory.peak_bytes,
        parameters_bytes=memory.parameters_bytes,
        gradients_bytes=memory.gradients_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        activations_bytes=memory.activations_bytes,
        working_bytes=memory.working_bytes,
        buffers_bytes=memory.buffers_bytes,
        capacity_bytes=capacity,
        margin_bytes=capacity - memory.peak_bytes,
        fits=memory.peak_bytes <= capacity,
    )


def _ranks(timeline: Timeline, first_step: int) -> tuple[RankResult, ...]:
    lanes, steps = timeline.steps.shape[:2]
    measured = steps - first_step
    compute = compute_by_step(timeline)[:, first_step:].mean(axis=1)
    step = (timeline.steps[:, -1, 1] - timeline.steps[:, first_step, 0]) / measured
    row, wait, late = arrivals(timeline, first_step)
    lane = timeline.device.rank[row]
    count = np.maximum(1, np.bincount(lane, minlength=lanes))
    arrived = timeline.device.start_s[row]
    window = timeline.steps[:, first_step, 0], timeline.steps[:, -1, 1]
    waited = covered(*clip((lane, arrived, arrived + wait), *window), lanes) / measured
    lateness = total(lane, late, lanes) / count
    return tuple(
        RankResult(one.rank, one.node, one.role, one.multiplicity, *values)
        for one, *values in zip(
            timeline.ranks,
            step.tolist(),
            compute.tolist(),
            waited.tolist(),
            lateness.tolist(),
            strict=True,
        )
    )


__all__ = ["Item", "Ledger", "Memory", "RankResult", "Result", "build", "lane_peaks"]
