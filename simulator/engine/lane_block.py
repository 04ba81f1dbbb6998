"""Blocks of work on the lanes engine: the host's times in one go, then the device's.

While the host is ahead, work starts when what it waits for is over, and a piece of work is one addition
over the mesh (and a maximum, for a collective). Where the host may hold work back, pieces go one by one;
the two ways give the same times.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.engine.block import Block
from simulator.engine.lane_axes import Axes, Floats, greatest
from simulator.engine.lane_op import Done, Op
from simulator.engine.script import Item
from simulator.faults import Resource
from simulator.program.instructions import Launch

if TYPE_CHECKING:
    from simulator.engine.lanes import Lanes, Stage


@dataclass(slots=True)
class Issued:
    """A block that the host has issued.

    Its clock, from `begin` on, goes by `values` in turn: until one is reached, where `waits`, else by so
    much. Piece k has been issued after `at[k]` of them, the last one at `over`.
    """

    outside: list[Done | None]
    done: list[Done]
    begin: Floats
    waits: list[bool]
    values: list[Floats]
    at: list[int]
    over: Floats
    shown: Floats | None = None  # the clock on the ranks that are recorded, shape (1 + values, ranks)

    def clock(self, rows: Floats) -> None:
        """Fill in the clock, shape (1 + values, mesh)."""
        rows[0] = self.begin
        before, *after = rows
        for wait, value, row in zip(self.waits, self.values, after, strict=True):
            if wait:
                np.maximum(before, value, out=row)
            else:
                np.add(before, value, out=row)
            before = row


@dataclass(frozen=True, slots=True)
class Terms:
    """What the pieces of a block take in a step, but for what is drawn.

    `ahead_s`: the host must be by so much, that it holds nothing back. `works`, `extras`: of the launches;
    `stacked`, `more`: the same as one array, where they are alike on all ranks. `takes`: of all pieces.
    `axes`: along which a collective's ranks wait for each other, None for launches.
    """

    ahead_s: float
    works: list[Floats]
    extras: list[Floats | None]
    stacked: Floats | None
    more: Floats | None
    takes: list[Floats]
    axes: list[tuple[int, ...] | None]

    def met_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Over what the ends of the collectives vary, where arrivals vary over `shape`."""
        along = {axes for axes in self.axes if axes is not None}
        reduced = {tuple(1 if axis in axes else size for axis, size in enumerate(shape)) for axes in along}
        lasts = {take.shape for take, axes in zip(self.takes, self.axes, strict=True) if axes is not None}
        return np.broadcast_shapes(*reduced, *lasts)


class Blocks:
    """Runs the blocks of an engine."""

    def __init__(self, engine: Lanes):
        self._engine: Lanes = weakref.proxy(
            engine
        )  # engines go when their users do, not when garbage is looked for
        self._scratch = np.empty(0)
        self._terms: dict[tuple[Block, int, int], Terms | None] = {}
        self._sums: dict[tuple[int, int], Floats] = {}
        self._hosts: dict[tuple[Block, int], list[Floats]] = {}

    # ----------------------------------------------------------------------------------------- host

    def issue(self, stage: Stage, block: Block, step: int) -> Issued | list[Op]:
        """The host issues all of a block."""
        engine = self._engine
        if not self._plain(stage, block):
            ops = [
                engine.issue(stage, place, item, step)
                for place, item in zip(block.places, block.items, strict=True)
            ]
            self._forget(stage, block)
            return ops
        outside = [
            stage.events.get(ref) if isinstance(ref, str) else stage.last.get(ref) for ref in block.outside
        ]
        waits: list[bool] = []
        values: list[Floats] = []
        at: list[int] = []
        done: list[Done] = []
        queues, lengths, limit, first = stage.queues, stage.lengths, engine.limit, stage.issued
        for (stream, launches, events), cost in zip(
            block.queued, self._host_costs(stage, block), strict=True
        ):
            queue = queues[stream]
            while queue and lengths[stream] + launches > limit:
                until = stage.wait_for(stream)
                if until is not None:
                    waits.append(True)
                    values.append(until)
            waits.append(False)
            values.append(cost)
            at.append(len(values))
            op = Done()
            op.queued = stage.put(stream, launches)
            done.append(op)
            stage.last[stream] = op
            for event in events:
                stage.events[event] = op
        refs = [*outside, *done]
        for number, piece in block.covers:
            one = refs[number]
            if one is not None:
                stage.covered.append((first + piece, one.queued))
        self._forget(stage, block)
        issued = Issued(outside, done, stage.host, waits, values, at, stage.host)
        host = self._clock(issued)
        issued.over = stage.host = host[-1].copy()
        if engine.recorder is not None:
            issued.shown = engine.recorder.queued(stage.number, host, waits, step)
        return issued

    @staticmethod
    def _forget(stage: Stage, block: Block) -> None:
        for event in block.drops:
            stage.events.pop(event, None)

    def _clock(self, issued: Issued) -> Floats:
        """The host's clock over a block, in memory that the next call uses again."""
        shape = np.broadcast_shapes(issued.begin.shape, *{value.shape for value in issued.values})
        needed = (1 + len(issued.values)) * math.prod(shape)
        if needed > len(self._scratch):
            self._scratch = np.empty(needed)
        rows = self._scratch[:needed].reshape(-1, *shape)
        issued.clock(rows)
        return rows

    def _plain(self, stage: Stage, block: Block) -> bool:
        """Whether the host does nothing but issue and wait for its queues, at one speed."""
        if len(stage.rates.edges) > 1 or any(stream in stage.held for stream in block.streams):
            return False
        return not stage.pauses or stage.pauses[0][0] > block.places[-1] / stage.operations

    def _host_costs(self, stage: Stage, block: Block) -> list[Floats]:
        """What each piece takes of the host in the step that has begun."""
        key = (block, stage.costs.variant)
        costs = self._hosts.get(key)
        if costs is None:
            costs = self._hosts[key] = [
                stage.costs.segment(item.work.segment)[1][0].host
                if isinstance(item.work, Launch)
                else self._engine.collective_host
                for item in block.items
            ]
        noise = stage.noise(Resource.HOST)
        if noise is not None:
            costs = [
                cost if item.launch < 0 else cost * noise[item.launch]
                for item, cost in zip(block.items, costs, strict=True)
            ]
        if not stage.rates.healthy:
            costs = [stage.rates.alone(cost) for cost in costs]
        return costs

    # --------------------------------------------------------------------------------------- device

    def run(self, stage: Stage, block: Block, issued: Issued | list[Op], step: int) -> None:
        """The device does all of a block."""
        if isinstance(issued, list):
            for one in issued:
                self._engine.run(stage, one, step)
            return
        terms = self._terms_of(stage, block, step)
        rest = self._engine.rest
        ends = [rest if one is None else one.end for one in issued.outside]
        if terms is None or not self._ahead(block, issued, ends, terms):
            self._one_by_one(stage, block, issued, step)
            return
        takes, launched = self._takes(stage, block, terms)
        shape = np.broadcast_shapes(*{one.shape for one in ends}, *{one.shape for one in takes})
        if launched is None or launched.shape[1:] != shape:
            launched = np.empty((len(terms.works), *shape))
        met = np.empty((len(takes) - len(launched), *terms.met_shape(shape)))
        launches, meetings = iter(launched), iter(met)
        for needs, take, axes, op in zip(block.needs, takes, terms.axes, issued.done, strict=True):
            ready = ends[needs[0]]
            for other in needs[1:]:
                ready = np.maximum(ready, ends[other])
            if axes is None:
                row = next(launches)
            else:
                row = next(meetings)
                ready = greatest(ready, axes)
            np.add(ready, take, out=row)
            ends.append(row)
            op.end = op.queued.end = row
        if self._engine.recorder is not None:
            busy = None if stage.noise(Resource.SM) is not None else takes
            self._engine.recorder.block(stage.number, block, issued, (launched, met), busy, step)

    @staticmethod
    def _ahead(block: Block, issued: Issued, ends: list[Floats], terms: Terms) -> bool:
        """Whether the host is done with the block before the device begins, so that it holds nothing back."""
        last = issued.over + terms.ahead_s
        for root in block.roots:
            ready = ends[block.needs[root][0]]
            for other in block.needs[root][1:]:
                ready = np.maximum(ready, ends[other])
            if not (last <= ready).all():
                return False
        return True

    def _one_by_one(self, stage: Stage, block: Block, issued: Issued, step: int) -> None:
        refs = [*issued.outside, *issued.done]
        host = list(self._clock(issued).copy())
        for k, (item, at, done) in enumerate(zip(block.items, issued.at, issued.done, strict=True)):
            found = [refs[number] for number in block.waits[k]]
            waits = [wait for wait in found if wait is not None]
            op = Op(item, host[at - 1], host[at], refs[block.previous[k]], waits, done.queued)
            self._engine.run(stage, op, step)
            done.end, done.row, done.shown = op.end, op.row, op.shown

    def _takes(self, stage: Stage, block: Block, terms: Terms) -> tuple[list[Floats], Floats | None]:
        """What each piece takes in this step; the launches' in one array that may be used up, if there is."""
        noise = stage.noise(Resource.SM)
        if noise is None and not stage.loads:
            return terms.takes, None
        launches = [item for item in block.items if item.launch >= 0]
        drawn: Floats | None = None
        if terms.stacked is not None and noise is not None and not stage.loads:
            first = launches[0].launch
            drawn = noise[first : first + len(launches)] * terms.stacked
            if terms.more is not None:
                drawn += terms.more
        varied = iter(self._varied(stage, launches, terms) if drawn is None else drawn)
        takes = [
            take if axes is not None else next(varied)
            for take, axes in zip(terms.takes, terms.axes, strict=True)
        ]
        return takes, drawn

    def _varied(self, stage: Stage, launches: list[Item], terms: Terms) -> list[Floats]:
        result = []
        noise = stage.noise(Resource.SM)
        for item, work, extra in zip(launches, terms.works, terms.extras, strict=True):
            assert isinstance(item.work, Launch)
            if stage.loads:
                parts = stage.costs.segment(item.work.segment)[1][0].parts
                work = stage.varied(item.work, work, parts)  # noqa: PLW2901
            if noise is not None:
                work = work * noise[item.launch]  # noqa: PLW2901
            result.append(work if extra is None else work + extra)
        return result

    def _terms_of(self, stage: Stage, block: Block, step: int) -> Terms | None:
        """None where the GPUs' speed changes within a step."""
        key = (block, stage.costs.variant, self._engine.calm.turn(step))
        if key not in self._terms:
            self._terms[key] = self._find_terms(stage, block, step)
        return self._terms[key]

    def _sum(self, work: Floats, extra: Floats | None) -> Floats:
        """What is alike is one array: both are kept as long as the engine."""
        if extra is None:
            return work
        key = (id(work), id(extra))
        if key not in self._sums:
            self._sums[key] = work + extra
        return self._sums[key]

    def _find_terms(self, stage: Stage, block: Block, step: int) -> Terms | None:
        calm, axes = self._engine.calm, self._engine.axes
        works: list[Floats] = []
        extras: list[Floats | None] = []
        takes: list[Floats] = []
        along: list[tuple[int, ...] | None] = []
        ahead = 0.0
        for item in block.items:
            if isinstance(item.work, Launch):
                edges, times = stage.costs.segment(item.work.segment)
                if len(edges) > 1:
                    return None
                extra = calm.extra(item, stage.number, step)
                works.append(times[0].work)
                extras.append(extra)
                takes.append(self._sum(times[0].work, extra))
                along.append(None)
                ahead = max(ahead, times[0].ahead_s)
            else:
                takes.append(calm.duration(item, stage.number, step))
                along.append(axes.of_item(item))
        return Terms(ahead, works, extras, *_stacked(works, extras, axes), takes, along)


def _stacked(
    works: list[Floats], extras: list[Floats | None], axes: Axes
) -> tuple[Floats | None, Floats | None]:
    known = [extra for extra in extras if extra is not None]
    if not works or any(array.size > 1 for array in (*works, *known)):
        return None, None
    shape = (len(works), *axes.ones)
    more = None
    if known:
        more = np.array([0.0 if extra is None else extra.item() for extra in extras]).reshape(shape)
    return np.array([work.item() for work in works]).reshape(shape), more
