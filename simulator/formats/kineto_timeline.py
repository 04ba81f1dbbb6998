"""The columns of profiler traces put together as one Timeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.errors import Finding, SpecError
from simulator.formats.kineto import RankTrace, column, read_rank, seconds, trace_files
from simulator.formats.kineto_collectives import clock_offsets_us, meetings, table, world_size
from simulator.timeline import (
    DeviceKind,
    DeviceSpans,
    Floats,
    HostKind,
    HostSpans,
    Ints,
    Lane,
    Timeline,
)

_OPERATORS: Final = "operators"


def read_traces(path: Path | str) -> Timeline:
    """The traces of a file or folder. `Timeline.meta` holds "traces" (the files), "markers" (whether
    steps are ProfilerSteps), "clock_offsets_s" by rank, "gpu" (the name that the trace gives), and
    "world" (ranks of the job).

    Raises SpecError for a file that is damaged, cut off or no trace, and for two files of one rank.

    Example: read_traces("rank0.json.gz").steps[0, :, 1]
    """
    return build(sorted((read_rank(one) for one in trace_files(Path(path))), key=lambda one: one.rank))


def build(traces: Sequence[RankTrace]) -> Timeline:
    """A timeline of ranks in order; a file whose rank is unknown takes the lowest free number."""
    _number_ranks(traces)
    met = meetings(traces)
    offset = clock_offsets_us(traces, met)
    origin = min(float(column(trace.ts).min()) - offset[i] for i, trace in enumerate(traces))
    origin = min([origin, *(float(column(t.host_ts).min()) - offset[i]
                            for i, t in enumerate(traces) if len(t.host_ts))])  # fmt: skip
    number: dict[str, int] = {}
    streams = sorted({one for trace in traces for one in set(trace.stream)})
    host, launches, first_host = [], [], 0
    for i, trace in enumerate(traces):
        rows, launch = _host_rows(trace, i, origin + offset[i], number)
        host.append(rows)
        launches.append(np.where(launch >= 0, launch + first_host, -1))
        first_host += len(rows["start_s"])
    host_columns = _joined(host)
    parts = [_device_rows(trace, i, origin + offset[i], streams, number) for i, trace in enumerate(traces)]
    device = _joined(parts)
    first_row = np.concatenate([[0], np.cumsum([len(trace.ts) for trace in traces])]).tolist()
    launch = np.concatenate(launches)
    steps, markers = _steps(traces, origin, offset, device)
    collectives, owner = table(met, number, first_row, device["start_s"], device["end_s"])
    known = launch >= 0
    at = np.maximum(launch, 0)
    blank = np.full(len(launch), np.nan)
    if len(host_columns["start_s"]):
        called = np.where(known, host_columns["start_s"][at], device["start_s"])
        issued = np.where(known, host_columns["end_s"][at], np.nan)
    else:
        called, issued = device["start_s"], blank
    _waiting_copies(host_columns, device, launch)
    none = np.full(len(launch), -1, dtype=np.int64)
    return Timeline(
        ranks=tuple(Lane(trace.rank, 0, 0, gpu=_gpu(trace)) for trace in traces),
        streams=tuple(str(one) for one in streams),
        names=tuple(number),
        device=DeviceSpans(
            rank=device["rank"], stream=device["stream"], start_s=device["start_s"], end_s=device["end_s"],
            kind=_optimizer(traces, device, called, origin, offset), name=device["name"],
            issued_s=issued, ready_s=blank, blocker=none, collective=owner, launch=launch,
            step=_step_of(steps, device["rank"], called), micro_batch=none, ideal_s=blank,
            model_flops=blank, sm_share=blank, bytes=device["bytes"],
        ),
        host=HostSpans(**host_columns, step=_step_of(steps, host_columns["rank"], host_columns["start_s"])),
        collectives=collectives,
        steps=steps,
        meta={
            "traces": [trace.path.name for trace in traces],
            "markers": markers,
            "clock_offsets_s": {trace.rank: offset[i] * 1e-6 for i, trace in enumerate(traces)},
            "gpu": _gpu(traces[0]),
            "world": world_size(traces),
        },
    )  # fmt: skip


def _number_ranks(traces: Sequence[RankTrace]) -> None:
    seen: dict[int, Path] = {}
    for trace in traces:
        if trace.rank < 0:
            taken = {one.rank for one in traces}
            trace.rank = next(number for number in range(len(traces) + 1) if number not in taken)
        if trace.rank in seen:
            raise SpecError(
                Finding(
                    "distributedInfo.rank",
                    f"{trace.rank} is the rank of {seen[trace.rank].name} too: expected one file a rank",
                    str(trace.path),
                )
            )
        seen[trace.rank] = trace.path


def _gpu(trace: RankTrace) -> str:
    devices = trace.head.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        return str(devices[0].get("name", ""))
    return ""


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _names(trace: RankTrace, number: dict[str, int]) -> Ints:
    return np.array([number.setdefault(name, len(number)) for name in trace.names] or [0], dtype=np.int64)


def _device_rows(
    trace: RankTrace, index: int, origin_us: float, streams: list[int], number: dict[str, int]
) -> dict[str, Any]:
    start = seconds(trace.ts, origin_us)
    return {
        "rank": np.full(len(start), index, dtype=np.int64),
        "stream": np.searchsorted(streams, column(trace.stream)),
        "start_s": start,
        "end_s": start + column(trace.dur) * 1e-6,
        "kind": column(trace.kind).copy(),
        "name": _names(trace, number)[column(trace.name)],
        "bytes": column(trace.bytes),
    }


def _host_rows(
    trace: RankTrace, index: int, origin_us: float, number: dict[str, int]
) -> tuple[dict[str, Any], Ints]:
    """The host's spans in order of time, and the row among them of each GPU event's launch or -1."""
    start = seconds(trace.host_ts, origin_us)
    inside = _inside_operators(trace, origin_us)
    operators = number.setdefault(_OPERATORS, len(number))
    count = len(inside)
    starts = np.concatenate([start, inside[:, 0]])
    order = np.argsort(starts, kind="stable")
    rows = {
        "rank": np.full(len(starts), index, dtype=np.int64),
        "start_s": starts[order],
        "end_s": np.concatenate([start + column(trace.host_dur) * 1e-6, inside[:, 1]])[order],
        "kind": np.concatenate([column(trace.host_kind), np.full(count, HostKind.FRAMEWORK, dtype=np.int64)])[
            order
        ],
        "name": np.concatenate(
            [_names(trace, number)[column(trace.host_name)], np.full(count, operators, dtype=np.int64)]
        )[order],
    }
    place = np.empty(len(starts), dtype=np.int64)
    place[order] = np.arange(len(starts))
    call, wanted = column(trace.host_correlation), column(trace.correlation)
    by_call = np.argsort(call, kind="stable")
    if not len(call):
        return rows, np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(call[by_call], wanted), len(call) - 1)
    found = (call[by_call][at] == wanted) & (wanted >= 0)
    return rows, np.where(found, place[: len(call)][by_call][at], -1)


def _inside_operators(trace: RankTrace, origin_us: float) -> Floats:
    """When any thread was inside an operator, as (start_s, end_s) rows."""
    start = seconds(trace.operator_ts, origin_us)
    end = start + column(trace.operator_dur) * 1e-6
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    if not len(start):
        return np.empty((0, 2))
    opens = np.concatenate([[True], start[1:] > reached[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return np.stack([start[opens], reached[closes]], axis=1)


def _steps(
    traces: Sequence[RankTrace], origin_us: float, offset: Floats, device: dict[str, Any]
) -> tuple[Floats, bool]:
    """The ProfilerSteps that all ranks have; without any, one step from the first span to the last."""
    common = sorted(set.intersection(*(set(trace.steps) for trace in traces)))
    if not common:
        window = [
            [[device["start_s"][device["rank"] == i].min(), device["end_s"][device["rank"] == i].max()]]
            for i in range(len(traces))
        ]
        return np.array(window, dtype=np.float64), False
    marked = [
        [[(edge - origin_us - offset[i]) * 1e-6 for edge in trace.steps[one]] for one in common]
        for i, trace in enumerate(traces)
    ]
    return np.array(marked, dtype=np.float64), True


def _step_of(steps: Floats, rank: Ints, at_s: Floats) -> Ints:
    """The step in which each time falls; before the first -1, and after the last the last one."""
    result = np.full(len(rank), -1, dtype=np.int64)
    for lane in range(len(steps)):
        mine = rank == lane
        result[mine] = np.searchsorted(steps[lane, :, 0], at_s[mine], side="right") - 1
    return result


def _optimizer(
    traces: Sequence[RankTrace], device: dict[str, Any], called_s: Floats, origin_us: float, offset: Floats
) -> Ints:
    """Kinds, where compute that was launched inside `Optimizer.step` is the optimizer's."""
    kind: Ints = device["kind"]
    for i, trace in enumerate(traces):
        for low, high in trace.optimizer:
            first, last = ((edge - origin_us - offset[i]) * 1e-6 for edge in (low, high))
            mine = (device["rank"] == i) & (kind == DeviceKind.COMPUTE)
            kind[mine & (called_s >= first) & (called_s < last)] = DeviceKind.OPTIMIZER
    return kind


def _waiting_copies(host: dict[str, Any], device: dict[str, Any], launch: Ints) -> None:
    """A call that returns after its own copy is done has waited for it: pageable memory, .item()."""
    copies = np.flatnonzero((device["kind"] == DeviceKind.COPY) & (launch >= 0))
    waited = copies[host["end_s"][launch[copies]] >= device["end_s"][copies]]
    host["kind"][launch[waited]] = HostKind.SYNC
