"""What collectives take, and what they take from kernels beside them, with every rank at full speed.

The event engine runs a few steps on the folded cluster, faults of links kept; the lanes engine takes
durations from there.
Where nothing contends they are those of an idle fabric, so the two engines agree exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine import events
from simulator.engine.cast import Cast
from simulator.engine.fold import fold
from simulator.engine.lane_axes import Axes, Floats
from simulator.engine.script import Item
from simulator.engine.setting import Setting
from simulator.faults import Effect, Factor, Resource, Traffic
from simulator.program.instructions import Collective, Launch, Send
from simulator.spec import Distribution

#: Steps that are run: the first starts from rest, the second is like those that follow.
CALM_STEPS: Final = 2

#: What a sum of floats may be off by is no contention.
_NOTHING: Final = 1e-12


@dataclass(eq=False)
class Calm:
    """Durations by item and lane. `contends`: whether anything shared links, SMs or HBM bandwidth."""

    cast: Cast
    contends: bool
    _durations: Mapping[tuple[int, int], Mapping[int, float]]  # (work, step) -> lane -> seconds
    _extras: Mapping[tuple[int, int], Mapping[int, float]]
    _ideals: Mapping[int, float]
    _lanes: Sequence[NDArray[np.int64]]  # by stage: lane of each rank, over the mesh
    _steps: int
    _arrays: dict[tuple[str, int, int, int], Floats | None]
    _alike: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def turn(self, step: int) -> int:
        """The step of the calm run that a step is like."""
        return min(step, self._steps - 1)

    def duration(self, item: Item, stage: int, step: int) -> Floats:
        """From the last arrival to the end of a collective or transfer, over the mesh."""
        key = ("duration", id(item.work), stage, self.turn(step))
        if key not in self._arrays:
            known = self._find(self._durations, item, step)
            self._arrays[key] = self._array(known or self._alone(item, stage), stage)
        result = self._arrays[key]
        assert result is not None
        return result

    def extra(self, item: Item, stage: int, step: int) -> Floats | None:
        """Seconds that communication adds to a segment, over the mesh; None for nothing."""
        key = ("extra", id(item.work), stage, self.turn(step))
        if key not in self._arrays:
            known = self._find(self._extras, item, step)
            self._arrays[key] = self._array(known, stage) if known else None
        return self._arrays[key]

    def ideal_s(self, item: Item) -> float:
        """On an idle, healthy fabric; NaN where the calm run did not meet it."""
        return self._ideals.get(id(item.work), math.nan)

    def _find(
        self, table: Mapping[tuple[int, int], Mapping[int, float]], item: Item, step: int
    ) -> Mapping[int, float] | None:
        return table.get((id(item.work), self.turn(step)))

    def _array(self, by_lane: Mapping[int, float], stage: int) -> Floats:
        """Over the mesh; what is alike is one array."""
        key = (stage, *by_lane.items())
        known = self._alike.get(key)
        if known is None:
            values = np.zeros(len(self.cast.lanes))
            for lane, value in by_lane.items():
                values[lane] = value
            known = self._alike[key] = np.asarray(values[self._lanes[stage]])
        return known

    def _alone(self, item: Item, stage: int) -> Mapping[int, float]:
        """For work that the calm run did not meet: on the idle fabric."""
        work, cast = item.work, self.cast
        assert not isinstance(work, Launch)
        found = {}
        for number, lane in enumerate(cast.lanes):
            if lane.role != stage:
                continue
            if isinstance(work, Collective):
                group = cast.groups[work.group][number]
                plan = (work.kind, group.ranks, work.size_bytes, work.algorithm)
                name = group.name
            else:
                peer = cast.lanes[cast.peer(number, getattr(work, "peer", stage))].rank
                ends = (lane.rank, peer) if isinstance(work, Send) else (peer, lane.rank)
                name = "send {}-{}".format(*(cast.setting.stage_of_rank[x] for x in ends))
                plan = ("send-recv", ends, getattr(work, "size_bytes", 0.0), "auto")
            activity = cast.setting.activity(*plan)
            links, load = cast.wire(activity, name, plan[1][0])
            rate = float((load / cast.capacity[links]).max(initial=0.0))
            found[number] = activity.latency_s + max(rate, 1.0 / activity.rate_cap_per_s)
        return found


def calm_setting(setting: Setting) -> Setting:
    """The setting without what goes wrong on ranks, and with the same data for all."""
    scenario = setting.scenario
    load = scenario.dataloader.load_time
    kept: list[Effect] = [
        effect
        for effect in setting.effects
        if isinstance(effect, Traffic) or (isinstance(effect, Factor) and effect.resource is Resource.LINK)
    ]
    return replace(
        setting,
        scenario=replace(
            scenario,
            dataloader=replace(scenario.dataloader, load_time=Distribution("constant", load.mean)),
            run=replace(scenario.run, steps=_steps(setting), warmup=0),
        ),
        effects=tuple(kept),
        loads={},
        _noise={},
        _load_times={},
    )


def _steps(setting: Setting) -> int:
    """Links whose state changes between steps need all of them."""
    for effect in setting.effects:
        if not isinstance(effect, Traffic | Factor):
            continue
        moves = isinstance(effect, Traffic) or effect.resource is Resource.LINK
        if moves and any(w.start > 0 or np.isfinite(w.end) for w in effect.windows):
            return setting.steps
    return min(CALM_STEPS, setting.steps)


def run_calm(setting: Setting, axes: Axes) -> Calm:
    """Run the folded calm setting and keep its durations."""
    calm = calm_setting(setting)
    cast = fold(calm)
    play = events.play(cast)
    durations: dict[tuple[int, int], dict[int, float]] = {}
    extras: dict[tuple[int, int], dict[int, float]] = {}
    ideals: dict[int, float] = {}
    meetings = play.recorder.collectives
    for lane, item, *_, step, meeting, busy, alone, fault in play.recorder.device:
        if meeting >= 0:
            begin, end, ideals[id(item.work)] = meetings[meeting][1:4]
            durations.setdefault((id(item.work), step), {})[lane] = end - begin
        elif isinstance(item.work, Launch):
            extra = busy - alone - fault
            if extra > _NOTHING * max(1.0, busy):
                extras.setdefault((id(item.work), step), {})[lane] = extra
    lanes = tuple(
        axes.spread(cast.lane_of_rank[np.flatnonzero(setting.stage_of_rank == stage)])
        for stage in range(len(setting.scripts))
    )
    contends = bool(extras) or play.flows.shared
    return Calm(cast, contends, durations, extras, ideals, lanes, calm.steps, {})
