"""Where the time of a profiler trace's steps went, in the order in which a scenario's is read.

Seconds are a step's, the mean over the ranks that were traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.analysis import causes as names
from simulator.analysis.device_time import device_time
from simulator.analysis.host_gaps import ORDER, HostGaps, host_gaps
from simulator.analysis.intervals import covered, overlap
from simulator.analysis.replay import Change, Replay
from simulator.errors import SpecError
from simulator.formats.kineto_timeline import read_traces
from simulator.hardware.gpus import gpu as find_gpu
from simulator.planning.mfu import conventions
from simulator.study.diagnose import Cause
from simulator.study.planning import defaults_of
from simulator.timeline import DeviceKind, Floats, Timeline

_ADVICE: Final[Mapping[str, str]] = {
    names.LOADER: "more workers and prefetch; move decoding and augmentation off the step",
    names.CHECKPOINT: "save asynchronously, or less often (trainsim plan checkpoint)",
    names.GARBAGE: "gc.disable(), and collect at common steps",
    names.SYNC: "no .item(), printing or clipping that reads the GPU; copies from pinned memory, non-blocking",
    names.LAUNCH: "the host issues too slowly: CUDA graphs, torch.compile, larger batches, fused optimizers",
    names.STALL: "the host is outside PyTorch: profile it (py-spy), look at CPU throttling and neighbours",
    "exposed communication": "overlap it with the backward; larger buckets; better placement",
    names.WAITING: "find the rank that arrives last: machine, data or stage",
    names.COPIES: "copies on a stream of their own, from pinned memory",
    "optimizer": "a fused optimizer; shard it over the data-parallel ranks",
}


@dataclass(frozen=True, slots=True)
class TraceDiagnosis:
    """Everything that the report and JSON show. NaN: the traces alone do not tell it."""

    timeline: Timeline
    step_s: float
    span_s: float
    step_predicted_s: float
    mfu: float
    gpu_idle_s: float  # a step
    idle_share: float
    gaps: HostGaps
    host: Mapping[str, float]
    collectives: Mapping[str, Mapping[str, float]]
    optimizer_s: float
    suspects: Mapping[str, float]
    causes: tuple[Cause, ...]

    @property
    def steps(self) -> int:
        return int(self.timeline.steps.shape[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where the traces do not tell."""
        lengths = self.gaps.lengths_s
        return {
            "traces": list(self.timeline.meta["traces"]),  # type: ignore[call-overload]
            "ranks": [lane.rank for lane in self.timeline.ranks],
            "step_predicted_s": _known(self.step_predicted_s),
            "step_s": self.step_s,
            "to_explain_s": _known(self.step_s - self.step_predicted_s),
            "mfu": _known(self.mfu),
            "gpu_idle": {
                "seconds": self.gpu_idle_s,
                "share": self.idle_share,
                "count": len(lengths) / len(self.timeline.ranks) / self.steps,
                "quantiles_s": dict(zip(("p50", "p90", "max"), quantiles(lengths), strict=True)),
            },
            "gaps": dict(self.host),
            "evidence": {name: list(shown) for name, shown in self.gaps.evidence.items()},
            "collectives": {
                axis: {name: _known(value) for name, value in values.items()}
                for axis, values in self.collectives.items()
            },
            "optimizer_s": self.optimizer_s,
            "suspects": dict(self.suspects),
            "causes": [cause.to_dict() for cause in self.causes],
        }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def quantiles(lengths: Floats) -> tuple[float, float, float]:
    """Median, 90th percentile and longest; zeros of none."""
    if not len(lengths):
        return 0.0, 0.0, 0.0
    middle, high, longest = np.quantile(lengths, [0.5, 0.9, 1.0]).tolist()
    return middle, high, longest


def diagnose_traces(
    path: Path, *, model: str | None = None, gpu: str | None = None, tokens_per_step: float | None = None
) -> TraceDiagnosis:
    """Read a trace file or a folder of them and explain the step.

    With a model, a GPU and the tokens of all ranks in a step, MFU by 6N and the predicted step. Raises
    SpecError for bad files and for unknown names.
    """
    timeline = read_traces(path)
    return diagnose_timeline(timeline, predicted_s=_predicted(timeline, model, gpu, tokens_per_step))


def _predicted(timeline: Timeline, model: str | None, gpu: str | None, tokens: float | None) -> float:
    """Seconds that the model's FLOPs take at peak; NaN unless all is given."""
    given = {"--model": model, "--gpu": gpu, "--tokens-per-step": tokens}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return float("nan")
    if missing or model is None or tokens is None or gpu is None:
        raise SpecError.of(missing[0], "missing: MFU takes a model, a GPU and the tokens of a step")
    if not tokens > 0:
        raise SpecError.of("--tokens-per-step", f"{tokens:g}: expected more than 0")
    known = defaults_of(gpu, _precision(gpu), model)
    world = timeline.meta.get("world", len(timeline.ranks))
    flops = conventions(known["parameters"], 0, 0, 0, 0)["6N"] * tokens
    return float(flops / known["peak"] / float(str(world)))


def _precision(gpu: str) -> str:
    """What training uses on it: bf16, or fp16 where there is none."""
    return "bf16" if "bf16" in find_gpu(gpu).peak_flops_per_s else "fp16"


def diagnose_timeline(timeline: Timeline, *, predicted_s: float = float("nan")) -> TraceDiagnosis:
    """Explain the steps of a timeline that was read from traces."""
    lanes, steps = len(timeline.ranks), timeline.steps.shape[1]
    every = np.ones(len(timeline.device), dtype=np.bool_)
    time = device_time(timeline, every)
    gaps = host_gaps(timeline)
    span = float(time.span_s.mean())
    lengths = timeline.steps[:, :, 1] - timeline.steps[:, :, 0]
    step = float(np.median(lengths)) if steps > 2 else float(lengths.mean())
    scale = step / span if span else 0.0  # from the traced span to one step
    host = {name: float(values.mean()) * scale for name, values in gaps.seconds.items()}
    collectives = _collectives(timeline, scale)
    optimizer = _covered(timeline, (DeviceKind.OPTIMIZER,), lanes) * scale
    mean = {name: float(values.mean()) for name, values in (
        ("idle", time.idle_s), ("compute", time.compute_s), ("talk", time.communication_s),
        ("hidden", time.overlapped_s))}  # fmt: skip
    mfu = predicted_s / step
    return TraceDiagnosis(
        timeline, step, span, predicted_s, mfu, mean["idle"] * scale, mean["idle"] / span if span else 0.0,
        gaps, host, collectives, optimizer,
        {
            "dataloader_wait": host[names.LOADER] / step,
            "sm_activity": (mean["compute"] + mean["talk"] - mean["hidden"]) / span,
            "collectives": mean["talk"] / span,
            "rank_spread": float(time.compute_s.max() / np.median(time.compute_s) - 1) if lanes > 1 else 0.0,
        },
        _ranked(worths(timeline), span, step, mfu),
    )  # fmt: skip


def _covered(timeline: Timeline, kinds: tuple[DeviceKind, ...], lanes: int) -> float:
    device = timeline.device
    mine = np.isin(device.kind, kinds)
    return float(covered(device.rank[mine], device.start_s[mine], device.end_s[mine], lanes).mean())


def _collectives(timeline: Timeline, scale: float) -> dict[str, dict[str, float]]:
    """By process group: seconds of a step in kernels, without compute beside, and before the last came."""
    device, met, lanes = timeline.device, timeline.collectives, len(timeline.ranks)
    work = np.isin(device.kind, (DeviceKind.COMPUTE, DeviceKind.OPTIMIZER))
    compute = device.rank[work], device.start_s[work], device.end_s[work]
    found = {}
    mine = np.flatnonzero(device.collective >= 0)
    axis = met.axis[device.collective[mine]]
    for group in np.unique(axis).tolist():
        rows = mine[axis == group]
        spans = device.rank[rows], device.start_s[rows], device.end_s[rows]
        begin = np.minimum(met.begin_s[device.collective[rows]], spans[2])
        waiting = float(np.maximum(0.0, begin - spans[1]).sum()) / lanes
        total, hidden = float(covered(*spans, lanes).mean()), float(overlap(compute, spans, lanes).mean())
        moving = float((spans[2] - np.maximum(begin, spans[1])).sum()) / lanes
        if (met.last_rank[device.collective[rows]] < 0).all():
            waiting = float("nan")  # others were not traced
        size = float(np.nansum(met.size_bytes[device.collective[rows]])) / lanes
        members = float(met.group_size[device.collective[rows]].max())
        around = np.array([timeline.names[kind] for kind in met.kind[device.collective[rows]]]) == "allreduce"
        factor = 2 * (members - 1) / members if around.all() else (members - 1) / members
        found[timeline.names[group]] = {
            "total_s": total * scale, "exposed_s": (total - hidden) * scale, "waiting_s": waiting * scale,
            "busbw_bytes_per_s": factor * size / moving if moving > 0 and members > 1 else 0.0,
        }  # fmt: skip
    return found


def worths(timeline: Timeline) -> dict[str, float]:
    """Seconds of the traced span that each cause is worth: replayed without it, one at a time."""
    replay = Replay(timeline)
    rows = replay.rows
    changes = {name: Change(host=(name,), syncs=name != names.SYNC) for name, _ in ORDER} | {
        "exposed communication": Change(
            instant=rows(DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV), waits=False
        ),
        names.WAITING: Change(waits=False),
        names.COPIES: Change(instant=rows(DeviceKind.COPY, DeviceKind.MEMSET)),
        "optimizer": Change(instant=rows(DeviceKind.OPTIMIZER)),
    }
    span = replay.span_s()
    found = {name: span - replay.span_s(change) for name, change in changes.items()}
    found["exposed communication"] -= found[names.WAITING]
    return found


def _ranked(found: Mapping[str, float], span: float, step: float, mfu: float) -> tuple[Cause, ...]:
    """By worth, scaled from the span to a step."""
    ranked = []
    for name, saved in found.items():
        spent = saved * step / span if span else 0.0
        if spent > 0.002 * step:
            gain = 100 * mfu * spent / (step - spent) if spent < step and not np.isnan(mfu) else 0.0
            sure = "low: nothing was traced there" if name == names.STALL else "medium: replayed without it"
            ranked.append(Cause(name, spent, gain, sure, _ADVICE[name]))
    return tuple(sorted(ranked, key=lambda cause: -cause.seconds))
