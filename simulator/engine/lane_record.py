"""What the lanes engine keeps: the spans of chosen ranks, each standing for those like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.calm import Calm
from simulator.engine.cast import lane_for
from simulator.engine.lane_axes import Axes, Floats, Ints, greatest
from simulator.engine.record import Names, Statics
from simulator.engine.setting import Setting
from simulator.timeline import (
    Collectives,
    DeviceSpans,
    HostKind,
    HostSpans,
    Lane,
    LoaderSpans,
    Timeline,
)

if TYPE_CHECKING:
    from simulator.engine.lanes import Op


def choose(calm: Calm, setting: Setting, most: int) -> dict[int, int]:
    """Ranks to show, with how many each stands for: some of every class of the calm cast.

    About `most` in all, but one of every class at least; spread evenly over the members.
    """
    lane_of_rank = calm.cast.lane_of_rank
    order = np.argsort(lane_of_rank, kind="stable")
    counts = np.bincount(lane_of_rank)
    ends = np.cumsum(counts)
    each = max(1, most // len(counts))
    shown: dict[int, int] = {}
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        members = order[end - count : end]
        parts = np.array_split(members, min(each, count))
        shown.update({int(part[0]): len(part) for part in parts})
    return dict(sorted(shown.items()))


class LaneRecorder:
    """Rows of the shown ranks, kept as arrays of one entry a shown rank of the stage."""

    def __init__(self, setting: Setting, axes: Axes, calm: Calm, shown: dict[int, int]):
        self._setting = setting
        self._axes = axes
        self._calm = calm
        ranks = np.array(sorted(shown), dtype=np.int64)
        stage = setting.stage_of_rank[ranks]
        self.lanes: tuple[Lane, ...] = tuple(lane_for(setting, rank, shown[rank]) for rank in ranks.tolist())
        self._lanes_of = [np.flatnonzero(stage == s) for s in range(len(setting.scripts))]
        self._places = [setting.number_in_stage[ranks[lanes]] for lanes in self._lanes_of]
        self._index: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self._own = [np.arange(len(lanes)) for lanes in self._lanes_of]
        self._none = [np.full(len(lanes), -1) for lanes in self._lanes_of]
        self._rows = 0
        self._meetings = 0
        self._device: list[tuple[Any, ...]] = []
        self._collectives: list[tuple[Any, ...]] = []
        self._host: list[tuple[Any, ...]] = []
        self._since = [np.zeros(len(lanes)) for lanes in self._lanes_of]
        self._steps: list[Floats] = []

    def pick(self, stage: int, array: Floats) -> Floats:
        """The shown ranks' entries of an array over the mesh, shape (shown ranks of the stage,)."""
        index = self._index.get((stage, array.shape))
        if index is None:
            index = self._axes.index(self._places[stage], array.shape)
            self._index[stage, array.shape] = index
        return array.take(index)

    # ------------------------------------------------------------------------------------- recording

    def host(self, stage: int, start: Floats, until: Floats, kind: HostKind, name: str, step: int) -> None:
        begin, end = self.pick(stage, start), self.pick(stage, until)
        blocked = np.flatnonzero(end > begin)
        if not len(blocked):
            return
        lanes = self._lanes_of[stage][blocked]
        since = self._since[stage]
        self._launching(lanes, since[blocked], begin[blocked], step)
        self._host.append((lanes, begin[blocked], end[blocked], kind, name, step))
        since[blocked] = end[blocked]

    def _launching(self, lanes: Ints, start: Floats, end: Floats, step: int) -> None:
        some = np.flatnonzero(end > start)
        if len(some):
            self._host.append((lanes[some], start[some], end[some], HostKind.LAUNCH, "launch", step))

    def device(self, stage: int, op: Op, step: int) -> None:
        lanes = self._lanes_of[stage]
        start, end = self.pick(stage, op.start), self.pick(stage, op.end)
        op.shown = end
        op.row = self._rows
        self._rows += len(lanes)
        busy = np.full(len(lanes), np.nan) if op.busy is None else self.pick(stage, op.busy)
        meeting = -1
        if op.begin is not op.issued:
            meeting = self._meetings
            self._meetings += len(lanes)
            self._meet(stage, op, start, end)
        self._device.append(
            (
                *(stage, op.item, start, end, self.pick(stage, op.issued)),
                *(self.pick(stage, op.ready), self._blocker(stage, op), step, meeting, busy),
            )
        )

    def _blocker(self, stage: int, op: Op) -> Ints:
        own = self._own[stage]
        row = self._none[stage]
        latest: Floats | None = None
        for wait in reversed(op.waits):
            end = wait.shown
            if end is None:
                continue
            if latest is None:
                row, latest = wait.row + own, end
            else:
                row = np.where(end > latest, wait.row + own, row)
                latest = np.maximum(end, latest)
        if latest is not None and op.previous is not None and op.previous.shown is not None:
            row = np.where(op.previous.shown > latest, -1, row)
        return row

    def _meet(self, stage: int, op: Op, own: Floats, end: Floats) -> None:
        group = getattr(op.item.work, "group", None)
        axes = () if group is None else self._axes.of_group(group)
        first = self.pick(stage, -greatest(-op.arrival, axes))
        begin = self.pick(stage, op.begin)
        lanes = self._lanes_of[stage]
        last = np.where(own >= begin, lanes, -1)
        members = 2 if group is None else self._setting.mesh.size(group)
        self._collectives.append((op.item, begin, end, first, last, members))

    def steps(self, ends: Sequence[Floats]) -> None:
        """A step is over: when each stage's GPUs ended it."""
        row = np.empty(len(self.lanes))
        for stage, end in enumerate(ends):
            row[self._lanes_of[stage]] = self.pick(stage, end)
        self._steps.append(row)

    # -------------------------------------------------------------------------------------- columns

    def timeline(self, meta: dict[str, object]) -> Timeline:
        """All columns."""
        names = Names()
        ends = np.stack(self._steps, axis=1)
        starts = np.concatenate([np.zeros((len(self.lanes), 1)), ends[:, :-1]], axis=1)
        return Timeline(
            ranks=self.lanes,
            streams=self._setting.scripts[0].streams,
            device=self._device_columns(names),
            host=self._host_columns(names),
            collectives=self._collective_columns(names),
            names=names.all(),
            steps=np.stack([starts, ends], axis=2),
            loader=LoaderSpans.none(),
            meta=meta,
        )

    def _device_columns(self, names: Names) -> DeviceSpans:
        rows = self._device
        counts = np.array([len(row[2]) for row in rows], dtype=np.int64)
        lane = _joined([self._lanes_of[row[0]] for row in rows], np.int64)
        step = np.repeat(np.array([row[7] for row in rows], dtype=np.int64), counts)
        meeting = np.repeat(np.array([row[8] for row in rows], dtype=np.int64), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        about, alone, own = self._about(rows, names)
        start = _joined([row[2] for row in rows], np.float64)
        end = _joined([row[3] for row in rows], np.float64)
        busy = np.minimum(_joined([row[9] for row in rows], np.float64), end - start)
        alone = np.minimum(alone, busy)
        return DeviceSpans(
            rank=lane,
            stream=about[:, 0].astype(np.int64),
            start_s=start,
            end_s=end,
            kind=about[:, 1].astype(np.int64),
            name=about[:, 2].astype(np.int64),
            issued_s=_joined([row[4] for row in rows], np.float64),
            ready_s=_joined([row[5] for row in rows], np.float64),
            blocker=_joined([row[6] for row in rows], np.int64),
            collective=np.where(meeting >= 0, meeting + within, -1),
            launch=np.full(len(lane), -1),
            step=step,
            micro_batch=about[:, 3].astype(np.int64),
            ideal_s=about[:, 4],
            model_flops=about[:, 5],
            sm_share=about[:, 6],
            bytes=about[:, 7],
            busy_s=busy,
            alone_s=alone,
            fault_s=np.maximum(0.0, busy - alone - own),
        )

    def _about(self, rows: list[tuple[Any, ...]], names: Names) -> tuple[Floats, Floats, Floats]:
        """(what the work says of each row, time alone at full speed, what communication adds)."""
        statics = Statics(self._setting, names)
        gpu = self._setting.gpu_of_rank[[lane.rank for lane in self.lanes]]
        about, alone, extra = [], [], []
        for stage, item, *_, step, _, _ in rows:
            lanes = self._lanes_of[stage]
            about += [statics.of(item, g) for g in gpu[lanes].tolist()]
            alone += [statics.alone_s(item, g) for g in gpu[lanes].tolist()]
            more = self._calm.extra(item, stage, step)
            extra.append(np.zeros(len(lanes)) if more is None else self.pick(stage, more))
        return np.array(about).reshape(-1, 8), np.array(alone), _joined(extra, np.float64)

    def _host_columns(self, names: Names) -> HostSpans:
        rows = self._host
        counts = [len(row[0]) for row in rows]

        def each(pick: Callable[[tuple[Any, ...]], int]) -> Ints:
            return np.repeat(np.array([pick(row) for row in rows], dtype=np.int64), counts)

        return HostSpans(
            rank=_joined([row[0] for row in rows], np.int64),
            start_s=_joined([row[1] for row in rows], np.float64),
            end_s=_joined([row[2] for row in rows], np.float64),
            kind=each(lambda row: int(row[3])),
            name=each(lambda row: names(row[4])),
            step=each(lambda row: row[5]),
        )

    def _collective_columns(self, names: Names) -> Collectives:
        rows = self._collectives
        counts = [len(row[1]) for row in rows]
        works = [row[0].work for row in rows]

        def each(values: Sequence[float], kind: type) -> NDArray[Any]:
            return np.repeat(np.array(values, dtype=kind), counts)

        return Collectives(
            kind=each([names(getattr(work, "kind", "send-recv")) for work in works], np.int64),
            axis=each([names(getattr(work, "group", "pp")) for work in works], np.int64),
            size_bytes=each([work.size_bytes for work in works], np.float64),
            group_size=each([row[5] for row in rows], np.int64),
            begin_s=_joined([row[1] for row in rows], np.float64),
            end_s=_joined([row[2] for row in rows], np.float64),
            ideal_s=each([self._calm.ideal_s(row[0]) for row in rows], np.float64),
            first_s=_joined([row[3] for row in rows], np.float64),
            last_rank=_joined([row[4] for row in rows], np.int64),
        )


def _joined(parts: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts]).astype(kind)
