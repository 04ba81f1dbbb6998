"""What happened, as columns: the one form that engines fill, traces are read into, and analysis reads.

A *device span* is something that occupied a stream of a rank's GPU; a *host span* is what its main
thread did. Spans are rows of NumPy columns, since records one by one would cost more than the
simulation. Times are seconds from the timeline's origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def _none() -> Floats:
    return np.empty(0)


class DeviceKind(IntEnum):
    COMPUTE = 0
    COLLECTIVE = 1  # from this rank's arrival to the end
    SEND = 2
    RECV = 3
    COPY = 4  # host to device, device to host, device to device
    MEMSET = 5
    OPTIMIZER = 6  # compute that belongs to the optimizer step (norm, clip, update)
    RECOMPUTE = 7  # compute that repeats a forward


class HostKind(IntEnum):
    LAUNCH = 0  # issuing work; includes the framework's own Python
    FRAMEWORK = 1  # Python time that issues nothing
    LOADER = 2  # blocked on the dataloader's queue
    SYNC = 3  # blocked on the GPU
    QUEUE_FULL = 4  # blocked because the launch queue is full
    STALL = 5  # a host stall: nothing known of its cause
    GARBAGE_COLLECTION = 6
    CHECKPOINT = 7


@dataclass(frozen=True, slots=True)
class DeviceSpans:
    """Columns of equal length n. `rank` and `stream` index Timeline.ranks and Timeline.streams."""

    rank: Ints
    stream: Ints
    start_s: Floats
    end_s: Floats
    kind: Ints  # DeviceKind
    name: Ints  # index into Timeline.names
    issued_s: Floats  # end of the host's launch call; NaN where unknown
    ready_s: Floats  # when all that it waited for on other streams was done; NaN where unknown
    blocker: Ints  # row of the device span (another stream or rank) that made it ready last; -1 none
    collective: Ints  # row of Timeline.collectives, -1 none
    launch: Ints  # row of host spans, -1 unknown
    step: Ints
    micro_batch: Ints  # -1 none
    ideal_s: Floats  # time at the roofline of the hardware's peak; NaN where unknown
    model_flops: Floats  # what MFU counts
    sm_share: Floats  # part of the SMs that it holds; NaN where unknown
    bytes: Floats  # HBM traffic (compute), message (communication, copies); NaN where unknown
    #: of the duration, how long kernels ran (the rest is gaps between launches); NaN: all of it
    busy_s: Floats = field(default_factory=_none)
    #: what the kernels take at full speed: no faults, no overlap; NaN where unknown
    alone_s: Floats = field(default_factory=_none)
    #: of busy_s, what faults added to alone_s (overlap added the rest); NaN where unknown
    fault_s: Floats = field(default_factory=_none)

    def __post_init__(self) -> None:
        for name in ("busy_s", "alone_s", "fault_s"):
            if len(getattr(self, name)) != len(self.start_s):
                object.__setattr__(self, name, np.full(len(self.start_s), np.nan))

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, slots=True)
class HostSpans:
    rank: Ints
    start_s: Floats
    end_s: Floats
    kind: Ints  # HostKind
    name: Ints
    step: Ints

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, slots=True)
class Collectives:
    """One row an instance. `begin_s`: the last member arrived; `end_s`: all bytes delivered."""

    kind: Ints  # index into Timeline.names
    axis: Ints  # index into Timeline.names ("dp", "tp", ...; the process group's name in a trace)
    size_bytes: Floats
    group_size: Ints
    begin_s: Floats
    end_s: Floats
    ideal_s: Floats  # on an idle, healthy fabric; NaN where unknown
    first_s: Floats  # the first member arrived
    last_rank: Ints  # index into Timeline.ranks of the last to arrive; -1 unknown

    def __len__(self) -> int:
        return len(self.begin_s)


@dataclass(frozen=True, slots=True)
class LoaderSpans:
    """One row a batch that a dataloader worker loaded."""

    rank: Ints  # index into Timeline.ranks
    worker: Ints
    batch: Ints
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.start_s)

    @classmethod
    def none(cls) -> LoaderSpans:
        whole = np.empty(0, dtype=np.int64)
        return cls(whole, whole, whole, np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank that the timeline shows, standing for `multiplicity` ranks that do the same."""

    rank: int
    node: int
    role: int  # pipeline stage
    multiplicity: int = 1
    gpu: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timeline:
    """`steps[lane, step]` are (start_s, end_s) of a step on a lane, shape (lanes, steps, 2)."""

    ranks: tuple[Lane, ...]
    streams: tuple[str, ...]
    names: tuple[str, ...]
    device: DeviceSpans
    host: HostSpans
    collectives: Collectives
    steps: NDArray[np.float64]
    links: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)  # name: (times, utilisation)
    meta: Mapping[str, object] = field(default_factory=dict)
    loader: LoaderSpans = field(default_factory=LoaderSpans.none)
