"""Dragonfly: groups of routers, all joined within a group, every two groups joined by global links.

Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008: `a`
routers a group with `h` global ports each; at most a h + 1 groups. Global ports are spread evenly
over the other groups; the cables between two groups are one link as wide as all of them. Routes are
minimal: to the router with the global link, across, and to the receiver's router.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.network.fabric import Fabric, SwitchLayer
from simulator.network.families import family
from simulator.network.families.parameters import checked, flag, quantity, whole
from simulator.network.families.switched import LaidNetwork, NetworkedParameters
from simulator.network.links import Grid, Ints, LinkTableBuilder
from simulator.network.routing import NONE
from simulator.spec import Gpu, Topology


@family("dragonfly")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dragonfly(NetworkedParameters):
    """Parameters of a dragonfly."""

    routers_per_group: int = whole(about="a: routers of a group")
    nodes_per_router: int = whole(about="nodes whose NICs hang on one router")
    global_ports: int = whole(about="h: ports of a router for cables to other groups")
    local_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="between two routers of a group; a NIC port's if not given"
    )
    global_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a cable between groups; a NIC port's if not given"
    )
    rail_local: bool = flag(False, about="cross NVLink to the NIC of the receiver's number (PXN)")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        checked((self.nics > 0, "nics", "0: expected 1 or more"))
        nodes = self.nodes_of(gpus)
        groups = -(-nodes // (self.routers_per_group * self.nodes_per_router))
        most = self.routers_per_group * self.global_ports + 1
        if groups > most:
            room = most * self.routers_per_group * self.nodes_per_router * self.gpus_per_node
            raise SpecError.of(
                "gpus",
                f"{gpus}: {most} groups (a h + 1) hold {room} GPUs at most; raise global_ports",
            )

        def lay(table: LinkTableBuilder, nodes: int) -> LaidNetwork:
            network = _Groups.lay(self, nodes, groups, table)
            return LaidNetwork(network, self._layers(groups), self._bisection(nodes, groups) or 0.0)

        return self.fabric(topology, gpus, gpu, seed, lay)

    def between_groups(self, groups: int) -> float:
        """Capacity of all cables between two groups, one direction."""
        ports = self.routers_per_group * self.global_ports
        return ports * (self.global_bandwidth or self.nic_rate_bytes_per_s()) / max(groups - 1, 1)

    def _bisection(self, nodes: int, groups: int) -> float | None:
        if groups == 1 or groups % 2:
            return None
        across = (groups // 2) ** 2 * self.between_groups(groups)
        return min(across, nodes * self.nics * self.nic_rate_bytes_per_s() / 2)

    def _layers(self, groups: int) -> tuple[SwitchLayer, ...]:
        rate = self.nic_rate_bytes_per_s()
        routers = groups * self.routers_per_group
        local = (self.routers_per_group - 1) * (self.local_bandwidth or rate)
        other = self.between_groups(groups) * (groups - 1) / self.routers_per_group
        ports = self.routers_per_group - 1 + (self.global_ports if groups > 1 else 0)
        return (
            SwitchLayer(
                "router",
                routers,
                self.nodes_per_router * self.nics,
                ports,
                rate,
                (local + other) / ports if ports else 0.0,
                peers=True,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """The network of a dragonfly, its links in the table; see `Network` in routing.py."""

    groups: int
    routers: int  # of a group
    router_of: Ints  # of each NIC, counted through all groups
    nic_up: int
    nic_down: int
    local: int
    between: int

    @classmethod
    def lay(cls, p: Dragonfly, nodes: int, groups: int, table: LinkTableBuilder) -> _Groups:
        a, rate, hop = p.routers_per_group, p.nic_rate_bytes_per_s(), p.switch_latency
        router_of = np.arange(nodes).repeat(p.nics) // p.nodes_per_router
        above = np.stack(np.divmod(router_of, a), axis=1)
        labels = tuple(f"nic{k}" for k in range(p.nics))
        starts = [
            table.add(
                Grid("node{}", nodes, labels, way, labels, (), "group{}/router{}", above),
                "nic",
                rate,
                p.nic_latency_s() + hop / 2,
            )
            for way in ("up", "down")
        ]
        pairs = [(r, s) for r in range(a) for s in range(a) if r != s]
        grid = Grid(
            "group{}",
            groups,
            tuple(f"router{r}/router{s}" for r, s in pairs),
            "",
            tuple(f"router{r}" for r, _ in pairs),
            tuple(f"router{s}" for _, s in pairs),
        )
        starts.append(table.add(grid, "local", p.local_bandwidth or rate, hop))
        offsets = np.arange(1, groups)
        exits = _exit(offsets, groups, a).tolist()
        there = (np.arange(groups)[:, None] + offsets) % groups
        entries = np.broadcast_to(_exit(groups - offsets, groups, a), there.shape)
        grid = Grid(
            "group{}",
            groups,
            tuple(f"router{r}/global{k}" for r, k in zip(exits, offsets.tolist(), strict=True)),
            "",
            tuple(f"router{r}" for r in exits),
            (),
            "group{}/router{}",
            np.stack([there.ravel(), entries.ravel()], axis=1),
        )
        starts.append(table.add(grid, "global", p.between_groups(groups), hop))
        return cls(groups, a, router_of, *starts)

    def ways(self, src: Ints, dst: Ints, flow: NDArray[np.uint64]) -> list[Ints]:
        from_group, from_router = np.divmod(self.router_of[src], self.routers)
        to_group, to_router = np.divmod(self.router_of[dst], self.routers)
        offset = (to_group - from_group) % self.groups
        away = offset > 0
        leave = np.where(away, _exit(offset, self.groups, self.routers), to_router)
        enter = np.where(away, _exit(self.groups - offset, self.groups, self.routers), to_router)
        between = self.between + from_group * (self.groups - 1) + offset - 1
        return [
            self.nic_up + src,
            self._local(from_group, from_router, leave),
            np.where(away, between, NONE),
            self._local(to_group, enter, to_router),
            self.nic_down + dst,
        ]

    def _local(self, group: Ints, a: Ints, b: Ints) -> Ints:
        others = self.routers - 1
        number = self.local + (group * self.routers + a) * others + b - (b > a)
        return np.where(a != b, number, NONE)


def _exit(offset: Ints, groups: int, routers: int) -> Ints:
    """The router of a group with the link to the group `offset` further on."""
    return np.asarray((offset - 1) % max(groups - 1, 1) * routers // max(groups - 1, 1), np.int64)
