"""Collectives in flight over shared links.

A transfer first moves its bytes at the rate that max-min fairness gives it, then takes its latency.
Rates change only when a transfer that shares a link with it starts or ends, or when a link's capacity
does; a transfer alone on its links costs one timer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.network.collectives import Activity
from simulator.network.fluid import max_min

if TYPE_CHECKING:
    from simulator.engine.chain import Chain

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Route:
    """Where a kind of activity puts its bytes: directed links, and bytes on each per byte of its size.

    `pattern`: number of its set of links, which routes of other sizes share.
    """

    __slots__ = ("cap_bytes_per_s", "links", "number", "pattern", "per_byte", "rate_alone")

    def __init__(self, number: int, links: Ints, per_byte: Floats, cap_bytes_per_s: float, pattern: int = -1):
        self.number = number
        self.pattern = pattern
        self.rate_alone = -1.0  # remembered until a capacity changes
        self.links = links
        self.per_byte = per_byte
        self.cap_bytes_per_s = cap_bytes_per_s

    def alone(self, capacity: Floats) -> float:
        """Bytes a second with nobody else on the links."""
        if not len(self.links):
            return self.cap_bytes_per_s
        return min(self.cap_bytes_per_s, float((capacity[self.links] / self.per_byte).min()))


class Transfer:
    """One activity in flight."""

    __slots__ = (
        "armed", "armed_alone", "latency_s", "mark_s", "on_done", "on_rate", "rate", "remaining", "route",
        "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        route: Route,
        size_bytes: float,
        latency_s: float,
        on_done: Callable[[], None],
        on_rate: Callable[[float], None] | None,
    ):
        self.route = route
        self.size_bytes = size_bytes
        self.remaining = size_bytes
        self.latency_s = latency_s
        self.on_done = on_done
        self.on_rate = on_rate
        self.rate = 0.0
        self.mark_s = 0.0
        self.armed = 0  # number of the timer that counts; earlier ones are stale
        self.armed_alone = False  # that timer includes the latency

    @property
    def end_s(self) -> float:
        """When the bytes have left, at the present rate."""
        if self.remaining <= 0:
            return self.mark_s
        return self.mark_s + self.remaining / self.rate if self.rate > 0 else math.inf


class Flows:
    """All transfers in flight, and the links' present capacity.

    `log` collects (time, route number, bytes a second) for link utilisation.
    """

    def __init__(self, env: simpy.Environment, capacity: Floats, *, log: bool = False):
        self._env = env
        self._healthy = capacity
        self._capacity = capacity.copy()
        self._patterns: dict[bytes, int] = {}
        self._on_link: dict[int, list[int]] = {}  # link -> patterns that use it
        self._neighbours: list[list[int]] = []  # pattern -> patterns that share a link with it
        self._load: list[int] = []  # pattern -> transfers in flight that share a link with it
        self._active: dict[Transfer, None] = {}
        self._rates: dict[tuple[int, ...], Floats] = {}
        self._claims: dict[Chain, set[int]] = {}  # patterns that a chain counts on having for itself
        self.routes: list[Route] = []
        self.shared = False  # whether transfers ever met on a link
        self.log: list[tuple[float, int, float]] | None = [] if log else None

    def route(self, activity: Activity, links: Ints, load: Floats) -> Route:
        """Register where an activity puts its bytes: `load` on each of `links` for the whole of it."""
        size = activity.size_bytes or 1.0
        return self.add_route(links, load / size, activity.rate_cap_per_s * size)

    def add_route(self, links: Ints, per_byte: Floats, cap_bytes_per_s: float) -> Route:
        """Register bytes on each of `links` for each byte moved, and the most that it can move a second."""
        links = np.asarray(links)
        pattern = self._pattern(links)
        made = Route(len(self.routes), links, np.asarray(per_byte), cap_bytes_per_s, pattern)
        self.routes.append(made)
        return made

    def _pattern(self, links: Ints) -> int:
        key = links.tobytes()
        known = self._patterns.get(key)
        if known is not None:
            return known
        number = self._patterns[key] = len(self._neighbours)
        near: dict[int, None] = {}
        for link in links.tolist():
            users = self._on_link.setdefault(link, [])
            users.append(number)
            near.update(dict.fromkeys(users))
        self._neighbours.append(list(near))
        for other in near:
            if other != number:
                self._neighbours[other].append(number)
        busy = sum(other in near for other in (one.route.pattern for one in self._active))
        self._load.append(busy)
        return number

    def set_capacity(self, links: Iterable[int], factors: Sequence[float]) -> None:
        """Links run at a factor of their healthy capacity from now on."""
        for chain in list(self._claims):
            chain.land()
        index = np.fromiter(links, dtype=np.int64)
        self._capacity[index] = self._healthy[index] * np.asarray(factors)
        self._rates.clear()
        for route in self.routes:
            route.rate_alone = -1.0
        self._drop_ended()
        changed = np.zeros(len(self._capacity), dtype=bool)
        changed[index] = True
        self._resolve([t for t in self._active if changed[t.route.links].any()])

    def start(
        self,
        route: Route,
        size_bytes: float,
        latency_s: float,
        on_done: Callable[[], None],
        on_rate: Callable[[float], None] | None = None,
        begun_s: float | None = None,
    ) -> Transfer:
        """Begin a transfer now; `on_done` is called at its end, `on_rate` with each new rate in bytes/s.

        `begun_s`: since then it has run alone on its links.
        """
        if self._claims:
            self._clear(route.pattern)
        transfer = Transfer(route, size_bytes, latency_s, on_done, on_rate)
        transfer.mark_s = self._env.now
        if begun_s is not None and begun_s < self._env.now and self._resume(transfer, begun_s):
            return transfer
        if self._load[route.pattern]:
            self._drop_ended()
        self._active[transfer] = None
        for near in self._neighbours[route.pattern]:
            self._load[near] += 1
        if self._load[route.pattern] > 1:
            self._resolve([transfer])
        else:
            self._set_rate(transfer, self.alone(route))
        return transfer

    # ------------------------------------------------------------------------------------ chains

    def idle(self, route: Route) -> bool:
        """Whether nothing is on the links of a route, nor will be unless a chain is told."""
        if self._load[route.pattern]:
            return False
        near = self._neighbours[route.pattern]
        return all(patterns.isdisjoint(near) for patterns in self._claims.values())

    def meet(self, one: Route, other: Route) -> bool:
        """Whether two routes have a link in common."""
        return other.pattern in self._neighbours[one.pattern]

    def claim(self, chain: Chain, patterns: set[int]) -> None:
        """The chain has these links for itself until it lands."""
        self._claims[chain] = patterns

    def unclaim(self, chain: Chain) -> None:
        """The chain has landed."""
        self._claims.pop(chain, None)

    def log_alone(self, route: Route, begin_s: float, sent_s: float) -> None:
        """Note a transfer that ran alone."""
        if self.log is not None:
            self.log.append((begin_s, route.number, route.rate_alone))
            self.log.append((sent_s, route.number, 0.0))

    def _clear(self, pattern: int) -> None:
        near = self._neighbours[pattern]
        for chain in [chain for chain, patterns in self._claims.items() if not patterns.isdisjoint(near)]:
            chain.land()

    def alone(self, route: Route) -> float:
        """Bytes a second with nobody else on the links, as they are now."""
        if route.rate_alone < 0:
            route.rate_alone = route.alone(self._capacity)
        return route.rate_alone

    def _resume(self, transfer: Transfer, begun_s: float) -> bool:
        """Take off what has been sent since `begun_s`; whether only the latency is left (and arranged)."""
        rate, now = self.alone(transfer.route), self._env.now
        sent_s = begun_s + transfer.size_bytes / rate
        if sent_s > now:
            if self.log is not None:
                self.log.append((begun_s, transfer.route.number, rate))
            transfer.remaining = (sent_s - now) * rate
            return False
        self.log_alone(transfer.route, begun_s, sent_s)
        if transfer.on_rate is not None:
            transfer.on_rate(rate)
        timer = self._env.timeout(max(0.0, sent_s + transfer.latency_s - now))
        timer.callbacks.append(lambda _: transfer.on_done())
        return True

    def stop(self, transfer: Transfer) -> None:
        """Take a transfer out before its end (traffic that goes away)."""
        if transfer in self._active:
            self._release(transfer)

    # ------------------------------------------------------------------------------------ inside

    def _drop_ended(self) -> None:
        """Free the links of transfers whose bytes have left but whose latency still runs."""
        now = self._env.now
        for transfer in [t for t in self._active if t.end_s <= now]:
            self._release(transfer)

    def _release(self, transfer: Transfer) -> None:
        del self._active[transfer]
        pattern = transfer.route.pattern
        for near in self._neighbours[pattern]:
            self._load[near] -= 1
        if self.log is not None:
            self.log.append((min(self._env.now, transfer.end_s), transfer.route.number, 0.0))
        if self._load[pattern]:
            self._resolve([other for other in self._active if self._conflict(other, transfer)])

    def _conflict(self, one: Transfer, other: Transfer) -> bool:
        return other.route.pattern in self._neighbours[one.route.pattern]

    def _resolve(self, seeds: list[Transfer]) -> None:
        """New rates for all transfers connected to the seeds through shared links."""
        component = dict.fromkeys(seeds)
        frontier = list(seeds)
        while frontier:
            one = frontier.pop()
            for other in self._active:
                if other not in component and self._conflict(one, other):
                    component[other] = None
                    frontier.append(other)
        if not component:
            return
        self.shared = self.shared or len(component) > 1
        members = sorted(component, key=lambda transfer: transfer.route.number)
        for transfer, rate in zip(members, self._shares(members), strict=True):
            self._set_rate(transfer, float(rate))

    def _shares(self, members: list[Transfer]) -> Floats:
        key = tuple(transfer.route.number for transfer in members)
        known = self._rates.get(key)
        if known is None:
            routes = [transfer.route for transfer in members]
            used, index = np.unique(np.concatenate([route.links for route in routes]), return_inverse=True)
            known = self._rates[key] = max_min(
                self._capacity[used],
                np.cumsum([0, *(len(route.links) for route in routes)]),
                index,
                np.concatenate([route.per_byte for route in routes]),
                np.array([route.cap_bytes_per_s for route in routes]),
                np.ones(len(routes)),
            )
        return known

    def _set_rate(self, transfer: Transfer, rate: float) -> None:
        now = self._env.now
        if rate == transfer.rate:
            if transfer.armed_alone and self._load[transfer.route.pattern] > 1:
                self._arm(transfer)
            return
        if math.isinf(rate):
            transfer.remaining = 0.0
        elif transfer.rate > 0:
            transfer.remaining = max(0.0, transfer.remaining - (now - transfer.mark_s) * transfer.rate)
        transfer.mark_s = now
        transfer.rate = rate
        if self.log is not None:
            self.log.append((now, transfer.route.number, rate))
        if transfer.on_rate is not None:
            transfer.on_rate(rate)
        self._arm(transfer)

    def _arm(self, transfer: Transfer) -> None:
        transfer.armed = number = transfer.armed + 1
        transfer.armed_alone = False
        end = transfer.end_s
        if math.isinf(end):
            return
        alone = self._load[transfer.route.pattern] <= 1
        transfer.armed_alone = alone
        delay = end - self._env.now + (transfer.latency_s if alone else 0.0)

        def fire(_: Any) -> None:
            if transfer.armed == number:
                self._bytes_sent(transfer, waited_latency=alone)

        self._env.timeout(max(0.0, delay)).callbacks.append(fire)

    def _bytes_sent(self, transfer: Transfer, *, waited_latency: bool) -> None:
        if transfer in self._active:
            end = min(self._env.now, transfer.end_s)
            transfer.remaining, transfer.mark_s = 0.0, end
            self._release(transfer)
        if waited_latency or transfer.latency_s == 0:
            transfer.on_done()
        else:
            timer = self._env.timeout(transfer.latency_s)
            timer.callbacks.append(lambda _: transfer.on_done())
