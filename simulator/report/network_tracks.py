"""NICs and links in a trace: when each was in use, and how much of its capacity."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from simulator.analysis.intervals import Floats, Ints
from simulator.report.trace_events import Slice, Track, counter, process, slices, thread, ticks

#: process numbers: of a node's network, and of the links that belong to no node
NODE_PID: Final = 10_000_000
FABRIC_PID: Final = 20_000_000
#: of the links outside the nodes only the busiest are written
_MOST_FABRIC_LINKS: Final = 64

_OF_NODE: Final = re.compile(r"node(\d+)/(.+)")
_NIC: Final = re.compile(r"nic\d+")


def network_events(
    links: Mapping[str, tuple[Floats, Floats]], nodes: Collection[int], low: int, high: int
) -> Iterator[str]:
    """Counters of the links of `nodes` and of the fabric, slices of their NICs, in [low, high]."""
    by_node: dict[int, list[tuple[str, str]]] = {}
    fabric: list[str] = []
    for link in links:
        match = _OF_NODE.fullmatch(link)
        if match is None:
            fabric.append(link)
        elif int(match[1]) in nodes:
            by_node.setdefault(int(match[1]), []).append((match[2], link))
    for node, mine in sorted(by_node.items()):
        yield from _node(node, mine, links, low, high)
    busiest = sorted(fabric, key=lambda link: (-_use(*links[link]), link))[:_MOST_FABRIC_LINKS]
    if busiest:
        yield from process(FABRIC_PID, "fabric links", FABRIC_PID)
    for link in sorted(busiest):
        yield from _counter(FABRIC_PID, link, links[link], low, high)


def _node(
    node: int,
    mine: list[tuple[str, str]],
    links: Mapping[str, tuple[Floats, Floats]],
    low: int,
    high: int,
) -> Iterator[str]:
    pid = NODE_PID + node
    yield from process(pid, f"node {node} network", pid)
    for number, (label, link) in enumerate(sorted(mine)):
        if _NIC.search(label):
            yield from thread(Track(pid, 1 + number, label))
            yield from slices(pid, 1 + number, _busy(label, *links[link], low, high))
        yield from _counter(pid, label, links[link], low, high)


def _busy(label: str, times_s: Floats, values: Floats, low: int, high: int) -> Iterator[Slice]:
    """A slice for each stretch in which the link is used, with its mean utilisation."""
    at, value = _window(times_s, values, low, high)
    used = value > 0
    edges = np.flatnonzero(np.diff(used.astype(np.int8))) + 1
    for first, last in pairwise([0, *edges.tolist(), len(value)]):
        if first < last and used[first]:
            start, end = int(at[first]), int(at[last]) if last < len(at) else high
            length = np.diff(np.append(at[first:last], end))
            mean = float((value[first:last] * length).sum() / max(1, end - start))
            yield Slice(start, end, f"{label} {mean:.0%}", "nic", f'"mean_utilisation":{mean:.4g}')


def _counter(pid: int, name: str, link: tuple[Floats, Floats], low: int, high: int) -> Iterator[str]:
    at, value = _window(*link, low, high)
    for tick, one in zip(at.tolist(), value.tolist(), strict=True):
        yield counter(pid, f"{name} utilisation", tick, "percent", 100 * one)


def _window(times_s: Floats, values: Floats, low: int, high: int) -> tuple[Ints, Floats]:
    """A piecewise constant value in [low, high], from `low` on; of equal times the last stays."""
    at = ticks(times_s)
    before = int(np.searchsorted(at, low, side="right"))
    held = values[before - 1] if before else 0.0
    at, values = np.append(low, at[before:]), np.append(held, values[before:])
    keep = at <= high
    at, values = at[keep], values[keep]
    stays = np.append(np.diff(at) > 0, True)
    at, values = at[stays], values[stays]
    changes = np.append(True, np.diff(values) != 0)
    return at[changes], values[changes]


def _use(times_s: Floats, values: Floats) -> float:
    return float((np.diff(times_s) * values[:-1]).sum()) if len(times_s) > 1 else 0.0
