"""The event engine: the reference. A process for each host; streams, collectives and flows react.

Everything dynamic is here: collectives that happen to overlap share links, communication takes SMs and
HBM bandwidth from compute, faults begin and end in mid-step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import simpy

from simulator.engine.cast import Cast
from simulator.engine.chain import Chains
from simulator.engine.flows import Flows
from simulator.engine.host import Host
from simulator.engine.lane import LaneState, Speeds
from simulator.engine.link_faults import LinkFaults
from simulator.engine.link_log import utilisation
from simulator.engine.loader import Loader
from simulator.engine.record import Recorder
from simulator.engine.rendezvous import Meetings
from simulator.engine.setting import Setting
from simulator.engine.speed import CONSTANT, step_factor, timed_profile
from simulator.errors import EngineError
from simulator.faults import Factor, Resource
from simulator.timeline import LoaderSpans, Timeline

_RESOURCES = (Resource.HOST, Resource.SM, Resource.HBM, Resource.LOADER)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Rows are kept to the end: looking for garbage among them takes as long as the run itself."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Play:
    """An event run when it is over."""

    recorder: Recorder
    flows: Flows
    lanes: list[LaneState]
    loaders: list[Loader]


def run(
    cast: Cast,
    *,
    links: bool = False,
    about: Mapping[str, object] = {},
    progress: Callable[[int], None] | None = None,
) -> Timeline:
    """Simulate all steps of a cast.

    `links`: keep the utilisation of links over time (for traces). `about` goes into the timeline's meta;
    `progress` is called with the number of steps that the first lane has done.
    Raises EngineError if ranks wait for each other for ever, naming who waits at what.
    """
    play_ = play(cast, links=links, progress=progress)
    with without_garbage_collection():
        return _timeline(play_, cast, about)


def _timeline(play_: Play, cast: Cast, about: Mapping[str, object]) -> Timeline:
    flows = play_.flows
    return play_.recorder.timeline(
        np.stack([lane.steps() for lane in play_.lanes]),
        meta={"engine": "events", **cast.meta, **about},
        links=utilisation(flows.log or (), flows.routes, cast.capacity, cast.link_name),
        loader=_loader_spans(play_.loaders),
    )


def play(
    cast: Cast,
    *,
    links: bool = False,
    progress: Callable[[int], None] | None = None,
    chains: bool = True,
) -> Play:
    """Simulate all steps of a cast; the rows are left as they were recorded.

    `chains=False`: an event for every piece of work (slower, the same times).
    """
    env = simpy.Environment()
    recorder = Recorder(cast.setting, cast.lanes)
    flows = Flows(env, cast.capacity, log=links)
    meetings = Meetings(cast, flows, recorder)
    ahead = Chains(env, cast, flows, meetings, enabled=chains)
    lanes, loaders, hosts = _people(env, cast, recorder, meetings, ahead)
    ahead.know(lanes)
    lanes[0].progress = progress
    LinkFaults(env, cast, flows).watch(lanes)
    with without_garbage_collection():
        _run_to_end(env, lanes, hosts, meetings, cast.setting.steps)
    return Play(recorder, flows, lanes, loaders)


def _loader_spans(loaders: list[Loader]) -> LoaderSpans:
    rows = [(lane, *span) for lane, loader in enumerate(loaders) for span in loader.spans]
    if not rows:
        return LoaderSpans.none()
    lane, worker, batch, start, end = zip(*rows, strict=True)
    return LoaderSpans(np.array(lane), np.array(worker), np.array(batch), np.array(start), np.array(end))


def _run_to_end(
    env: simpy.Environment,
    lanes: list[LaneState],
    hosts: list[simpy.Process],
    meetings: Meetings,
    steps: int,
) -> None:
    finished = env.event()
    running = len(lanes)

    def lane_finished() -> None:
        nonlocal running
        running -= 1
        if not running:
            finished.succeed()

    for lane in lanes:
        lane.when_finished(steps, lane_finished)
    try:
        env.run(until=finished)
        env.run(until=env.all_of(hosts))  # their last spans: what they wait for is over
    except RuntimeError as error:
        if finished.triggered:
            raise
        late = [lane for lane in lanes if len(lane.step_ends) < steps]
        waiting = "; ".join(meetings.waiting()[:4]) or "no collective is under way"
        raise EngineError(
            f"{len(late)} of {len(lanes)} ranks never finish step "
            f"{min(len(lane.step_ends) for lane in late)}: {waiting}"
        ) from error


def _people(
    env: simpy.Environment, cast: Cast, recorder: Recorder, meetings: Meetings, chains: Chains
) -> tuple[list[LaneState], list[Loader], list[simpy.Process]]:
    setting = cast.setting
    by_resource = {resource: setting.factors(resource) for resource in _RESOURCES}
    pauses = setting.pauses()
    speeds = Speeds(env)
    lanes, loaders, hosts = [], [], []
    for index, lane in enumerate(cast.lanes):
        factors = {resource: by_resource[resource].get(lane.rank, []) for resource in _RESOURCES}
        state = LaneState(env, setting, index, lane, recorder, meetings, chains, speeds, factors)
        loader = make_loader(setting, lane.rank, factors[Resource.LOADER])
        host = Host(setting, state, setting.scripts[lane.role], loader, pauses.get(lane.rank, {}))
        hosts.append(env.process(host.run()))
        lanes.append(state)
        loaders.append(loader)
    return lanes, loaders, hosts


def make_loader(setting: Setting, rank: int, factors: list[Factor]) -> Loader:
    """The dataloader of a rank, with what is wrong with its workers."""
    config = setting.scenario.dataloader
    per_step = setting.programs.batches(int(setting.stage_of_rank[rank]))

    def of(worker: int) -> list[Factor]:
        return [factor for factor in factors if factor.worker in (-1, worker)]

    return Loader(
        config.workers,
        config.prefetch_factor,
        lambda batch: setting.load_time_s(rank, batch),
        lambda worker: timed_profile(of(worker)) if factors else CONSTANT,
        lambda worker, batch: step_factor(of(worker), batch // per_step) if factors else 1.0,
    )
