"""Faults on links while the event engine runs: capacities that change, and traffic of others.

A window in steps opens when the first lane's GPU enters the step.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from simulator.engine.cast import Cast
from simulator.engine.flows import Flows, Route, Transfer
from simulator.engine.lane import LaneState
from simulator.engine.speed import step_factor, timed_profile
from simulator.faults import Factor, Resource, Traffic, Window


class LinkFaults:
    """Opens and closes the windows of all faults on links."""

    def __init__(self, env: simpy.Environment, cast: Cast, flows: Flows):
        self._env = env
        self._flows = flows
        self._step = 0
        self._factors: dict[int, list[Factor]] = {}
        self._traffic: list[tuple[Traffic, Route]] = []
        self._flowing: dict[Route, Transfer] = {}
        classes = cast.link_class
        for link, factors in cast.setting.factors(Resource.LINK).items():
            self._factors[link if classes is None else int(classes[link])] = factors
        for traffic in cast.setting.traffic():
            links = np.array(traffic.links) if classes is None else np.unique(classes[list(traffic.links)])
            route = flows.add_route(links, np.ones(len(links)), traffic.demand_bytes_per_s)
            self._traffic.append((traffic, route))
        self._profiles = {link: timed_profile(factors) for link, factors in self._factors.items()}

    def watch(self, lanes: Sequence[LaneState]) -> None:
        """Follow the clock and the lanes' steps from now on."""
        if not self._factors and not self._traffic:
            return
        for lane in lanes:
            lane.on_step = self._entered
        edges = {edge for profile in self._profiles.values() for edge in profile.starts if edge > 0}
        if edges:
            self._env.process(self._follow(sorted(edges)))
        for traffic, route in self._traffic:
            for window in traffic.windows:
                if not window.in_steps:
                    self._env.process(self._flow_for(window, route))
        self._apply()

    def _follow(self, edges: list[float]) -> Generator[Any, Any, None]:
        for edge in edges:
            yield self._env.timeout(edge - self._env.now)
            self._apply()

    def _entered(self, step: int) -> None:
        if step > self._step:
            self._step = step
            self._apply()

    def _apply(self) -> None:
        now = self._env.now
        links = sorted(self._factors)
        speeds = [self._profiles[x].at(now) * step_factor(self._factors[x], self._step) for x in links]
        if links:
            self._flows.set_capacity(links, speeds)
        for traffic, route in self._traffic:
            self._flow(route, any(w.in_steps and w.start <= self._step < w.end for w in traffic.windows))

    def _flow(self, route: Route, wanted: bool) -> None:
        if wanted and route not in self._flowing:
            self._flowing[route] = self._flows.start(route, math.inf, 0.0, lambda: None)
        elif not wanted and route in self._flowing:
            self._flows.stop(self._flowing.pop(route))

    def _flow_for(self, window: Window, route: Route) -> Generator[Any, Any, None]:
        yield self._env.timeout(window.start)
        transfer = self._flows.start(route, math.inf, 0.0, lambda: None)
        if math.isfinite(window.end):
            yield self._env.timeout(window.end - window.start)
            self._flows.stop(transfer)
