"""Routes in a fabric given vertex by vertex: cheapest paths, computed once for each destination.

A link costs one hop; among ways of equal hops the wider one wins. GPUs do not pass on the traffic of
others unless they are said to. Between nodes a route goes by a NIC of the sender and one of the
receiver. Equal ways are told apart by destination (`static`) or by a hash of the flow (`hashed`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.network.links import Floats, Ints
from simulator.network.routing import NONE, flow_keys, pack, pick

_HOP = 2**20  # so that widths only break ties: they add up to far less


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Vertices and directed links. `tail`, `head`, `capacity`: shape (links,); `endpoints`: the GPUs'
    vertices, which pass nothing on unless `forward`."""

    vertices: int
    tail: Ints
    head: Ints
    capacity: Floats
    endpoints: Ints
    forward: bool

    def distances(self, targets: Ints) -> Floats:
        """Cost of the cheapest way from each vertex to each target, inf where there is none.

        Shape (targets, vertices). Dijkstra's algorithm from each target over the links turned round.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import dijkstra

        cost = self.costs()
        order = np.lexsort((cost, self.tail, self.head))
        head, tail = self.head[order], self.tail[order]
        first = np.ones(len(order), bool)  # of parallel links, the cheapest
        first[1:] = (head[1:] != head[:-1]) | (tail[1:] != tail[:-1])
        size = self.vertices
        if not self.forward:  # a GPU that is no target has no links in
            first &= ~np.isin(head, self.endpoints)
        base = coo_array((cost[order][first], (head[first], tail[first])), shape=(size, size)).tocsr()
        found: Floats = np.atleast_2d(dijkstra(base, indices=targets))
        if self.forward:
            return found
        for row in np.flatnonzero(np.isin(targets, self.endpoints)).tolist():
            found[row] = self._to_endpoint(int(targets[row]), cost, dijkstra, base)
        return found

    def _to_endpoint(self, target: int, cost: Floats, dijkstra: object, base: object) -> Floats:
        """Distances to a GPU: through the vertices before it."""
        last = np.flatnonzero(self.head == target)
        found = np.full(self.vertices, np.inf)
        found[target] = 0.0
        near, which = np.unique(self.tail[last], return_inverse=True)
        step = np.full(len(near), np.inf)
        np.minimum.at(step, which, cost[last])
        passing = self.forward | ~np.isin(near, self.endpoints)
        if passing.any():
            before = np.atleast_2d(dijkstra(base, indices=near[passing]))  # type: ignore[operator]
            found = np.minimum(found, (before + step[passing][:, None]).min(axis=0))
        direct = near[~passing]
        found[direct] = np.minimum(found[direct], step[~passing])
        found[target] = 0.0
        return found

    def costs(self) -> Floats:
        """Of each link; whole numbers, so that equal ways compare equal."""
        width = np.minimum(self.capacity.max(initial=1.0) / self.capacity, 2.0**10)
        return np.asarray(_HOP + np.round(width * 16), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class GraphRouter:
    """Routes over a Graph.

    `nics`: vertices of the NICs of each GPU, shape (gpus, k), -1 where it has none. `node_of`: shape
    (gpus,).
    """

    graph: Graph
    gpus: Ints
    node_of: Ints
    nics: Ints
    hashed: bool
    seed: int
    _hops: dict[int, tuple[Ints, Ints]] = field(default_factory=dict, repr=False)

    def routes(self, src: Ints, dst: Ints, channel: int) -> tuple[Ints, Ints]:
        flow = flow_keys(self.seed, src, dst, channel)
        own = self.nics[:, channel % self.nics.shape[1]]
        stops = [self.gpus[src], own[src], own[dst], self.gpus[dst]]
        inside = self.node_of[src] == self.node_of[dst]
        for i, fallback in ((1, stops[0]), (2, stops[3])):
            stops[i] = np.where(inside | (stops[1] < 0) | (stops[2] < 0), fallback, stops[i])
        pieces = [np.full(len(src), NONE, np.int64)]
        lost = np.zeros(len(src), bool)
        for a, b in itertools.pairwise(stops):
            found, missed = self._legs(a, b, flow)
            pieces += found
            lost |= missed
        for piece in pieces:
            piece[lost] = NONE
        return pack(pieces)

    def _legs(self, a: Ints, b: Ints, flow: NDArray[np.uint64]) -> tuple[list[Ints], NDArray[np.bool_]]:
        """Links of each way a -> b by hop, and which have no way."""
        here, pieces = a.copy(), []
        lost = np.zeros(len(a), bool)
        groups = [(int(t), np.flatnonzero(b == t)) for t in np.unique(b)]
        self._learn([t for t, _ in groups])
        while ((here != b) & ~lost).any():
            piece = np.full(len(a), NONE, np.int64)
            for target, members in groups:
                going = members[(here[members] != target) & ~lost[members]]
                if len(going):
                    piece[going] = self._next(target, here[going], flow[going])
            moved = piece >= 0
            lost |= (here != b) & ~moved
            here = np.where(moved, self.graph.head[piece], here)
            pieces.append(piece)
        return pieces, lost

    def _next(self, target: int, here: Ints, flow: NDArray[np.uint64]) -> Ints:
        starts, links = self._hops[target]
        count = starts[here + 1] - starts[here]
        choice = pick(flow ^ here.astype(np.uint64), 2**31) if self.hashed else np.full(len(here), target)
        index = starts[here] + choice % np.maximum(count, 1)
        return np.where(count > 0, links[np.minimum(index, len(links) - 1)], NONE)

    def _learn(self, targets: list[int]) -> None:
        """Find, for targets not met before, the links out of each vertex that lie on a cheapest way."""
        new = np.array([t for t in targets if t not in self._hops], np.int64)
        if not len(new):
            return
        graph = self.graph
        by_tail = np.argsort(graph.tail, kind="stable")
        tail, head, cost = graph.tail[by_tail], graph.head[by_tail], graph.costs()[by_tail]
        for target, distance in zip(new.tolist(), graph.distances(new), strict=True):
            ends = head == target
            onward = ends if graph.forward else ends | ~np.isin(head, graph.endpoints)
            good = onward & np.isfinite(distance[head]) & (distance[tail] == cost + distance[head])
            starts = np.zeros(graph.vertices + 1, np.int64)
            np.cumsum(np.bincount(tail[good], minlength=graph.vertices), out=starts[1:])
            links = by_tail[good]
            self._hops[target] = starts, links if len(links) else np.array([NONE])
