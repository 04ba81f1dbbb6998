"""What the lanes engine keeps: the spans of chosen ranks, each standing for those like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from simulator.engine.calm import Calm
from simulator.engine.cast import lane_for
from simulator.engine.colours import combine, keys
from simulator.engine.fold import rank_words
from simulator.engine.lane_axes import Axes, Floats, Ints, greatest
from simulator.engine.lane_columns import collective_columns, host_columns, joined, loader_columns
from simulator.engine.lane_spans import Order, Spans, latest_needed
from simulator.engine.record import Names, Statics
from simulator.engine.script import Item
from simulator.engine.setting import Setting
from simulator.faults import Factor, Pause, Resource
from simulator.timeline import (
    DeviceSpans,
    HostKind,
    Lane,
    Timeline,
)

if TYPE_CHECKING:
    from simulator.engine.block import Block
    from simulator.engine.lane_block import Issued
    from simulator.engine.lane_op import Op

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
        self._device: list[Spans] = []
        self._collectives: list[list[Any]] = []
        self._host: list[tuple[Any, ...]] = []
        self._loads: list[tuple[Any, ...]] = []
        self._groups: dict[tuple[int, str | None], tuple[Ints, Ints, Ints]] = {}
        self._orders: dict[Block, Order] = {}
        self._members: dict[tuple[int, str, tuple[int, ...]], Ints] = {}
        self._since = [np.zeros(len(lanes)) for lanes in self._lanes_of]
        self._steps: list[Floats] = []

    def pick(self, stage: int, array: Floats) -> Floats:
        """The shown ranks' entries of an array over the mesh, shape (shown ranks of the stage,)."""
        return array.take(self._places_in(stage, array.shape))

    def _places_in(self, stage: int, shape: tuple[int, ...]) -> Ints:
        index = self._index.get((stage, shape))
        if index is None:
            index = self._index[stage, shape] = self._axes.index(self._places[stage], shape)
        return index

    def _rows_of(self, stage: int, rows: Floats) -> Floats:
        """`pick` of each of several arrays in one, shape (rows, shown ranks of the stage)."""
        return rows.reshape(len(rows), -1).take(self._places_in(stage, rows.shape[1:]), axis=1)

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

    def queued(self, stage: int, host: Floats, waits: Sequence[bool], step: int) -> Floats:
        """The host's clock over a block, shape (1 + len(waits), mesh): whether each row waits for its queue.

        Returns it on the shown ranks.
        """
        shown = self._rows_of(stage, host)
        if any(waits):
            blocked = (shown[1:] > shown[:-1]) & np.array(waits)[:, None]
            lane, row = np.nonzero(blocked.T)
            if len(lane):
                lanes = self._lanes_of[stage][lane]
                begin, end = shown[row, lane], shown[row + 1, lane]
                before = np.concatenate([end[:1], end[:-1]])
                first = np.concatenate([[True], lane[1:] != lane[:-1]])
                since = self._since[stage]
                self._launching(lanes, np.where(first, since[lane], before), begin, step)
                self._host.append((lanes, begin, end, HostKind.QUEUE_FULL, "launch queue full", step))
                since[lane] = end  # in order: the last stays
        return shown

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
            Spans(
                *(stage, (op.item,), step, start, end, self.pick(stage, op.issued)),
                *(self.pick(stage, op.ready), self._blocker(stage, op), meeting, busy),
            )
        )

    def block(
        self,
        stage: int,
        block: Block,
        issued: Issued,
        ends: tuple[Floats, Floats],
        takes: list[Floats] | None,
        step: int,
    ) -> None:
        """A block is done, its pieces begun as soon as they could.

        `ends`: of its launches and of its collectives, shapes (number, mesh). `takes`: of its pieces,
        where nothing is drawn; else what they took is what they lasted.
        """
        assert issued.shown is not None
        count, lanes = len(block.items), self._lanes_of[stage]
        order = self._orders.get(block)
        if order is None:
            order = self._orders[block] = Order(block)

        def places(shape: tuple[int, ...]) -> Ints:
            return self._places_in(stage, shape)

        known = order.known(issued.outside, ends, places, len(lanes))
        end = known[-count:]
        ready = latest_needed(known, order.needs)
        rows = np.array([-1 if one is None else one.row for one in issued.outside], dtype=np.int64)
        rows = np.concatenate([rows, self._rows + len(lanes) * np.arange(count)])
        self._rows += count * len(lanes)
        for op, row, shown in zip(issued.done, rows[-count:].tolist(), end, strict=True):
            op.row, op.shown = row, shown
        busy = end - ready
        if takes is not None:
            for number in order.launches.tolist():
                busy[number] = self.pick(stage, takes[number])
        busy[order.collectives] = np.nan
        meeting = np.full((count, len(lanes)), -1)
        for group, numbers in order.groups.items():
            arrival = latest_needed(self._of_members(stage, group, order, issued, ends), order.needs[numbers])
            items = [block.items[number] for number in numbers.tolist()]
            meeting[numbers] = self._met(stage, group, items, arrival, ready[numbers], end[numbers])
        blocker = order.blockers(known, rows[:, None] + (rows >= 0)[:, None] * self._own[stage])
        issue = issued.shown[issued.at]
        self._device.append(Spans(stage, block.items, step, ready, end, issue, ready, blocker, meeting, busy))

    def _of_members(
        self, stage: int, group: str, order: Order, issued: Issued, ends: tuple[Floats, Floats]
    ) -> Floats:
        """`known` of all members of the groups that the shown ranks are in, one group after the other."""
        numbers, _, _ = self._instances(stage, group)

        def places(shape: tuple[int, ...]) -> Ints:
            key = (stage, group, shape)
            if key not in self._members:
                of_rank = self._setting.mesh.group_of(group)
                ranks = np.concatenate([np.flatnonzero(of_rank == one) for one in numbers.tolist()])
                self._members[key] = self._axes.index(self._setting.number_in_stage[ranks], shape)
            return self._members[key]

        members = len(numbers) * self._setting.mesh.size(group)
        return order.known(issued.outside, ends, places, members)

    def _met(
        self, stage: int, group: str, items: list[Item], arrival: Floats, own: Floats, end: Floats
    ) -> Ints:
        """`_meet` for several collectives of a group. `own`, `end`: on the shown ranks."""
        numbers, chosen, place = self._instances(stage, group)
        size = self._setting.mesh.size(group)
        arrival = arrival.reshape(len(items), len(numbers), size)
        first, begin = arrival.min(axis=2), arrival.max(axis=2)
        last = np.full(begin.shape, -1)
        for lane, here, mine in zip(self._lanes_of[stage].tolist(), place.tolist(), own.T, strict=True):
            last[:, here] = np.where(mine >= begin[:, here], lane, last[:, here])
        rows = len(self._collectives) + np.arange(first.size).reshape(first.shape)
        each = [item for item in items for _ in range(len(numbers))]
        columns = (array.ravel().tolist() for array in (begin, end[:, chosen], first, last))
        self._collectives += [[item, size, *row] for item, *row in zip(each, *columns, strict=True)]
        return rows[:, place]

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
            host=host_columns(self._host, names),
            collectives=collective_columns(self._collectives, self._calm, names),
            names=names.all(),
            steps=np.stack([starts, ends], axis=2),
            loader=loader_columns(self._loads),
            meta=meta,
        )

    def _device_columns(self, names: Names) -> DeviceSpans:
        spans = self._device
        about, alone, own = self._about(spans, names)
        lanes = [self._lanes_of[one.stage] for one in spans]
        counts = np.array([one.start.size for one in spans], dtype=np.int64)
        lane = joined(
            [np.tile(here, len(one.items)) for here, one in zip(lanes, spans, strict=True)], np.int64
        )
        start = joined([one.start for one in spans], np.float64)
        end = joined([one.end for one in spans], np.float64)
        busy = np.minimum(joined([one.busy for one in spans], np.float64), end - start)
        alone = np.minimum(alone, busy)
        return DeviceSpans(
            rank=lane,
            stream=about[:, 0].astype(np.int64),
            start_s=start,
            end_s=end,
            kind=about[:, 1].astype(np.int64),
            name=about[:, 2].astype(np.int64),
            issued_s=joined([one.issued for one in spans], np.float64),
            ready_s=joined([one.ready for one in spans], np.float64),
            blocker=joined([one.blocker for one in spans], np.int64),
            collective=joined([one.meeting for one in spans], np.int64),
            launch=np.full(len(lane), -1),
            step=np.repeat(np.array([one.step for one in spans], dtype=np.int64), counts),
            micro_batch=about[:, 3].astype(np.int64),
            ideal_s=about[:, 4],
            model_flops=about[:, 5],
            sm_share=about[:, 6],
            bytes=about[:, 7],
            busy_s=busy,
            alone_s=alone,
            fault_s=np.maximum(0.0, busy - alone - own),
        )

    def _about(self, spans: list[Spans], names: Names) -> tuple[Floats, Floats, Floats]:
        """(what the work says of each row, time alone at full speed, what communication adds)."""
        statics = Statics(self._setting, names)
        gpu = self._setting.gpu_of_rank[[lane.rank for lane in self.lanes]]
        table: list[tuple[float, ...]] = []
        places: dict[tuple[int, int], int] = {}  # in the table, by item and GPU
        rows: dict[tuple[int, int], Ints] = {}  # of all pieces of spans alike
        extras: dict[tuple[int, int, int], Floats] = {}
        index, extra = [], []
        for one in spans:
            key = (one.stage, id(one.items))
            if key not in rows:
                found = []
                for item in one.items:
                    for kind in gpu[self._lanes_of[one.stage]].tolist():
                        if (id(item), kind) not in places:
                            places[id(item), kind] = len(table)
                            table.append((*statics.of(item, kind), statics.alone_s(item, kind)))
                        found.append(places[id(item), kind])
                rows[key] = np.array(found, dtype=np.int64)
            index.append(rows[key])
            turn = (*key, self._calm.turn(one.step))
            if turn not in extras:
                more = [self._calm.extra(item, one.stage, one.step) for item in one.items]
                none = np.zeros(len(self._lanes_of[one.stage]))
                extras[turn] = np.concatenate([none if x is None else self.pick(one.stage, x) for x in more])
            extra.append(extras[turn])
        about = np.array(table).reshape(-1, 9)[joined(index, np.int64)]
        return about[:, :8], about[:, 8], joined(extra, np.float64)
