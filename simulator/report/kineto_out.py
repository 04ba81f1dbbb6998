"""A timeline as profiler traces, one file a rank, in the form that HolisticTraceAnalysis loads.

What it insists on: the rank after `"rank": `, whole microseconds, `args.stream` on GPU events only and at
least 1, a launch with the same correlation for each of them, metadata first, steps counted from 1, and one
more ProfilerStep at the end, since it leaves out the last. Segments of kernels are written as one kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

import numpy as np

from simulator.report.trace import Choice
from simulator.timeline import DeviceKind, HostKind, Timeline

_FIRST_STREAM, _BETWEEN_STREAMS = 7, 6  # as PyTorch's own: 7, 13, ...
_THREAD: Final = 1
#: HTA with pandas 3 keeps a file's correlations in as few bits as they take, then puts row numbers there
_FIRST_CORRELATION: Final = 1_000_000

Members = Mapping[int, list[int]]

_OPERATIONS: Final = {
    "all-reduce": ("AllReduce", "allreduce"),
    "all-gather": ("AllGather", "_allgather_base"),
    "reduce-scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all-to-all": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast", "broadcast"),
}

#: host activity -> (category, name); a stall is what no event tells
_HOST: Final = {
    HostKind.LOADER: ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
    HostKind.SYNC: ("cuda_runtime", "cudaStreamSynchronize"),
    HostKind.GARBAGE_COLLECTION: ("user_annotation", "gc.collect"),
    HostKind.CHECKPOINT: ("user_annotation", "torch.save"),
}


def write_rank(
    timeline: Timeline, stream: IO[bytes], lane: int, choice: Choice, world: int, members: Members
) -> None:
    """Write one lane's chosen steps to a binary stream; `members` is what `group_members` gives."""
    about = timeline.ranks[lane]
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": about.rank, "world_size": world},
        "deviceProperties": [{"id": 0, "name": about.gpu}],
        "displayTimeUnit": "ms",
        "traceName": "trainsim",
    }
    stream.write((json.dumps(head)[:-1] + ', "traceEvents": [\n').encode())
    between = ""
    for event in _events(timeline, lane, choice, members):
        stream.write((between + json.dumps(event)).encode())
        between = ",\n"
    stream.write(b"\n]}\n")


def _events(timeline: Timeline, lane: int, choice: Choice, members: Members) -> Iterator[dict[str, Any]]:
    pid = 1000 + timeline.ranks[lane].rank
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "python"}}
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "GPU"}}
    last = 0
    for number, step in enumerate(range(choice.first_step, choice.last_step), 1):
        start, last = (_us(edge) for edge in timeline.steps[lane, step].tolist())
        yield _host(pid, "user_annotation", f"ProfilerStep#{number}", start, last)
    yield from _host_events(timeline, lane, choice, pid)
    latest = last
    for event in _device_events(timeline, lane, choice, pid, members):
        latest = max(latest, int(event["ts"])) if event.get("cat") == "cuda_runtime" else latest
        yield event
    yield _host(
        pid,
        "user_annotation",
        f"ProfilerStep#{choice.last_step - choice.first_step + 1}",
        latest + 1,
        latest + 2,
    )


def _us(time_s: float) -> int:
    return round(time_s * 1e6)


def _host(pid: int, category: str, name: str, start: int, end: int, **about: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": _THREAD, "ts": start,
        "dur": max(0, end - start), "args": about,
    }  # fmt: skip


def _host_events(timeline: Timeline, lane: int, choice: Choice, pid: int) -> Iterator[dict[str, Any]]:
    host = timeline.host
    chosen = (host.rank == lane) & (host.step >= choice.first_step) & (host.step < choice.last_step)
    rows = np.flatnonzero(chosen)
    for row in rows[np.argsort(host.start_s[rows], kind="stable")].tolist():
        kind = HostKind(int(host.kind[row]))
        if kind != HostKind.STALL:
            category, name = _HOST.get(kind, ("cpu_op", timeline.names[host.name[row]]))
            yield _host(pid, category, name, _us(host.start_s[row]), _us(host.end_s[row]))


def _device_events(
    timeline: Timeline, lane: int, choice: Choice, pid: int, members: Members
) -> Iterator[dict[str, Any]]:
    device = timeline.device
    chosen = (device.rank == lane) & (device.step >= choice.first_step) & (device.step < choice.last_step)
    rows = np.flatnonzero(chosen)
    for number, row in enumerate(
        rows[np.argsort(device.start_s[rows], kind="stable")].tolist(), _FIRST_CORRELATION
    ):
        start, end = _us(device.start_s[row]), _us(device.end_s[row])
        issued = start if np.isnan(device.issued_s[row]) else min(start, _us(device.issued_s[row]))
        stream = _FIRST_STREAM + _BETWEEN_STREAMS * int(device.stream[row])
        category, name, about = _kernel(timeline, row, members)
        called = max(0, issued - 1)
        yield _host(pid, "cuda_runtime", "cudaLaunchKernel", called, issued, correlation=number)
        yield {
            "ph": "s",
            "id": number,
            "cat": "ac2g",
            "name": "ac2g",
            "pid": pid,
            "tid": _THREAD,
            "ts": called,
        }
        yield {
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start,
            "args": {"device": 0, "context": 1, "stream": stream, "correlation": number, **about},
        }  # fmt: skip
        yield {
            "ph": "f", "bp": "e", "id": number, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": stream, "ts": start,
        }  # fmt: skip


def _kernel(timeline: Timeline, row: int, members: Members) -> tuple[str, str, dict[str, Any]]:
    """Category, name and arguments as PyTorch's profiler would have them."""
    device = timeline.device
    kind, size = DeviceKind(int(device.kind[row])), device.bytes[row]
    moved: dict[str, Any] = {} if np.isnan(size) else {"bytes": round(float(size))}
    if kind == DeviceKind.COPY:
        return "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", moved
    if kind == DeviceKind.MEMSET:
        return "gpu_memset", "Memset (Device)", moved
    if kind in (DeviceKind.SEND, DeviceKind.RECV):
        return "kernel", "ncclDevKernel_SendRecv(ncclDevComm*)", {"Collective name": kind.name.lower()}
    if kind != DeviceKind.COLLECTIVE:
        return "kernel", timeline.names[device.name[row]], {}
    met, at = timeline.collectives, int(device.collective[row])
    operation = timeline.names[met.kind[at]] if at >= 0 else ""
    kernel, collective = _OPERATIONS.get(operation, ("Generic", operation))
    about = {"Collective name": collective}
    if at >= 0:
        elements, axis = round(float(met.size_bytes[at])), timeline.names[met.axis[at]]
        about |= {
            "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Byte",
            "Group size": int(met.group_size[at]), "Process Group Name": f"{axis} {members[at][0]}",
            "Process Group Description": axis, "Process Group Ranks": str(members[at]),
        }  # fmt: skip
    return "kernel", f"ncclDevKernel_{kernel}(ncclDevComm*)", about


def group_members(timeline: Timeline) -> dict[int, list[int]]:
    """The ranks that the timeline shows at each collective, by its row."""
    device = timeline.device
    rows = np.flatnonzero((device.collective >= 0) & (device.kind == DeviceKind.COLLECTIVE))
    rows = rows[np.argsort(device.collective[rows], kind="stable")]
    number = np.array([lane.rank for lane in timeline.ranks], dtype=np.int64)
    edges = np.flatnonzero(np.diff(device.collective[rows])) + 1
    return {
        int(device.collective[part[0]]): sorted(set(number[device.rank[part]].tolist()))
        for part in (np.split(rows, edges) if len(rows) else [])
    }
