"""What the lanes engine keeps: the spans of chosen ranks, each standing for those like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.engine.calm import Calm
from simulator.engine.cast import lane_for
from simulator.engine.colours import combine, keys
from simulator.engine.fold import rank_words
from simulator.engine.lane_axes import Axes, Floats, Ints, greatest
from simulator.engine.record import Names, Statics
from simulator.engine.setting import Setting
from simulator.faults import Factor, Pause, Resource
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

#: row of each instance of a collective, by the number of its group
Met: TypeAlias = "dict[int, int]"


def choose(calm: Calm, setting: Setting, most: int) -> dict[int, int]:
    """Ranks to show, with how many each stands for: some of every class of the calm cast.

    What goes wrong on ranks splits the classes, so that every rank with a fault of its own kind is seen;
    where that makes more than `most` of them (each chip its own clock), the classes stay whole and the
    rank that loses most stands for itself alone. About `most` in all, one of every class at least,
    spread evenly over the members.
    """
    lanes = calm.cast.lane_of_rank
    _, classes = np.unique(combine(keys(lanes), rank_words(setting, drawn=False)), return_inverse=True)
    crowded = int(classes.max()) >= max(most, 4 * len(calm.cast.lanes))
    if crowded:
        classes = lanes
    lost = _lost(setting)
    order = np.lexsort((-lost if crowded else np.zeros(len(lost)), classes))
    counts = np.bincount(classes)
    ends = np.cumsum(counts)
    each = max(1, most // len(counts))
    shown: dict[int, int] = {}
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        members = order[end - count : end]
        parts = np.array_split(members, min(each, count))
        if crowded and count > 1:
            parts = [members[:1], *np.array_split(np.sort(members[1:]), min(each, count - 1))]
        shown.update({int(part[0]): len(part) for part in parts})
    return dict(sorted(shown.items()))


def _lost(setting: Setting) -> Floats:
    """How much worse each rank fares than a healthy one, to compare ranks by; shape (ranks,)."""
    lost = np.zeros(setting.mesh.ranks)
    for effect in setting.effects:
        match effect:
            case Factor(resource, targets, _, factor, _) if resource is not Resource.LINK:
                lost[list(targets)] += 1.0 - factor
            case Pause(rank, _, duration_s):
                lost[[rank]] += duration_s
    return lost


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
        self._device: list[tuple[Any, ...]] = []
        self._collectives: list[list[Any]] = []
        self._host: list[tuple[Any, ...]] = []
        self._loads: list[tuple[Any, ...]] = []
        self._groups: dict[tuple[int, str | None], tuple[Ints, Ints, Ints]] = {}
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

    def finish(self, hosts: Sequence[Floats], step: int) -> None:
        """The run is over: what each stage's hosts launched last."""
        for stage, host in enumerate(hosts):
            self._launching(self._lanes_of[stage], self._since[stage], self.pick(stage, host), step)

    def load(self, stage: int, worker: int, batch: int, start: Floats, end: Floats) -> None:
        """A worker of each rank's dataloader has loaded a batch."""
        begin, until = self.pick(stage, start), self.pick(stage, end)
        some = np.flatnonzero(until > begin)
        if len(some):
            self._loads.append((self._lanes_of[stage][some], worker, batch, begin[some], until[some]))

    def _launching(self, lanes: Ints, start: Floats, end: Floats, step: int) -> None:
        some = np.flatnonzero(end > start)
        if len(some):
            self._host.append((lanes[some], start[some], end[some], HostKind.LAUNCH, "launch", step))

    def device(self, stage: int, op: Op, step: int, met: Met | None = None) -> None:
        """Work is done. `met`: for a collective or transfer, what its other parties have recorded."""
        lanes = self._lanes_of[stage]
        start, end = self.pick(stage, op.start), self.pick(stage, op.end)
        op.shown = end
        op.row = self._rows
        self._rows += len(lanes)
        busy = np.full(len(lanes), np.nan) if op.busy is None else self.pick(stage, op.busy)
        meeting = self._none[stage] if met is None else self._meet(stage, op, start, end, met)
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

    def _meet(self, stage: int, op: Op, own: Floats, end: Floats, met: Met) -> Ints:
        """Rows of the instances that the shown ranks take part in, one row an instance."""
        group = getattr(op.item.work, "group", None)
        axes = () if group is None else self._axes.of_group(group)
        first = self.pick(stage, -greatest(-op.arrival, axes))
        begin = self.pick(stage, op.begin)
        last = np.where(own >= begin, self._lanes_of[stage], -1)
        numbers, chosen, place = self._instances(stage, group)
        latest = np.full(len(numbers), -1)
        latest[place[last >= 0]] = last[last >= 0]
        row_of = np.empty(len(numbers), dtype=np.int64)
        members = 2 if group is None else self._setting.mesh.size(group)
        about = (op.item, members)
        for i, number in enumerate(numbers.tolist()):
            at = int(chosen[i])
            known = met.get(number)
            if known is None:
                known = met[number] = len(self._collectives)
                self._collectives.append([*about, begin[at], end[at], first[at], latest[i]])
            else:
                row = self._collectives[known]
                row[4] = min(row[4], first[at])
                row[5] = max(row[5], latest[i])
            row_of[i] = known
        return row_of[place]

    def _instances(self, stage: int, group: str | None) -> tuple[Ints, Ints, Ints]:
        """(numbers of the groups the stage's shown ranks are in, a rank of each, each rank's group).

        Ends of a transfer have the same number within their stages.
        """
        key = (stage, group)
        if key not in self._groups:
            numbers = self._places[stage]
            if group is not None:
                ranks = [self.lanes[lane].rank for lane in self._lanes_of[stage].tolist()]
                numbers = self._setting.mesh.group_of(group)[ranks]
            self._groups[key] = np.unique(numbers, return_index=True, return_inverse=True)
        return self._groups[key]

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
            loader=self._loader_spans(),
            meta=meta,
        )

    def _device_columns(self, names: Names) -> DeviceSpans:
        rows = self._device
        counts = np.array([len(row[2]) for row in rows], dtype=np.int64)
        lane = _joined([self._lanes_of[row[0]] for row in rows], np.int64)
        step = np.repeat(np.array([row[7] for row in rows], dtype=np.int64), counts)
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
            collective=_joined([row[8] for row in rows], np.int64),
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
        items, members, begin, end, first, last = (
            zip(*self._collectives, strict=True) if (self._collectives) else ((),) * 6
        )
        works = [item.work for item in items]
        return Collectives(
            kind=np.array([names(getattr(work, "kind", "send-recv")) for work in works], np.int64),
            axis=np.array([names(getattr(work, "group", "pp")) for work in works], np.int64),
            size_bytes=np.array([work.size_bytes for work in works], np.float64),
            group_size=np.array(members, np.int64),
            begin_s=np.array(begin, np.float64),
            end_s=np.array(end, np.float64),
            ideal_s=np.array([self._calm.ideal_s(item) for item in items], np.float64),
            first_s=np.array(first, np.float64),
            last_rank=np.array(last, np.int64),
        )

    def _loader_spans(self) -> LoaderSpans:
        rows = self._loads
        counts = [len(row[0]) for row in rows]
        return LoaderSpans(
            _joined([row[0] for row in rows], np.int64),
            np.repeat(np.array([row[1] for row in rows], np.int64), counts),
            np.repeat(np.array([row[2] for row in rows], np.int64), counts),
            _joined([row[3] for row in rows], np.float64),
            _joined([row[4] for row in rows], np.float64),
        )


def _joined(parts: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts]).astype(kind)
