"""PyTorch profiler traces (Kineto's JSON) of one rank or many, as a Timeline.

A rank's file is read as a stream into columns; names and what collectives say of themselves are kept
once. Times are seconds from the earliest event of any rank, after clocks were aligned
(`kineto_collectives`). Host spans hold the driver's calls, what annotations tell (loader, checkpoint,
garbage collection), and, as FRAMEWORK, the time in which any thread was inside an operator.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.errors import Finding, SpecError
from simulator.formats.json_events import EventFile
from simulator.formats.kineto_names import (
    ANNOTATIONS,
    GPU_CATEGORIES,
    OPERATORS,
    OPTIMIZER,
    RUNTIME,
    STEP,
    annotation_kind,
    device_kind,
    runtime_kind,
)
from simulator.timeline import DeviceKind

_MICRO: Final = 1e-6


def _floats() -> array[float]:
    return array("d")


def _ints() -> array[int]:
    return array("q")


@dataclass(slots=True)
class RankTrace:
    """One file in columns; `ts` and `dur` in microseconds as the file has them."""

    path: Path
    head: Mapping[str, Any] = field(default_factory=dict)
    rank: int = -1
    names: dict[str, int] = field(default_factory=dict)
    ts: array[float] = field(default_factory=_floats)  # GPU events
    dur: array[float] = field(default_factory=_floats)
    stream: array[int] = field(default_factory=_ints)
    correlation: array[int] = field(default_factory=_ints)
    kind: array[int] = field(default_factory=_ints)
    name: array[int] = field(default_factory=_ints)
    bytes: array[float] = field(default_factory=_floats)
    about: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # args of collectives, by row
    host_ts: array[float] = field(default_factory=_floats)
    host_dur: array[float] = field(default_factory=_floats)
    host_kind: array[int] = field(default_factory=_ints)
    host_name: array[int] = field(default_factory=_ints)
    host_correlation: array[int] = field(default_factory=_ints)
    host_thread: array[int] = field(default_factory=_ints)
    operator_ts: array[float] = field(default_factory=_floats)
    operator_dur: array[float] = field(default_factory=_floats)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # number: ts, end
    optimizer: list[tuple[float, float]] = field(default_factory=list)

    def number(self, name: str) -> int:
        """The index of a name, a new one if it is new."""
        return self.names.setdefault(name, len(self.names))


def trace_files(path: Path) -> list[Path]:
    """The trace files that a path means: itself, or a folder's .json and .gz files, sorted.

    Raises SpecError if there is none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(
        one for one in path.iterdir() if one.is_file() and re.search(r"\.json(\.gz)?$|\.gz$", one.name)
    )
    if not found:
        raise SpecError(Finding("", "no .json or .json.gz files in it: expected profiler traces", str(path)))
    return found


def read_rank(path: Path) -> RankTrace:
    """One file. Raises SpecError where it is damaged, cut off, or without GPU events."""
    file = EventFile(path)
    trace = RankTrace(path, file.head)
    gpu, runtime = GPU_CATEGORIES, RUNTIME
    for event in file:
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        if type(category) is not str:
            continue
        category = category.lower()
        try:
            if category in OPERATORS:
                trace.operator_ts.append(event["ts"])
                trace.operator_dur.append(event["dur"])
                if annotation_kind(event["name"]) is not None:
                    _annotation(trace, event)
            elif category in gpu:
                _gpu(trace, event, gpu[category])
            elif category in runtime:
                arguments = event.get("args") or {}
                name = event["name"]
                _host(trace, event, int(runtime_kind(name)), int(arguments.get("correlation", -1)))
            elif category in ANNOTATIONS:
                _annotation(trace, event)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, KeyError) and error.args == ("dur",):
                continue  # cut off by the profiler's end
            raise SpecError(
                Finding("traceEvents", f"an event of {category!r} with a wrong or missing {error}", str(path))
            ) from error
    if not trace.ts:
        raise SpecError(
            Finding("traceEvents", "no GPU events: expected a trace with ProfilerActivity.CUDA", str(path))
        )
    trace.rank = _rank(trace)
    return trace


def _gpu(trace: RankTrace, event: Mapping[str, Any], category: str) -> None:
    arguments, name = event.get("args") or {}, event["name"]
    kind = device_kind(category, name)
    ts, dur = float(event["ts"]), float(event["dur"])
    stream = int(arguments.get("stream", event.get("tid", 0)))
    correlation = int(arguments.get("correlation", -1))
    moved = float(arguments.get("bytes", "nan"))
    if kind == DeviceKind.COLLECTIVE:
        trace.about[len(trace.ts)] = {key: arguments[key] for key in ABOUT if key in arguments}
        sent = str(arguments.get("Collective name", ""))
        kind = {"send": DeviceKind.SEND, "recv": DeviceKind.RECV}.get(sent, kind)
    trace.ts.append(ts)
    trace.dur.append(max(0.0, dur))
    trace.stream.append(stream)
    trace.correlation.append(correlation)
    trace.kind.append(int(kind))
    trace.name.append(trace.number(name))
    trace.bytes.append(moved)


#: what a collective's kernel tells of it
ABOUT: Final = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype",
    "Process Group Name", "Process Group Description", "Process Group Ranks",
)  # fmt: skip


def _host(trace: RankTrace, event: Mapping[str, Any], kind: int, correlation: int) -> None:
    ts, dur = float(event["ts"]), float(event["dur"])
    thread = event.get("tid", 0)
    trace.host_ts.append(ts)
    trace.host_dur.append(max(0.0, dur))
    trace.host_kind.append(kind)
    trace.host_name.append(trace.number(event["name"]))
    trace.host_correlation.append(correlation)
    trace.host_thread.append(thread if isinstance(thread, int) else _digits(str(thread)))


def _digits(text: str) -> int:
    """A number for a thread that is named by text: the digits in it."""
    return int("".join(re.findall(r"\d+", text))[:15] or 0)


def _annotation(trace: RankTrace, event: Mapping[str, Any]) -> None:
    name = event["name"]
    if marker := STEP.match(name):
        trace.steps[int(marker.group(1))] = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
    elif OPTIMIZER.match(name):
        trace.optimizer.append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
    elif (kind := annotation_kind(name)) is not None:
        _host(trace, event, int(kind), -1)


def _rank(trace: RankTrace) -> int:
    about = trace.head.get("distributedInfo")
    if isinstance(about, dict) and isinstance(about.get("rank"), int):
        return int(about["rank"])
    named = re.search(r"rank[-_ ]?(\d+)", trace.path.name)
    return int(named.group(1)) if named else -1


def column(values: array[Any]) -> NDArray[Any]:
    """An array without a copy."""
    kind = np.float64 if values.typecode == "d" else np.int64
    return np.frombuffer(values, dtype=kind) if len(values) else np.empty(0, dtype=kind)


def seconds(values: array[float], origin_us: float) -> NDArray[np.float64]:
    """Times in seconds from an origin in microseconds."""
    result: NDArray[np.float64] = (column(values) - origin_us) * _MICRO
    return result
