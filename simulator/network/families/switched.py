"""What families of nodes on a tree of switches share: sizing the tree and putting the fabric together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simulator.errors import SpecError
from simulator.network.fabric import Fabric, SwitchLayer
from simulator.network.families.fat_tree import ECMP, FatTree, TreeShape
from simulator.network.families.node import NodeParameters
from simulator.network.families.parameters import choice, flag, quantity, whole
from simulator.network.links import Ints, LinkTableBuilder
from simulator.network.routing import Network, NodeRouter
from simulator.spec import Gpu, Topology


@dataclass(frozen=True, slots=True)
class LaidNetwork:
    """A network whose links are in the table."""

    network: Network
    layers: tuple[SwitchLayer, ...]
    bisection_bytes_per_s: float


LayNetwork: TypeAlias = Callable[[LinkTableBuilder, int], LaidNetwork]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkedParameters(NodeParameters):
    """Nodes whose NICs hang on a network of switches."""

    switch_latency: float = quantity("s", 0.0, zero=True, about="of a switch")
    rail_local: bool = flag(True, about="cross NVLink to the NIC of the receiver's rail (PXN)")
    nic_cable: str = choice(
        "optical",
        ("optical", "copper"),
        about="between NIC and first switch; copper needs no optics",
    )

    def nodes_of(self, gpus: int) -> int:
        """Nodes for that many GPUs; SpecError where the last of several would be partly used."""
        per_node = self.gpus_per_node
        if gpus % per_node and gpus > per_node:
            less, more = gpus // per_node * per_node, -(-gpus // per_node) * per_node
            raise SpecError.of("gpus", f"{gpus}: nodes have {per_node} GPUs each; expected {less} or {more}")
        return -(-gpus // per_node)

    def fabric(
        self,
        topology: Topology,
        gpus: int,
        gpu: Gpu,
        seed: int,
        lay: LayNetwork,
        *,
        rails: int = 0,
    ) -> Fabric:
        """Lay the nodes' links, then the network's, and make the fabric.

        `lay(table, nodes)` adds the network's links and answers the network, its layers and its
        bisection. `rails`: NIC k of a node is on rail k mod `rails`; 0: rails mean nothing here.
        """
        node = self.node(gpu)
        nodes = self.nodes_of(gpus)
        table = LinkTableBuilder()
        inside = node.lay(table, nodes)
        laid = lay(table, nodes)
        numbers = np.arange(gpus)
        rail_local = self.rail_local and node.kind == "switch" and node.nics > 0
        router = NodeRouter(
            node, inside, laid.network, node.exits(rails or self.nics) if rail_local else None, seed
        )
        return Fabric(
            name=topology.name,
            family=topology.family,
            n_gpus=gpus,
            n_nodes=nodes,
            node_of=numbers // self.gpus_per_node,
            local_rank=numbers % self.gpus_per_node,
            host_of=numbers // (self.gpus_per_host or self.gpus_per_node),
            links=table.table(),
            router=router,
            nics_per_node=self.nics,
            channels=max(1, len(np.unique(node.nics_of_gpu))),
            nic_of=node.nics_of_gpu[numbers % self.gpus_per_node],
            layers=laid.layers,
            bisection_bytes_per_s=laid.bisection_bytes_per_s,
            node=node,
            parameters=self,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedParameters(NetworkedParameters):
    """Nodes whose NICs hang on the leafs of a tree."""

    switch_ports: int = whole(64, least=2, about="ports of a leaf or spine switch")
    uplink_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a cable between switches; a NIC port's if not given"
    )
    ecmp: str = choice("ideal", ECMP, about="how flows spread over equal paths")

    def ports_down(self, oversubscription: float) -> int:
        """Ports of a leaf for NICs, when ports below to ports above are as the oversubscription."""
        return int(self.switch_ports * oversubscription / (1 + oversubscription))

    def single(self, leaf_of: Ints, port_of: Ints) -> TreeShape:
        """One layer of leafs that nothing joins."""
        leafs = int(leaf_of.max(initial=0)) + 1
        return TreeShape(
            leaf_of=leaf_of,
            port_of=port_of,
            leafs=leafs,
            leaf_ports=-(-len(leaf_of) // leafs),
            leafs_per_pod=leafs,
            uplinks=0,
            spines_per_pod=0,
            core_uplinks=0,
            nic_bytes_per_s=self.nic_rate_bytes_per_s(),
            uplink_bytes_per_s=0.0,
            core_bytes_per_s=0.0,
            nic_latency_s=self.nic_latency_s(),
            switch_latency_s=self.switch_latency,
        )

    def tree(
        self,
        *,
        leaf_of: Ints,
        port_of: Ints,
        leafs: int,
        leaf_ports: int,
        oversubscription: float,
        core_oversubscription: float,
        leafs_per_pod: int = 0,
        leafs_step: int = 1,
    ) -> TreeShape:
        """Size the layers above the leafs.

        Cables are whole; where a ratio wants a fraction of one, they are a little slower each, so
        that the ratio is exact. Two layers as long as a spine has a port for every leaf (or as
        `leafs_per_pod` says), three beyond; pods are then multiples of `leafs_step` leafs. The top
        layer may be a chassis with more ports.
        """
        rate = self.nic_rate_bytes_per_s()
        cable = self.uplink_bandwidth or rate
        up = leaf_ports * rate / oversubscription
        uplinks = _cables(up, cable)
        if not leafs_per_pod:
            half = max(1, self.switch_ports // 2 // leafs_step) * leafs_step
            leafs_per_pod = leafs if leafs <= self.switch_ports else half
        leafs_per_pod = min(leafs_per_pod, leafs)
        cored = leafs > leafs_per_pod
        room = max(1, self.switch_ports // 2 if cored else self.switch_ports)
        spines = _divisor(uplinks, math.ceil(leafs_per_pod * uplinks / room))
        above = leafs_per_pod * up / spines / core_oversubscription  # of one spine
        core_uplinks = _cables(above, cable) if cored else 0
        return TreeShape(
            leaf_of=np.asarray(leaf_of, np.int64),
            port_of=np.asarray(port_of, np.int64),
            leafs=leafs,
            leaf_ports=leaf_ports,
            leafs_per_pod=leafs_per_pod,
            uplinks=uplinks,
            spines_per_pod=spines,
            core_uplinks=core_uplinks,
            nic_bytes_per_s=rate,
            uplink_bytes_per_s=up / uplinks,
            core_bytes_per_s=above / core_uplinks if cored else 0.0,
            nic_latency_s=self.nic_latency_s(),
            switch_latency_s=self.switch_latency,
            unit_leafs=leafs_step,
        )

    def assemble(
        self,
        topology: Topology,
        gpus: int,
        gpu: Gpu,
        seed: int,
        shape: TreeShape,
        *,
        rails: int = 0,
    ) -> Fabric:
        """The fabric of these nodes on a tree."""

        def lay(table: LinkTableBuilder, nodes: int) -> LaidNetwork:
            tree = FatTree.lay(shape, self.ecmp, nodes, self.nics, table)
            return LaidNetwork(tree, shape.layers() if self.nics else (), shape.bisection())

        return self.fabric(topology, gpus, gpu, seed, lay, rails=rails)


def _cables(capacity: float, cable: float) -> int:
    """Whole cables that carry `capacity`."""
    return max(1, math.ceil(capacity / cable - 1e-9))


def _divisor(number: int, least: int) -> int:
    """The smallest divisor of `number` that is `least` or more (or `number`)."""
    return next((d for d in range(max(1, least), number) if number % d == 0), number)
