"""The fabric of a cluster: directed links with capacities, and the routes between GPUs.

Engines see arrays: links are numbers, and a route is a run of them. People see names
(`node3/nic0/up`, `leaf2/spine/down`). Capacities are physical, one direction of a link each; protocol
efficiencies belong to the collectives, faults are factors that the engines apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.network.links import Floats, Ints, LinkTable
from simulator.spec import Gpu, Topology

if TYPE_CHECKING:
    from simulator.network.families.node import Node


class Router(Protocol):
    """Finds ways. `src`, `dst`: GPU numbers, shape (m,). Answers CSR: (indptr (m + 1,), links)."""

    def routes(self, src: Ints, dst: Ints, channel: int) -> tuple[Ints, Ints]: ...


@dataclass(frozen=True, slots=True)
class SwitchLayer:
    """A layer of switches, for people: counts, ports in use on each switch, and their rate.

    `down_bytes_per_s` and `up_bytes_per_s` are of the whole layer, as designed (all ports cabled).
    """

    name: str
    switches: int
    down_ports: float  # of one switch
    up_ports: float
    down_port_bytes_per_s: float
    up_port_bytes_per_s: float
    peers: bool = False  # the ports above lead to switches of the same layer

    @property
    def down_bytes_per_s(self) -> float:
        return self.switches * self.down_ports * self.down_port_bytes_per_s

    @property
    def up_bytes_per_s(self) -> float:
        return self.switches * self.up_ports * self.up_port_bytes_per_s

    @property
    def oversubscription(self) -> float | None:
        """Capacity below over capacity above; None for the top layer."""
        return self.down_bytes_per_s / self.up_bytes_per_s if self.up_bytes_per_s else None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Fabric:
    """GPUs, directed links and routes.

    `node_of`, `local_rank`: shape (n_gpus,); a node is what shares NVLink and host memory for a
    collective (a whole NVL72 domain). `host_of`: the machine with its own operating system, the same
    as the node but for domains of several trays. `channels`: NICs of a node that a collective can use
    side by side (parallel rings); `nic_of`: shape (n_gpus, k), the NICs (numbered within the node)
    that belong to each GPU, taken in turn by channel; -1 where there is none.
    """

    name: str
    family: str
    n_gpus: int
    n_nodes: int
    node_of: Ints
    local_rank: Ints
    host_of: Ints
    links: LinkTable
    router: Router
    nics_per_node: int
    channels: int
    nic_of: Ints
    layers: tuple[SwitchLayer, ...] = ()
    bisection_bytes_per_s: float | None = None  # one direction, closed form; None: by search
    shape: tuple[int, ...] = ()  # of a torus
    node: Node | None = None  # what every node looks like inside; None where they are listed
    gpu_names: tuple[str, ...] = ()  # as listed; empty where they follow from node and place
    parameters: Any = None  # the family's own, resolved

    @property
    def n_links(self) -> int:
        return len(self.links.tier)

    @property
    def capacity_bytes_per_s(self) -> Floats:
        """Of each directed link, shape (n_links,)."""
        return self.links.capacity_bytes_per_s

    @property
    def latency_s(self) -> Floats:
        """Of each directed link, shape (n_links,)."""
        return self.links.latency_s

    @property
    def tier(self) -> NDArray[np.int8]:
        """Index into `tiers` for each directed link, shape (n_links,)."""
        return self.links.tier

    @property
    def tiers(self) -> tuple[str, ...]:
        return self.links.tiers

    def link_name(self, link: int) -> str:
        return self.links.name(link)

    def find_links(self, pattern: str) -> Ints:
        """Links whose name matches a glob: "node3/nic0", "node*/nic0/up", "leaf2/*", "spine*".

        A link is found from either end (`node3/nic0/up` also as `leaf2/node3/nic0/up`), so the name
        of a switch means all its links. Empty if nothing has such a name.
        """
        return self.links.find(pattern)

    def routes(
        self, src: Iterable[int] | Ints, dst: Iterable[int] | Ints, channel: int = 0
    ) -> tuple[Ints, Ints]:
        """Directed links on the way of each pair, in order, as CSR (indptr (m + 1,), links).

        A GPU to itself needs none. `channel` picks among the NICs of a GPU that has several, and
        keys the hash of ECMP. Raises SpecError for GPUs that do not exist.
        """
        source, target = self._checked(src, "src"), self._checked(dst, "dst")
        if len(source) != len(target):
            raise SpecError.of("dst", f"{len(target)} GPUs: expected as many as in src ({len(source)})")
        return self.router.routes(source, target, channel)

    def _checked(self, gpus: Iterable[int] | Ints, path: str) -> Ints:
        array = np.atleast_1d(np.asarray(gpus if isinstance(gpus, np.ndarray) else list(gpus), np.int64))
        if array.size and (array.min() < 0 or array.max() >= self.n_gpus):
            wrong = int(array.min() if array.min() < 0 else array.max())
            raise SpecError.of(path, f"GPU {wrong}: expected 0 to {self.n_gpus - 1}")
        return array

    def gpu_name(self, gpu: int) -> str:
        """The vertex of a GPU in `to_networkx()`."""
        if self.gpu_names:
            return self.gpu_names[gpu]
        return f"node{self.node_of[gpu]}/gpu{self.local_rank[gpu]}"

    def to_networkx(self) -> Any:
        """A networkx.MultiDiGraph: an edge for each directed link, its number as key."""
        import networkx as nx

        graph: Any = nx.MultiDiGraph()
        for gpu in range(self.n_gpus):
            graph.add_node(self.gpu_name(gpu), gpu=gpu)
        for link in range(self.n_links):
            tail, head = self.links.ends(link)
            graph.add_edge(
                tail,
                head,
                key=link,
                name=self.link_name(link),
                tier=self.tiers[self.tier[link]],
                capacity_bytes_per_s=float(self.capacity_bytes_per_s[link]),
                latency_s=float(self.latency_s[link]),
            )
        return graph

    def validate(self) -> None:
        """Raise SpecError unless every GPU reaches every other.

        Tiered fabrics are alike from node to node, so a ring over all GPUs and the pairs of the first
        nodes, tried by routing, tell.
        """
        if self.n_gpus < 2:
            return
        ring = np.arange(self.n_gpus)
        near = np.arange(min(self.n_gpus, 2 * int(np.bincount(self.node_of).max())))
        src = np.concatenate([ring, np.repeat(near, len(near))])
        dst = np.concatenate([np.roll(ring, -1), np.tile(near, len(near))])
        indptr, _ = self.routes(src, dst)
        lost = np.flatnonzero((np.diff(indptr) == 0) & (src != dst))
        if len(lost):
            a, b = (self.gpu_name(int(pair[lost[0]])) for pair in (src, dst))
            raise SpecError.of("", f"the fabric is not connected: no way from {a} to {b}")


def build(topology: Topology, gpus: int, gpu: Gpu, *, seed: int = 0) -> Fabric:
    """The fabric of `gpus` GPUs on a topology. `seed` decides hash collisions under `ecmp: hashed`.

    Raises SpecError for an unknown family, for parameters that cannot be (all findings at once, with
    paths below the topology), for a number of GPUs that the family cannot place, and for a fabric
    that is not connected.
    """
    from simulator.network.families import family_of

    if isinstance(gpus, bool) or gpus < 1:
        raise SpecError.of("gpus", f"{gpus}: expected 1 or more")
    parameters = family_of(topology.family).resolve(topology.parameters)
    fabric: Fabric = parameters.build(topology, gpus, gpu, seed)
    fabric.validate()
    return fabric
