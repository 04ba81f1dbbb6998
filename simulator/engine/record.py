"""Collecting what happens while an engine runs, and turning it into a Timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.script import Item
from simulator.engine.setting import Setting
from simulator.program.instructions import Launch, Segment
from simulator.timeline import Collectives, DeviceSpans, HostSpans, Lane, Timeline

_NAN = math.nan


class Names:
    """Strings to numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class Recorder:
    """Rows as the engine makes them; columns when it is done.

    Device rows: (lane, item, start, end, issued, ready, blocker row, step, collective row, busy, alone,
    fault).
    Host rows: (lane, start, end, kind, name, step). Collective rows: (item, begin, end, ideal, first,
    lane of the last to arrive, members).
    """

    def __init__(self, setting: Setting, lanes: Sequence[Lane]):
        self._setting = setting
        self.lanes = tuple(lanes)
        self.device: list[
            tuple[int, Item, float, float, float, float, int, int, int, float, float, float]
        ] = []
        self.host: list[tuple[int, float, float, int, str, int]] = []
        self.collectives: list[tuple[Item, float, float, float, float, int, int]] = []

    def timeline(self, steps: NDArray[np.float64], **extra: Any) -> Timeline:
        """The columns; `steps` of shape (lanes, steps, 2)."""
        names = Names()
        return Timeline(
            ranks=self.lanes,
            streams=self._setting.scripts[0].streams,
            device=self._device(names),
            host=self._host(names),
            collectives=self._collectives(names),
            names=names.all(),
            steps=steps,
            **extra,
        )

    def _device(self, names: Names) -> DeviceSpans:
        rows = self.device
        lane, items, start, end, issued, ready, blocker, step, collective, busy, alone, fault = (
            zip(*rows, strict=True) if rows else ((),) * 12
        )
        statics = Statics(self._setting, names)
        gpus = self._setting.gpu_of_rank
        gpu_of_lane = [int(gpus[lane.rank]) for lane in self.lanes]
        keys: dict[tuple[int, int], int] = {}
        table: list[tuple[float, ...]] = []
        which = np.empty(len(rows), dtype=np.int64)
        for row, (item, one) in enumerate(zip(items, lane, strict=True)):
            key = (id(item), gpu_of_lane[one])
            number = keys.get(key)
            if number is None:
                number = keys[key] = len(table)
                table.append(statics.of(item, key[1]))
            which[row] = number
        about = np.array(table).reshape(-1, 8)[which] if rows else np.empty((0, 8))
        return DeviceSpans(
            rank=_ints(lane),
            stream=about[:, 0].astype(np.int64),
            start_s=_floats(start),
            end_s=_floats(end),
            kind=about[:, 1].astype(np.int64),
            name=about[:, 2].astype(np.int64),
            issued_s=_floats(issued),
            ready_s=_floats(ready),
            blocker=_ints(blocker),
            collective=_ints(collective),
            launch=np.full(len(rows), -1),
            step=_ints(step),
            micro_batch=about[:, 3].astype(np.int64),
            ideal_s=about[:, 4],
            model_flops=about[:, 5],
            sm_share=about[:, 6],
            bytes=about[:, 7],
            busy_s=_floats(busy),
            alone_s=_floats(alone),
            fault_s=_floats(fault),
        )

    def _host(self, names: Names) -> HostSpans:
        lane, start, end, kind, name, step = zip(*self.host, strict=True) if self.host else ((),) * 6
        return HostSpans(
            rank=_ints(lane),
            start_s=_floats(start),
            end_s=_floats(end),
            kind=_ints(kind),
            name=_ints([names(one) for one in name]),
            step=_ints(step),
        )

    def _collectives(self, names: Names) -> Collectives:
        rows = self.collectives
        items, begin, end, ideal, first, last, members = zip(*rows, strict=True) if rows else ((),) * 7
        works = [item.work for item in items]
        return Collectives(
            kind=_ints([names(getattr(work, "kind", "send-recv")) for work in works]),
            axis=_ints([names(getattr(work, "group", "pp")) for work in works]),
            size_bytes=_floats([work.size_bytes for work in works]),
            group_size=_ints(members),
            begin_s=_floats(begin),
            end_s=_floats(end),
            ideal_s=_floats(ideal),
            first_s=_floats(first),
            last_rank=_ints(last),
        )


class Statics:
    """What a span's work says about it on a GPU, remembered for each item."""

    def __init__(self, setting: Setting, names: Names):
        self._setting = setting
        self._names = names
        self._known: dict[tuple[Item, int], tuple[float, ...]] = {}
        self._segments: dict[tuple[Segment, int], tuple[float, float, float]] = {}

    def of(self, item: Item, gpu: int) -> tuple[float, ...]:
        key = (item, gpu)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._about(item, gpu)
        return known

    def alone_s(self, item: Item, gpu: int) -> float:
        """What a segment's kernels take at full speed; NaN for other work."""
        if not isinstance(item.work, Launch):
            return _NAN
        return self._setting.cost(item.work.segment, gpu).matrix(1.0, 1.0)[0]

    def _about(self, item: Item, gpu: int) -> tuple[float, ...]:
        work = item.work
        ideal = flops = 0.0
        share, size = _NAN, getattr(work, "size_bytes", _NAN)
        if isinstance(work, Launch):
            key = (work.segment, gpu)
            if key not in self._segments:
                self._segments[key] = self._of_segment(*key)
            ideal, flops, size = self._segments[key]
            share = 1.0
        micro_batch = getattr(work, "micro_batch", -1)
        return (item.stream, item.kind, self._names(item.name), micro_batch, ideal, flops, share, size)

    def _of_segment(self, segment: Segment, gpu: int) -> tuple[float, float, float]:
        """(ideal seconds, model FLOPs, bytes)."""
        kernels = segment.kernels
        peak = self._setting.gpus[gpu].peak_flops_per_s[self._setting.mfu_precision]
        ideal = sum(kernel.flops for kernel in kernels if kernel.model_flops or kernel.flops) / peak
        return ideal, sum(kernel.model_flops for kernel in kernels), sum(kernel.bytes for kernel in kernels)


def _ints(values: Sequence[float]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _floats(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)
