"""Where the time of a profiler trace's steps went, in the order in which a scenario's is read.

Seconds are a step's, the mean over the ranks that were traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.analysis import causes as names
from simulator.analysis import reading
from simulator.analysis.causes import Causes
from simulator.analysis.device_time import device_time
from simulator.analysis.host_gaps import ORDER, host_gaps
from simulator.analysis.intervals import total
from simulator.analysis.replay import Change, Replay
from simulator.analysis.stretches import stretches
from simulator.analysis.waterfall import Item
from simulator.errors import SpecError
from simulator.formats.kineto_timeline import read_traces
from simulator.hardware.gpus import gpu as find_gpu
from simulator.planning.mfu import conventions
from simulator.study.finding import Cause, Diagnosis
from simulator.study.planning import defaults_of
from simulator.timeline import DeviceKind, Floats, Timeline

_ADVICE: Final[Mapping[str, str]] = {
    names.LOADER: "more workers and prefetch; move decoding and augmentation off the step",
    names.CHECKPOINT: "save asynchronously, or less often (trainsim plan checkpoint)",
    names.GARBAGE: "collect at common steps: gc.disable() and gc.collect()",
    names.SYNC: "no .item(), printing or clipping that reads the GPU; copies from pinned memory, non-blocking",
    names.LAUNCH: "the host issues too slowly: CUDA graphs, torch.compile, larger batches, fused optimizers",
    names.STALL: "the host is outside PyTorch: profile it (py-spy), look at CPU throttling and neighbours",
    "exposed communication": "overlap it with the backward; larger buckets; better placement",
    names.WAITING: "find the rank that arrives last: machine, data or stage",
    names.COPIES: "copies on a stream of their own, from pinned memory",
    "optimizer": "a fused optimizer; shard it over the data-parallel ranks",
}


def diagnose_traces(
    path: Path, *, model: str | None = None, gpu: str | None = None, tokens_per_step: float | None = None
) -> Diagnosis:
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


def diagnose_timeline(timeline: Timeline, *, predicted_s: float = float("nan")) -> Diagnosis:
    """Explain the steps of a timeline that was read from traces."""
    lanes, steps = len(timeline.ranks), timeline.steps.shape[1]
    time = device_time(timeline, np.ones(len(timeline.device), dtype=np.bool_))
    span = float(time.span_s.mean())
    lengths = timeline.steps[:, :, 1] - timeline.steps[:, :, 0]
    step = float(np.median(lengths)) if steps > 2 else float(lengths.mean())
    scale = step / span if span else 0.0  # from the traced span to one step
    part = _window(timeline, scale)
    idle, gaps = reading.idle(timeline, part)
    host = {name: float(values.mean()) * scale for name, values in host_gaps(timeline).seconds.items()}
    return Diagnosis(
        title=_title(timeline),
        about={
            "traces": list(timeline.meta["traces"]),  # type: ignore[call-overload]
            "ranks": [lane.rank for lane in timeline.ranks],
        },
        step_predicted_s=predicted_s,
        step_s=step,
        mfu=predicted_s / step,
        idle=idle,
        host=host,
        evidence=reading.evidence(timeline, part, gaps),
        collectives=reading.traffic(timeline, part),
        optimizer_s=reading.busy(timeline, part, (DeviceKind.OPTIMIZER,)),
        suspects={
            "dataloader_wait": host[names.LOADER] / step,
            "sm_activity": 1.0 - idle.share,
            "tensor_activity": float("nan"),
            "hbm_throughput": float("nan"),
            "collectives": reading.busy(timeline, part, reading.DATA) / step,
            "rank_spread": float(time.compute_s.max() / np.median(time.compute_s) - 1) if lanes > 1 else 0.0,
        },
        spread=_slowest(timeline, time.compute_s),
        causes=_ranked(worths(timeline), span, step, predicted_s / step),
        waterfall=_waterfall(timeline, part, predicted_s, step),
        timeline=timeline,
    )


def _waterfall(
    timeline: Timeline, part: reading.Window, predicted_s: float, step_s: float
) -> tuple[Item, ...]:
    """The step by what each rank was at; the model's FLOPs at peak come out of compute where they are known."""
    causes = Causes(timeline)
    parts = stretches(timeline, causes, part.low_s, part.high_s)
    seconds = dict.fromkeys(causes.names, 0.0)
    for number, name in enumerate(causes.names):
        mine = parts.cause == number
        length = total(parts.rank[mine], (parts.end_s - parts.start_s)[mine], len(timeline.ranks))
        seconds[name] = part.mean(length)
    if np.isnan(predicted_s):
        seconds = {"compute": seconds.pop(names.BELOW_PEAK), **seconds}
    else:
        seconds[names.MODEL] = predicted_s
        seconds[names.BELOW_PEAK] -= predicted_s
    return tuple(Item(name, spent, 100 * spent / step_s) for name, spent in seconds.items())


def _title(timeline: Timeline) -> str:
    lanes, steps = len(timeline.ranks), timeline.steps.shape[1]
    gpu = str(timeline.meta.get("gpu") or "")
    ranks = f"Trace of {lanes} rank{'s' * (lanes > 1)}" + (f" on {gpu}" if gpu else "")
    return f"{ranks}, {steps} step{'s' * (steps > 1)}"


def _window(timeline: Timeline, scale: float) -> reading.Window:
    """From each rank's first device span to its last one; ranks count alike."""
    lanes, device = len(timeline.ranks), timeline.device
    low, high = np.full(lanes, np.inf), np.full(lanes, -np.inf)
    np.minimum.at(low, device.rank, device.start_s)
    np.maximum.at(high, device.rank, device.end_s)
    seen = np.isfinite(low) & np.isfinite(high)
    weight = seen / max(1, seen.sum())
    return reading.Window(np.where(seen, low, 0.0), np.where(seen, high, 0.0), weight, scale)


def _slowest(timeline: Timeline, compute_s: Floats) -> dict[str, Any]:
    """Who computes longest; with one rank traced, nobody."""
    worst = int(compute_s.argmax())
    excess = float(compute_s[worst] / np.median(compute_s) - 1) if len(compute_s) > 1 else 0.0
    lane = timeline.ranks[worst]
    found: dict[str, Any] = {"compute_spread": excess, "rank": None, "node": None}
    return found | {"rank": lane.rank} if excess > 0.005 else found  # traces do not tell nodes


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
