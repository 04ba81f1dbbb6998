"""Utilisation of links over time, from the log of rates that the flows kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine.flows import Route

Floats = NDArray[np.float64]

#: Links kept, those that carried most first: a trace with more counters than this is not read.
MOST_LINKS: Final = 512


def utilisation(
    log: Sequence[tuple[float, int, float]],
    routes: Sequence[Route],
    capacity: Floats,
    name: Callable[[int], str],
    most: int = MOST_LINKS,
) -> dict[str, tuple[Floats, Floats]]:
    """Name of each used link: (times, part of its healthy capacity in use from then on).

    `log`: (time, route number, bytes a second from then on); of one route, in order of time.
    """
    if not log:
        return {}
    log = sorted(log, key=lambda row: row[0])
    time = np.array([row[0] for row in log])
    route = np.array([row[1] for row in log])
    rate = np.array([row[2] for row in log])
    change = rate.copy()
    for number in np.unique(route):
        rows = np.flatnonzero(route == number)
        change[rows] = np.diff(rate[rows], prepend=0.0)
    loads = _loads(routes, np.unique(route).tolist())
    moved = {link: sum(per_byte for _, per_byte in users) for link, users in loads.items()}
    chosen = sorted(sorted(loads, key=lambda link: (-moved[link], link))[:most])
    return {name(link): _series(time, route, change, loads[link], float(capacity[link])) for link in chosen}


def _loads(routes: Sequence[Route], used: list[int]) -> dict[int, list[tuple[int, float]]]:
    loads: dict[int, list[tuple[int, float]]] = {}
    for number in used:
        one = routes[number]
        for link, per_byte in zip(one.links.tolist(), one.per_byte.tolist(), strict=True):
            loads.setdefault(link, []).append((number, per_byte))
    return loads


def _series(
    time: Floats,
    route: NDArray[np.int64],
    change: Floats,
    users: list[tuple[int, float]],
    capacity: float,
) -> tuple[Floats, Floats]:
    per_byte = np.zeros(int(route.max()) + 1)
    for number, load in users:
        per_byte[number] = load
    rows = np.flatnonzero(per_byte[route] > 0)
    level = np.cumsum(change[rows] * per_byte[route[rows]]) / capacity
    last = np.append(np.diff(time[rows]) > 0, True)  # of all changes at one time, the last counts
    return time[rows][last], np.maximum(0.0, level[last])
