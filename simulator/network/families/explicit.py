"""A fabric listed vertex by vertex and edge by edge.

    nodes:
      - {name: "host{0..3}/gpu{0..1}", kind: gpu}
      - {name: "host{0..3}/nic0", kind: nic}
      - {name: switch0, kind: switch}
    edges:
      - {from: "host{0..3}/gpu{0..1}", to: "host{0..3}/nic0", bandwidth: 64 GB/s}
      - {from: "host{0..3}/nic0", to: switch0, bandwidth: 400 Gb/s, latency: 600 ns}

`{a..b}` stands for each number; the same text in `from` and `to` counts in step. GPUs are numbered in
the order of the list; what stands before the last slash of a name is the node, unless `node` says
otherwise. An edge is two directed links (one with `one_way`), `count` of them side by side.

With `repeatable: true` the list is one node; a cluster is copies of it, with every NIC on one switch
that never blocks (its `bandwidth` says how fast).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.errors import SpecError
from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.listing import Edge, Listing, Vertex, read_listing
from simulator.network.families.parameters import Family, choice, flag, quantity, raw
from simulator.network.links import Ints, LinkTable, LinkTableBuilder, Listed
from simulator.network.routing_graph import Graph, GraphRouter
from simulator.spec import Gpu, Topology

_NETWORK = "network"


@family("explicit")
@dataclass(frozen=True, slots=True, kw_only=True)
class Explicit(Family):
    """Parameters of an explicit fabric."""

    nodes: Any = raw(about="list of {name, kind, node, nic, bandwidth}")
    edges: Any = raw(about="list of {from, to, bandwidth, latency, count, one_way, tier}")
    ecmp: str = choice("static", ("static", "hashed"), about="how flows choose among equal paths")
    gpus_forward: bool = flag(False, about="GPUs pass on the traffic of others")
    repeatable: bool = flag(False, about="the list is one node, to be copied")
    network_latency: float = quantity("s", 0.0, zero=True, about="of the switch that joins copies")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        listing = read_listing(self.nodes, self.edges)
        listed = sum(vertex.kind == "gpu" for vertex in listing.vertices)
        if self.repeatable and gpus > listed:
            if gpus % listed:
                raise SpecError.of("gpus", f"{gpus}: expected a multiple of the node's {listed}")
            listing = _copies(listing, gpus // listed, self.network_latency)
        elif gpus > listed:
            raise SpecError.of("gpus", f"{gpus}: the list has {listed} GPUs")
        return _Made(self, topology, listing, gpus, seed).fabric()


def _copies(listing: Listing, count: int, latency_s: float) -> Listing:
    """`count` copies of a node, their NICs on one switch."""
    nics = [v for v in listing.vertices if v.kind == "nic"]
    lacking = [v.name for v in nics if not v.bandwidth_bytes_per_s]
    if not nics or lacking:
        what = f"NIC {', '.join(lacking)} has no bandwidth" if lacking else "the node has no NIC"
        raise SpecError.of("nodes", f"{what}: copies of the node cannot be joined")
    vertices = [Vertex(_NETWORK, "switch")]
    edges = []
    for i in range(count):
        at = f"node{i}"
        vertices += [v.under(at) for v in listing.vertices]
        edges += [e.under(at) for e in listing.edges]
        edges += [Edge(f"{at}/{v.name}", _NETWORK, v.bandwidth_bytes_per_s, latency_s, "nic") for v in nics]
    return Listing(tuple(vertices), tuple(edges))


class _Made:
    """Turns a listing into arrays."""

    def __init__(self, p: Explicit, topology: Topology, listing: Listing, gpus: int, seed: int):
        self.p, self.topology, self.seed = p, topology, seed
        self.vertices = listing.vertices
        self.number = {vertex.name: i for i, vertex in enumerate(listing.vertices)}
        self.gpus = np.array([i for i, v in enumerate(self.vertices) if v.kind == "gpu"][:gpus])
        every = [v.node for v in self.vertices if v.kind in ("gpu", "nic")]
        self.nodes = {name: i for i, name in enumerate(dict.fromkeys(every))}
        self.links = [link for edge in listing.edges for link in edge.links()]
        self.graph = Graph(
            len(self.vertices),
            np.array([self.number[link.tail] for link in self.links], np.int64),
            np.array([self.number[link.head] for link in self.links], np.int64),
            np.array([link.bandwidth_bytes_per_s for link in self.links], np.float64),
            np.array([i for i, v in enumerate(self.vertices) if v.kind == "gpu"], np.int64),
            p.gpus_forward,
        )

    def fabric(self) -> Fabric:
        names = [self.vertices[i].node for i in self.gpus]
        nodes = {name: i for i, name in enumerate(dict.fromkeys(names))}
        node_of = np.array([nodes[name] for name in names], np.int64)
        local = np.array([names[:i].count(name) for i, name in enumerate(names)], np.int64)
        nics = [i for i, v in enumerate(self.vertices) if v.kind == "nic"]
        within = {i: _place([n for n in nics if self._node(n) == self._node(i)], i) for i in nics}
        nic_vertices = self._nics_of_gpus(nics)
        numbers = np.array([[within.get(int(n), -1) for n in row] for row in nic_vertices], np.int64)
        per_node = max(within.values(), default=-1) + 1
        return Fabric(
            name=self.topology.name,
            family=self.topology.family,
            n_gpus=len(self.gpus),
            n_nodes=len(nodes),
            node_of=node_of,
            local_rank=local,
            host_of=node_of,
            links=self._table(),
            router=GraphRouter(
                self.graph, self.gpus, node_of, nic_vertices, self.p.ecmp == "hashed", self.seed
            ),
            nics_per_node=per_node,
            channels=max(1, len(np.unique(numbers[numbers >= 0]))),
            nic_of=numbers,
            gpu_names=tuple(self.vertices[i].name for i in self.gpus.tolist()),
            parameters=self.p,
        )

    def _node(self, vertex: int) -> str:
        return self.vertices[vertex].node

    def _nics_of_gpus(self, nics: list[int]) -> Ints:
        """NIC vertices of each GPU: those it names, else its turn among its node's; -1 for none."""
        rows = []
        for place, gpu in enumerate(self.gpus.tolist()):
            named = [self.number[name] for name in self.vertices[gpu].nics]
            mine = [nic for nic in nics if self._node(nic) == self._node(gpu)]
            if not named and mine:
                before = [g for g in self.gpus[:place].tolist() if self._node(g) == self._node(gpu)]
                named = [mine[len(before) % len(mine)]]
            rows.append(named or [-1])
        width = max(len(row) for row in rows)
        return np.array([[row[i % len(row)] for i in range(width)] for row in rows], np.int64)

    def _table(self) -> LinkTable:
        table = LinkTableBuilder()
        for link in self.links:
            listed = Listed((link.name,), ((link.tail, link.head),))
            table.add(listed, link.tier, link.bandwidth_bytes_per_s, link.latency_s)
        return table.table()


def _place(members: list[int], one: int) -> int:
    return members.index(one)
