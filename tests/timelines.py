"""Timelines made without the simulator: by hand, by a toy of lockstep ranks, and in bulk for statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.spec import Batch, Cluster, Gpu, Run, Scenario, Topology, Transformer
from simulator.timeline import (
    Collectives,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Lane,
    LoaderSpans,
    Timeline,
)

STREAMS = ("compute", "dp", "tp", "cp", "ep", "pp-send", "pp-recv", "copy")
NAN = math.nan


class Builder:
    """Rows one by one; `device`, `host` and `collective` return the row's number."""

    def __init__(self, lanes: tuple[Lane, ...] | int = 1, streams: tuple[str, ...] = STREAMS):
        if isinstance(lanes, int):
            lanes = tuple(Lane(rank, rank // 8, 0) for rank in range(lanes))
        self.lanes, self.streams = lanes, streams
        self.names: dict[str, int] = {}
        self._device: list[dict[str, float]] = []
        self._host: list[dict[str, float]] = []
        self._collectives: list[dict[str, float]] = []
        self.loader: list[tuple[int, int, int, float, float]] = []
        self.links: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def device(
        self, rank: int, start: float, end: float, stream: str = "compute",
        kind: DeviceKind = DeviceKind.COMPUTE, name: str = "kernel", **more: float,
    ) -> int:  # fmt: skip
        row = {
            "rank": rank, "stream": self.streams.index(stream), "start_s": start, "end_s": end,
            "kind": kind, "name": self.name(name), "issued_s": NAN, "ready_s": NAN, "blocker": -1,
            "collective": -1, "launch": -1, "step": 0, "micro_batch": -1, "ideal_s": NAN,
            "model_flops": 0.0, "sm_share": NAN, "bytes": NAN, "busy_s": NAN, "alone_s": NAN,
            "fault_s": NAN,
        }  # fmt: skip
        assert not more.keys() - row.keys()
        self._device.append(row | more)
        return len(self._device) - 1

    def host(
        self, rank: int, start: float, end: float, kind: HostKind = HostKind.LAUNCH,
        name: str = "launch", step: int = 0,
    ) -> int:  # fmt: skip
        row = {"rank": rank, "start_s": start, "end_s": end, "kind": kind, "name": self.name(name),
               "step": step}  # fmt: skip
        self._host.append(row)
        return len(self._host) - 1

    def collective(
        self, first: float, begin: float, end: float, last_rank: int = -1, kind: str = "all-reduce",
        axis: str = "dp", size_bytes: float = 2.0**20, group_size: int = 2, ideal_s: float = NAN,
    ) -> int:  # fmt: skip
        self._collectives.append(
            {"kind": self.name(kind), "axis": self.name(axis), "size_bytes": size_bytes,
             "group_size": group_size, "begin_s": begin, "end_s": end, "ideal_s": ideal_s,
             "first_s": first, "last_rank": last_rank}
        )  # fmt: skip
        return len(self._collectives) - 1

    def timeline(self, steps: object, **meta: object) -> Timeline:
        """`steps`: (lanes, steps, 2), or the edges of the steps that all lanes share."""
        steps = np.asarray(steps, dtype=np.float64)
        if steps.ndim == 1:
            steps = np.repeat(np.stack([steps[:-1], steps[1:]], axis=1)[None], len(self.lanes), 0)
        return Timeline(
            ranks=self.lanes,
            streams=self.streams,
            names=tuple(self.names),
            device=DeviceSpans(**columns(DeviceSpans, self._device)),
            host=HostSpans(**columns(HostSpans, self._host)),
            collectives=Collectives(**columns(Collectives, self._collectives)),
            steps=steps,
            links=self.links,
            meta=meta,
            loader=LoaderSpans(
                *(np.array([row[i] for row in self.loader], dtype=np.int64) for i in range(3)),
                *(np.array([row[i] for row in self.loader], dtype=np.float64) for i in (3, 4)),
            ),
        )


def columns(cls: type, rows: list[dict[str, float]]) -> dict[str, NDArray[np.generic]]:
    """Rows as arrays of the types that the timeline's class declares."""
    return {
        name: np.array([row[name] for row in rows], dtype=np.int64 if kind == "Ints" else np.float64)
        for name, kind in cls.__annotations__.items()
    }


# ------------------------------------------------------------------------ a toy of lockstep ranks


@dataclass
class Toy:
    """Ranks that run one program in lockstep; every duration is an array, one entry a rank."""

    ranks: int
    nodes_of: int = 8
    build: Builder = field(init=False)

    def __post_init__(self) -> None:
        self.build = Builder(tuple(Lane(r, r // self.nodes_of, 0) for r in range(self.ranks)))
        self.host = np.zeros(self.ranks)
        self.clock = {name: np.zeros(self.ranks) for name in STREAMS}
        self.last = {name: np.full(self.ranks, -1) for name in STREAMS}
        self.waits: dict[str, list[tuple[NDArray[np.float64], NDArray[np.int64]]]] = {}
        self.step = 0
        self.edges = [np.zeros(self.ranks)]

    def _issue(self, launch: float) -> None:
        for rank in range(self.ranks):
            if launch:
                self.build.host(rank, self.host[rank], self.host[rank] + launch, step=self.step)
        self.host = self.host + launch

    def _ready(self, stream: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        ready, blocker = self.clock[stream].copy(), np.full(self.ranks, -1)
        for when, row in self.waits.pop(stream, []):
            later = when > ready
            ready, blocker = np.where(later, when, ready), np.where(later, row, blocker)
        return ready, blocker

    def work(self, duration: object, kind: DeviceKind = DeviceKind.COMPUTE, launch: float = 0.0,
             stream: str = "compute", **more: float) -> None:  # fmt: skip
        duration = np.broadcast_to(np.asarray(duration, dtype=float), (self.ranks,))
        self._issue(launch)
        ready, blocker = self._ready(stream)
        start = np.maximum(ready, self.host)
        for r in range(self.ranks):
            self.last[stream][r] = self.build.device(
                r, start[r], start[r] + duration[r], stream, kind, kind.name.lower(),
                issued_s=self.host[r], ready_s=ready[r], blocker=blocker[r], step=self.step, **more,
            )  # fmt: skip
        self.clock[stream] = start + duration

    def collective(self, duration: float, stream: str = "dp", launch: float = 0.0,
                   name: str = "all-reduce", size_bytes: float = 2.0**20) -> None:  # fmt: skip
        """After what the compute stream has so far; the last to arrive starts it."""
        self._issue(launch)
        self.wait("compute", stream)
        ready, blocker = self._ready(stream)
        arrival = np.maximum(ready, self.host)
        begin = float(arrival.max())
        row = self.build.collective(
            float(arrival.min()), begin, begin + duration, int(arrival.argmax()), axis=stream,
            group_size=self.ranks, ideal_s=duration, size_bytes=size_bytes,
        )  # fmt: skip
        for r in range(self.ranks):
            self.last[stream][r] = self.build.device(
                r, arrival[r], begin + duration, stream, DeviceKind.COLLECTIVE, name, step=self.step,
                issued_s=self.host[r], ready_s=ready[r], blocker=blocker[r], collective=row,
                bytes=size_bytes, ideal_s=duration,
            )  # fmt: skip
        self.clock[stream] = np.full(self.ranks, begin + duration)

    def wait(self, event_of: str, stream: str = "compute") -> None:
        """The next work on `stream` waits for what `event_of` has so far."""
        self.waits.setdefault(stream, []).append((self.clock[event_of].copy(), self.last[event_of].copy()))

    def block(self, duration: object, kind: HostKind) -> None:
        duration = np.broadcast_to(np.asarray(duration, dtype=float), (self.ranks,))
        for r in np.flatnonzero(duration > 0):
            end = self.host[r] + duration[r]
            self.build.host(int(r), self.host[r], end, kind, kind.name.lower(), self.step)
        self.host = self.host + duration

    def sync(self, stream: str = "compute") -> None:
        self.block(np.maximum(0.0, self.clock[stream] - self.host), HostKind.SYNC)

    def end_step(self) -> None:
        self.edges.append(self.clock["compute"].copy())
        self.step += 1

    def timeline(self) -> Timeline:
        edges = np.stack(self.edges, axis=1)
        return self.build.timeline(np.stack([edges[:, :-1], edges[:, 1:]], axis=2))


# ----------------------------------------------------------------------------- in bulk, for statistics


@dataclass(frozen=True)
class Cluster128:
    """A data-parallel job with per-GPU silicon spread and per-segment jitter, all arrays at once."""

    nodes: int = 128
    gpus_per_node: int = 8
    steps: int = 8
    segments: int = 6
    spread: float = 0.01  # lasting, a GPU
    jitter: float = 0.02  # a segment
    segment_s: float = 0.05
    collective_s: float = 0.01
    slow_nodes: tuple[int, ...] = ()
    slow_ranks: tuple[int, ...] = ()
    factor: float = 0.9
    late_rank: int = -1  # its host is late by `late_s` in every step
    late_s: float = 0.0
    lengths: float = 0.0  # spread of the work by rank and segment (sequence lengths)
    stages: int = 1
    slow_stage: int = -1

    def timeline(self, seed: int) -> Timeline:
        rng = np.random.default_rng(seed)
        ranks = self.nodes * self.gpus_per_node
        rank = np.arange(ranks)
        node, role = rank // self.gpus_per_node, rank * self.stages // ranks
        speed = 1 + self.spread * np.clip(rng.standard_normal(ranks), -3, 3)
        speed[np.isin(node, self.slow_nodes)] *= self.factor
        speed[list(self.slow_ranks)] *= self.factor
        speed[role == self.slow_stage] *= self.factor
        shape = (self.steps, self.segments + 1, ranks)  # the last segment is the optimizer
        work = self.segment_s / speed * np.exp(self.jitter * rng.standard_normal(shape))
        if self.lengths:
            work[:, :-1] *= np.exp(self.lengths * rng.standard_normal((self.steps, self.segments, ranks)))
        delay = np.zeros(shape)
        if self.late_rank >= 0:
            delay[:, 0, self.late_rank] = self.late_s
        return self._run(work, delay, node, role)

    def _run(self, work, delay, node, role) -> Timeline:
        steps, segments, ranks = work.shape
        clock, comm = np.zeros(ranks), np.zeros(self.stages)
        parts = {name: [] for name in ("start", "end", "kind", "stream", "step", "collective", "ready")}
        table = {name: [] for name in ("begin", "end", "first", "last")}
        edges = [clock]
        group = [np.flatnonzero(role == stage) for stage in range(self.stages)]

        def add(start, end, kind, stream, step, collective):
            for name, value in zip(parts, (start, end, kind, stream, step, collective, start), strict=True):
                parts[name].append(np.broadcast_to(value, ranks))

        for step in range(steps):
            for segment in range(segments):
                optimizer = segment == segments - 1
                start = clock + delay[step, segment]
                if optimizer:
                    start = np.maximum(start, comm[role])
                clock = start + work[step, segment]
                add(
                    start,
                    clock,
                    DeviceKind.OPTIMIZER if optimizer else DeviceKind.COMPUTE,
                    0,
                    step,
                    -1,
                )
                if not optimizer:
                    begin = np.array([max(clock[members].max(), comm[s]) for s, members in enumerate(group)])
                    arrival = np.maximum(clock, comm[role])
                    comm = begin + self.collective_s
                    number = len(table["begin"]) * self.stages
                    add(arrival, comm[role], DeviceKind.COLLECTIVE, 1, step, number + role)
                    table["begin"].append(begin)
                    table["end"].append(comm.copy())
                    table["first"].append([arrival[members].min() for members in group])
                    table["last"].append([members[arrival[members].argmax()] for members in group])
            edges.append(clock.copy())
        return _bulk(parts, table, np.stack(edges, axis=1), node, role, self.collective_s)


def _bulk(parts, table, edges, node, role, collective_s) -> Timeline:
    ranks = len(node)
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    n = len(joined["start"])
    nothing, unknown = np.full(n, -1), np.full(n, NAN)
    device = DeviceSpans(
        rank=np.tile(np.arange(ranks), n // ranks), stream=joined["stream"].astype(np.int64),
        start_s=joined["start"], end_s=joined["end"], kind=joined["kind"].astype(np.int64),
        name=(joined["kind"] == DeviceKind.COLLECTIVE).astype(np.int64), issued_s=unknown,
        ready_s=joined["ready"], blocker=nothing, collective=joined["collective"].astype(np.int64),
        launch=nothing, step=joined["step"].astype(np.int64), micro_batch=nothing, ideal_s=unknown,
        model_flops=np.zeros(n), sm_share=unknown, bytes=unknown,
    )  # fmt: skip
    flat = {
        name: np.concatenate([np.asarray(v, dtype=float) for v in values]) for name, values in table.items()
    }
    count = len(flat["begin"])
    collectives = Collectives(
        kind=np.full(count, 1), axis=np.full(count, 2), size_bytes=np.full(count, 2.0**20),
        group_size=np.full(count, ranks), begin_s=flat["begin"], end_s=flat["end"],
        ideal_s=np.full(count, collective_s), first_s=flat["first"],
        last_rank=flat["last"].astype(np.int64),
    )  # fmt: skip
    empty = np.empty(0, dtype=np.int64)
    return Timeline(
        ranks=tuple(Lane(r, int(node[r]), int(role[r])) for r in range(ranks)),
        streams=("compute", "dp"),
        names=("segment", "all-reduce", "dp"),
        device=device,
        host=HostSpans(empty, np.empty(0), np.empty(0), empty, empty, empty),
        collectives=collectives,
        steps=np.stack([edges[:, :-1], edges[:, 1:]], axis=2),
    )


# ------------------------------------------------------------------------------- a scenario to match


def scenario(gpus: int = 16, steps: int = 3, warmup: int = 1, **more: object) -> Scenario:
    """A small scenario whose GPU reaches 100 FLOP/s, so that figures can be done in the head."""
    gpu = Gpu(
        name="toy", peak_flops_per_s={"bf16": 100.0, "fp8": 200.0}, memory_bytes=80 * 2.0**30,
        memory_bandwidth_bytes_per_s=1e12, sms=100, clock_hz=1e9, nvlink_bandwidth_bytes_per_s=1e11,
        pcie_bandwidth_bytes_per_s=1e10, power_w=400, price_usd_per_hour=2.0,
    )  # fmt: skip
    topology = Topology("toy", "flat", {})
    model = Transformer("toy-gpt", layers=2, hidden=64, heads=2, ffn=256, vocab=1000)
    return Scenario(
        name="toy", model=model, cluster=Cluster(topology, gpus, gpu),
        batch=Batch(micro_batch=1, global_batch=gpus, sequence_length=128),
        run=Run(steps=steps, warmup=warmup), **more,
    )  # fmt: skip
