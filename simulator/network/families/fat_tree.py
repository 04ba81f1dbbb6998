"""Leafs, spines and cores: the network that rail-optimised, leaf-spine and Clos families share.

A leaf's uplink u goes to spine u mod S of its pod; a spine's uplink v goes to core v of the plane of
that spine's number, so that all pods meet there. How flows spread over uplinks (`ecmp`):

- `ideal`: perfectly, as packet spraying or adaptive routing come close to. A leaf's uplinks are then
  one link as wide as all of them, and a pod's one link to the core.
- `static`: by destination, as InfiniBand's forwarding tables do (d-mod-k, Zahavi 2012). Cables are
  single links; permutations that shift all nodes meet no collision.
- `hashed`: each flow on cables drawn from the seed, as Ethernet's ECMP does; flows collide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.network.fabric import SwitchLayer
from simulator.network.links import Grid, Ints, LinkTableBuilder
from simulator.network.routing import NONE, pick

ECMP: Final = ("ideal", "static", "hashed")


@dataclass(frozen=True, slots=True, eq=False)
class TreeShape:
    """Counts and rates of a tree of switches.

    `leaf_of`, `port_of`: leaf and port there of each NIC, shape (nics,). `uplinks`: cables of a leaf;
    0 for leafs that nothing joins. `core_uplinks`: cables of a spine; 0 without a core.
    """

    leaf_of: Ints
    port_of: Ints
    leafs: int
    leaf_ports: int  # for NICs, by design
    leafs_per_pod: int
    uplinks: int
    spines_per_pod: int
    core_uplinks: int
    nic_bytes_per_s: float
    uplink_bytes_per_s: float
    core_bytes_per_s: float
    nic_latency_s: float
    switch_latency_s: float
    unit_leafs: int = 1  # leafs that share all their nodes

    @property
    def pods(self) -> int:
        return -(-self.leafs // self.leafs_per_pod)

    def bisection(self) -> float:
        """Bytes a second, one direction, between two halves of the nodes: half the narrowest layer.

        Exact where the halves are whole leafs (whole pods); less than the true cut where a leaf or a
        pod is itself cut in two.
        """
        layers = [len(self.leaf_of) * self.nic_bytes_per_s]
        if self.leafs > self.unit_leafs:
            layers.append(self.leafs * self.uplinks * self.uplink_bytes_per_s)
        if self.pods > 1:
            spines = self.pods * self.spines_per_pod
            layers.append(spines * self.core_uplinks * self.core_bytes_per_s)
        return min(layers) / 2

    def layers(self) -> tuple[SwitchLayer, ...]:
        """The layers of switches from the bottom, as designed."""
        leaf = SwitchLayer(
            "leaf",
            self.leafs,
            self.leaf_ports,
            self.uplinks,
            self.nic_bytes_per_s,
            self.uplink_bytes_per_s,
        )
        if not self.uplinks:
            return (leaf,)
        per_pod = min(self.leafs_per_pod, self.leafs)
        spine = SwitchLayer(
            "spine",
            self.pods * self.spines_per_pod,
            per_pod * self.uplinks / self.spines_per_pod,
            self.core_uplinks,
            self.uplink_bytes_per_s,
            self.core_bytes_per_s,
        )
        if not self.core_uplinks:
            return leaf, spine
        cores = self.spines_per_pod * self.core_uplinks
        return leaf, spine, SwitchLayer("core", cores, self.pods, 0, self.core_bytes_per_s, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class FatTree:
    """The network of a TreeShape, its links in a table; see `Network` in routing.py."""

    shape: TreeShape
    ecmp: str
    nic_up: int  # number of the first link of each run; links of a run follow NIC, leaf or spine
    nic_down: int
    leaf_up: int
    leaf_down: int
    spine_up: int
    spine_down: int

    @classmethod
    def lay(cls, shape: TreeShape, ecmp: str, nodes: int, nics: int, table: LinkTableBuilder) -> FatTree:
        """Put the links from the NICs upwards into the table."""
        labels = tuple(f"nic{k}" for k in range(nics))
        at_nic = [
            Grid("node{}", nodes, labels, direction, labels, (), "leaf{}", shape.leaf_of)
            for direction in ("up", "down")
        ]
        latency = shape.nic_latency_s + shape.switch_latency_s / 2
        starts = [table.add(grid, "nic", shape.nic_bytes_per_s, latency) for grid in at_nic]
        whole = ecmp == "ideal"
        leaf = _bundles_of_leafs(shape) if whole else _cables_of_leafs(shape)
        width = shape.uplinks if whole else 1
        starts += [
            table.add(grid, "leaf", width * shape.uplink_bytes_per_s, shape.switch_latency_s) for grid in leaf
        ]
        spine = _bundles_of_pods(shape) if whole else _cables_of_spines(shape)
        width = shape.spines_per_pod * shape.core_uplinks if whole else 1
        starts += [
            table.add(grid, "spine", width * shape.core_bytes_per_s, shape.switch_latency_s) for grid in spine
        ]
        return cls(shape, ecmp, *starts)

    def ways(self, src: Ints, dst: Ints, flow: NDArray[np.uint64]) -> list[Ints]:
        s = self.shape
        up, down = self.nic_up + src, self.nic_down + dst
        if not s.uplinks:
            joined = s.leaf_of[src] == s.leaf_of[dst]
            return [np.where(joined, up, NONE), np.where(joined, down, NONE)]
        leafs = s.leaf_of[src], s.leaf_of[dst]
        pods = leafs[0] // s.leafs_per_pod, leafs[1] // s.leafs_per_pod
        climbs, crosses = leafs[0] != leafs[1], pods[0] != pods[1]
        if self.ecmp == "ideal":
            middle = (
                self.leaf_up + leafs[0],
                self.spine_up + pods[0],
                self.spine_down + pods[1],
                self.leaf_down + leafs[1],
            )
        else:
            choose = self._by_destination if self.ecmp == "static" else self._by_hash
            middle = self._cables(leafs, pods, *choose(dst, flow))
        conditions = (climbs, crosses, crosses, climbs)
        return [
            up,
            *(np.where(c, m, NONE) for c, m in zip(conditions, middle, strict=True)),
            down,
        ]

    def _by_destination(self, dst: Ints, flow: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
        s = self.shape
        cable = s.port_of[dst] % s.uplinks
        core = (s.leaf_of[dst] + s.port_of[dst] // s.uplinks) % max(s.core_uplinks, 1)
        return cable, core, cable

    def _by_hash(self, dst: Ints, flow: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
        s = self.shape
        cable = pick(flow, s.uplinks, 1)
        spine = cable % s.spines_per_pod
        parallel = pick(flow, s.uplinks // s.spines_per_pod, 3)
        core = pick(flow, max(s.core_uplinks, 1), 2)
        return cable, core, spine + s.spines_per_pod * parallel

    def _cables(
        self, leafs: tuple[Ints, Ints], pods: tuple[Ints, Ints], cable: Ints, core: Ints, last: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        s = self.shape
        spine = cable % s.spines_per_pod
        at_core = [(pod * s.spines_per_pod + spine) * s.core_uplinks + core for pod in pods]
        return (
            self.leaf_up + leafs[0] * s.uplinks + cable,
            self.spine_up + at_core[0],
            self.spine_down + at_core[1],
            self.leaf_down + leafs[1] * s.uplinks + last,
        )


def _both(owner: str, owners: int, labels: tuple[str, ...], upper_format: str, upper: Ints) -> list[Grid]:
    lower = ("",) * len(labels)
    return [
        Grid(owner, owners, labels, direction, lower, (), upper_format, upper) for direction in ("up", "down")
    ]


def _bundles_of_leafs(s: TreeShape) -> list[Grid]:
    pod = np.arange(s.leafs) // s.leafs_per_pod
    upper = "pod{}/spine" if s.core_uplinks else "spine"
    return _both("leaf{}", s.leafs if s.uplinks else 0, ("spine",), upper, pod)


def _cables_of_leafs(s: TreeShape) -> list[Grid]:
    labels = tuple(f"cable{u}" for u in range(s.uplinks))
    pod = np.arange(s.leafs) // s.leafs_per_pod
    spine = pod[:, None] * s.spines_per_pod + np.arange(s.uplinks) % max(s.spines_per_pod, 1)
    return _both("leaf{}", s.leafs, labels, "spine{}", spine.ravel())


def _bundles_of_pods(s: TreeShape) -> list[Grid]:
    pods = s.pods if s.core_uplinks else 0
    grids = _both("pod{}", pods, ("spine",), "core", np.zeros(pods, np.int64))
    return [
        Grid(g.owner, g.owners, g.labels, g.direction, ("spine",), (), "core", g.upper_number) for g in grids
    ]


def _cables_of_spines(s: TreeShape) -> list[Grid]:
    spines = s.pods * s.spines_per_pod
    labels = tuple(f"cable{v}" for v in range(s.core_uplinks))
    plane = np.arange(spines) % max(s.spines_per_pod, 1)
    core = plane[:, None] * s.core_uplinks + np.arange(s.core_uplinks)
    return _both("spine{}", spines, labels, "core{}", core.ravel())
