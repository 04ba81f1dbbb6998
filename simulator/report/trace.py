"""A timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A process a rank, with threads for its steps, its host, its dataloader workers and its streams; a
process a node for its NICs and their utilisation; one for the fabric's other links. Arrows lead
from a launch to what it launched, and from the last member to arrive at a collective to the others.

Times are whole multiples of 125 ns: the finest grid whose microseconds are exact both in decimals
and in binary, so that a slice ends where its neighbour begins for every reader.
Format: "Trace Event Format" (Google, 2016).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np

from simulator.analysis.intervals import Bools, Floats, Ints, last_at_or_before
from simulator.errors import SpecError
from simulator.report.network_tracks import network_events
from simulator.report.trace_events import (
    Slice,
    Track,
    microseconds,
    process,
    slices,
    thread,
    ticks,
)
from simulator.timeline import DeviceKind, HostKind, Timeline
from simulator.units import show_bytes

#: threads of a rank's process: number of the first of each sort
_STEPS, _HOST, _WORKERS, _STREAMS = 1, 2, 10, 100

#: more spans than this and only some ranks are written, unless asked
MOST_SPANS: Final = 400_000
_MOST_LANES: Final = 16

_CATEGORY: Final = {kind: kind.name.lower() for kind in DeviceKind}
_DATA: Final = (DeviceKind.COLLECTIVE, DeviceKind.SEND, DeviceKind.RECV)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is written of a timeline: lanes (indices into its ranks) and steps [first, last)."""

    lanes: tuple[int, ...]
    first_step: int
    last_step: int

    def window_s(self, timeline: Timeline) -> tuple[float, float]:
        """From the first chosen lane's start to the last one's end."""
        steps = timeline.steps[list(self.lanes)]
        return float(steps[:, self.first_step, 0].min()), float(steps[:, self.last_step - 1, 1].max())


def choose(
    timeline: Timeline, ranks: Iterable[int] | None = None, steps: tuple[int, int] | None = None
) -> Choice:
    """The lanes that show `ranks` and the steps [first, last); by default as much as is of use.

    Of a big timeline: of each stage the first lane, those that compute longest and shortest, and
    the first ones, 16 lanes in all. A rank that a folded timeline has no lane of its own for is
    left out; raises SpecError if none is left.
    """
    lanes, count = len(timeline.ranks), timeline.steps.shape[1]
    first, last = (0, count) if steps is None else (max(0, steps[0]), min(count, steps[1]))
    if ranks is not None:
        wanted = set(ranks)
        chosen = [i for i, lane in enumerate(timeline.ranks) if lane.rank in wanted]
        if not chosen:
            known = ", ".join(str(lane.rank) for lane in timeline.ranks[:_MOST_LANES])
            more = ", ..." if lanes > _MOST_LANES else ""
            raise SpecError.of(
                "ranks of the trace",
                f"none of them has a lane of its own; ranks that stand for all: {known}{more}",
            )
    elif len(timeline.device) + len(timeline.host) <= MOST_SPANS:
        chosen = list(range(lanes))
    else:
        chosen = _telling(timeline)
    return Choice(tuple(chosen), first, last)


def _telling(timeline: Timeline) -> list[int]:
    device = timeline.device
    lanes = len(timeline.ranks)
    compute = np.bincount(
        device.rank,
        weights=np.where(np.isin(device.kind, _DATA), 0.0, device.end_s - device.start_s),
        minlength=lanes,
    )
    stages = {lane.role: i for i, lane in reversed(list(enumerate(timeline.ranks)))}
    by_compute = np.argsort(-compute, kind="stable").tolist()
    order = [*sorted(stages.values()), *by_compute[:4], *by_compute[-2:], *range(lanes)]
    return sorted(list(dict.fromkeys(order))[:_MOST_LANES])


def write_trace(timeline: Timeline, stream: IO[bytes], choice: Choice, *, compress: bool) -> int:
    """Write the chosen part to a binary stream, gzipped or not; returns the number of events."""
    if compress:
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0, compresslevel=6) as packed:
            return _write(timeline, packed.write, choice)
    return _write(timeline, stream.write, choice)


def _write(timeline: Timeline, write: Callable[[bytes], Any], choice: Choice) -> int:
    head = {"displayTimeUnit": "ms", "otherData": {"producer": "trainsim"}}
    write((json.dumps(head)[:-1] + ', "traceEvents": [\n').encode())
    count = 0
    batch: list[str] = []
    for event in events(timeline, choice):
        batch.append(event)
        count += 1
        if len(batch) == 4096:
            write((",\n" if count > 4096 else "").encode() + ",\n".join(batch).encode())
            batch.clear()
    write((",\n" if batch and count > 4096 else "").encode() + ",\n".join(batch).encode())
    write(b"\n]}\n")
    return count


def events(timeline: Timeline, choice: Choice) -> Iterator[str]:
    """All events as JSON texts: metadata of each process before its slices, arrows last."""
    view = _View(timeline, choice)
    for lane in choice.lanes:
        yield from view.rank_events(lane)
    low, high = choice.window_s(timeline)
    nodes = {timeline.ranks[lane].node for lane in choice.lanes}
    yield from network_events(timeline.links, nodes, int(ticks(low)), int(ticks(high)))
    yield from view.launch_arrows()
    yield from view.member_arrows()


class _View:
    """The rows of a timeline that a choice takes, by lane."""

    def __init__(self, timeline: Timeline, choice: Choice):
        self.timeline, self.choice = timeline, choice
        self.low, self.high = choice.window_s(timeline)
        self.chosen: Bools = np.zeros(len(timeline.ranks), dtype=np.bool_)
        self.chosen[list(choice.lanes)] = True
        device, host, loader = timeline.device, timeline.host, timeline.loader
        self.device_rows = self._rows(device.rank, device.start_s, device.end_s, device.step)
        self.host_rows = self._rows(host.rank, host.start_s, host.end_s, host.step)
        self.loader_rows = self._rows(loader.rank, loader.start_s, loader.end_s)
        self.start, self.end = ticks(device.start_s), ticks(device.end_s)
        self.names = [json.dumps(name)[1:-1] for name in timeline.names]
        self.thread_of: dict[int, tuple[int, int]] = {}  # device row: (pid, tid)

    def _rows(self, rank: Ints, start: Floats, end: Floats, step: Ints | None = None) -> Ints:
        """Rows of chosen lanes within the chosen steps, by lane and time."""
        keep = self.chosen[rank] if len(rank) else np.zeros(0, dtype=np.bool_)
        if step is None:
            keep &= (end > self.low) & (start < self.high)
        else:
            keep &= (step >= self.choice.first_step) & (step < self.choice.last_step)
        rows = np.flatnonzero(keep)
        return rows[np.lexsort((-end[rows], start[rows], rank[rows]))]

    def of_lane(self, rows: Ints, rank: Ints, lane: int) -> Ints:
        low, high = np.searchsorted(rank[rows], [lane, lane + 1])
        return rows[low:high]

    # -------------------------------------------------------------------------------------- slices

    def rank_events(self, lane: int) -> Iterator[str]:
        """Process, threads and slices of one rank."""
        about = self.timeline.ranks[lane]
        pid = 1 + about.rank
        alike = f", and {about.multiplicity - 1} like it" if about.multiplicity > 1 else ""
        stage = f", stage {about.role}" if any(one.role for one in self.timeline.ranks) else ""
        name = f"rank {about.rank} (node {about.node}{stage}{alike})"
        yield from process(pid, name, pid)
        yield from thread(Track(pid, _STEPS, "steps"))
        yield from slices(pid, _STEPS, self._steps(lane))
        yield from self._host(pid, lane)
        yield from self._loader(pid, lane)
        yield from self._streams(pid, lane)

    def _steps(self, lane: int) -> Iterator[Slice]:
        for step in range(self.choice.first_step, self.choice.last_step):
            start, end = ticks(self.timeline.steps[lane, step]).tolist()
            yield Slice(start, end, f"step {step}", "step")

    def _host(self, pid: int, lane: int) -> Iterator[str]:
        host = self.timeline.host
        rows = self.of_lane(self.host_rows, host.rank, lane)
        start, end = ticks(host.start_s), ticks(host.end_s)

        def one(row: int) -> Slice:
            kind = HostKind(int(host.kind[row])).name.lower()
            return Slice(int(start[row]), int(end[row]), self.names[host.name[row]],
                         f"host,{kind}", f'"step":{host.step[row]}')  # fmt: skip

        for number, part in enumerate(_apart(rows, start, end)):
            tid = _HOST + number
            yield from thread(Track(pid, tid, f"host ({number + 1})" if number else "host"))
            yield from slices(pid, tid, map(one, part))

    def _loader(self, pid: int, lane: int) -> Iterator[str]:
        loader = self.timeline.loader
        rows = self.of_lane(self.loader_rows, loader.rank, lane)
        start, end = ticks(loader.start_s), ticks(loader.end_s)
        for worker in np.unique(loader.worker[rows]).tolist():
            tid = _WORKERS + worker
            yield from thread(Track(pid, tid, f"loader worker {worker}"))
            mine = rows[loader.worker[rows] == worker].tolist()
            yield from slices(
                pid, tid,
                (Slice(int(start[row]), int(end[row]), f"load batch {loader.batch[row]}", "loader")
                 for row in mine),
            )  # fmt: skip

    def _streams(self, pid: int, lane: int) -> Iterator[str]:
        device = self.timeline.device
        rows = self.of_lane(self.device_rows, device.rank, lane)
        for stream in np.unique(device.stream[rows]).tolist():
            mine = rows[device.stream[rows] == stream]
            for number, part in enumerate(_apart(mine, self.start, self.end)):
                tid = _STREAMS + 20 * stream + number
                again = f" ({number + 1})" if number else ""
                yield from thread(Track(pid, tid, f"stream {self.timeline.streams[stream]}{again}"))
                for row in part:
                    self.thread_of[row] = (pid, tid)
                yield from slices(pid, tid, (one for row in part for one in self._device_slices(row)))

    def _device_slices(self, row: int) -> Iterator[Slice]:
        """A span; a collective with what it waited for and the moving of its bytes inside."""
        device = self.timeline.device
        kind = DeviceKind(int(device.kind[row]))
        start, end = int(self.start[row]), int(self.end[row])
        about = [f'"step":{device.step[row]}']
        if device.micro_batch[row] >= 0:
            about.append(f'"micro_batch":{device.micro_batch[row]}')
        for key, value in (
            ("ideal_us", device.ideal_s[row] * 1e6), ("model_flops", device.model_flops[row]),
            ("bytes", device.bytes[row]), ("issued_us", device.issued_s[row] * 1e6),
        ):  # fmt: skip
            if np.isfinite(value) and value:
                about.append(f'"{key}":{value:.6g}')
        collective = int(device.collective[row])
        name = self.names[device.name[row]]
        if kind in _DATA and np.isfinite(device.bytes[row]) and "iB" not in name:
            name = f"{name} {show_bytes(float(device.bytes[row]))}"
        if collective < 0:
            yield Slice(start, end, name, _CATEGORY[kind], ",".join(about))
            return
        yield Slice(start, end, name, _CATEGORY[kind], ",".join(about + self._members(collective)))
        begin = min(max(start, int(ticks(self.timeline.collectives.begin_s[collective]))), end)
        if begin > start:
            yield Slice(start, begin, self._waited_for(collective), "waiting")
            if end > begin:
                yield Slice(begin, end, "move the bytes", "moving")

    def _waited_for(self, collective: int) -> str:
        last = int(self.timeline.collectives.last_rank[collective])
        return f"wait for rank {self.timeline.ranks[last].rank}" if last >= 0 else "wait for the others"

    def _members(self, collective: int) -> list[str]:
        table = self.timeline.collectives
        wait = (table.begin_s[collective] - table.first_s[collective]) * 1e6
        about = [
            f'"collective":{collective}',
            f'"group":"{self.names[table.axis[collective]]}"',
            f'"members":{table.group_size[collective]}',
            f'"first_to_last_arrival_us":{wait:.6g}',
        ]
        last = int(table.last_rank[collective])
        if last >= 0:
            about.append(f'"last_to_arrive":{self.timeline.ranks[last].rank}')
        return about

    # -------------------------------------------------------------------------------------- arrows

    def launch_arrows(self) -> Iterator[str]:
        """From the host's launch to the start of what it launched."""
        device, host = self.timeline.device, self.timeline.host
        rows = self.device_rows[np.isfinite(device.issued_s[self.device_rows])]
        launches = self.host_rows[host.kind[self.host_rows] == HostKind.LAUNCH]
        low, high = ticks(host.start_s[launches]), ticks(host.end_s[launches])
        issued = ticks(device.issued_s[rows])
        place = last_at_or_before(
            host.rank[launches],
            low.astype(np.float64),
            device.rank[rows],
            (issued - 1).astype(np.float64),
        )
        found = place >= 0
        rows, issued, place = rows[found], issued[found], place[found]
        at = np.clip(issued, low[place], np.maximum(low[place], high[place] - 1))
        fits = (issued <= high[place]) & (high[place] > low[place])
        for number, (row, when) in enumerate(zip(rows[fits].tolist(), at[fits].tolist(), strict=True)):
            pid, tid = self.thread_of[row]
            yield _arrow("s", "launch", number, (pid, _HOST), when)
            yield _arrow("f", "launch", number, (pid, tid), int(self.start[row]))

    def member_arrows(self) -> Iterator[str]:
        """From the last member that arrived at a collective to the others."""
        device, table = self.timeline.device, self.timeline.collectives
        rows = self.device_rows[device.collective[self.device_rows] >= 0]
        rows = rows[np.argsort(device.collective[rows], kind="stable")]
        edges = np.flatnonzero(np.diff(device.collective[rows])) + 1
        number = 0
        for members in np.split(rows, edges) if len(rows) else []:
            collective = int(device.collective[members[0]])
            last = device.rank[members] == table.last_rank[collective]
            source = int(members[np.argmax(np.where(last, np.inf, self.start[members]))])
            begin = int(ticks(table.begin_s[collective]))
            for member in members.tolist():
                if member != source:
                    yield _arrow("s", "collective", number, self.thread_of[source],
                                 self._inside(source, begin))  # fmt: skip
                    yield _arrow("f", "collective", number, self.thread_of[member],
                                 self._inside(member, begin))  # fmt: skip
                    number += 1

    def _inside(self, row: int, tick: int) -> int:
        """The nearest moment to `tick` inside the row's slice."""
        start, end = int(self.start[row]), int(self.end[row])
        return min(max(start, tick), max(start, end - 1))


def _apart(rows: Ints, start: Ints, end: Ints) -> list[list[int]]:
    """Rows in order of start, on as many tracks as it takes for none to overlap: mostly one."""
    if not (start[rows][1:] < end[rows][:-1]).any():
        return [rows.tolist()]
    tracks: list[list[int]] = []
    for row in rows.tolist():
        for track in tracks:
            if end[track[-1]] <= start[row]:
                track.append(row)
                break
        else:
            tracks.append([row])
    return tracks


def _arrow(phase: str, category: str, number: int, place: tuple[int, int], tick: int) -> str:
    ends = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","cat":"{category}","name":"{category}","id":"{category}-{number}",'
        f'"pid":{place[0]},"tid":{place[1]},"ts":{microseconds(tick)}{ends}}}'
    )
