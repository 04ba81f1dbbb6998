"""What families of nodes on a tree of switches share: sizing the tree and putting the fabric together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.errors import SpecError
from simulator.network.fabric import Fabric
from simulator.network.families.fat_tree import ECMP, FatTree, TreeShape
from simulator.network.families.node import NodeParameters
from simulator.network.families.parameters import choice, flag, quantity, whole
from simulator.network.links import Ints, LinkTableBuilder
from simulator.network.routing import NodeRouter
from simulator.spec import Gpu, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedParameters(NodeParameters):
    """Nodes whose NICs hang on leafs."""

    switch_ports: int = whole(64, least=2, about="ports of a leaf or spine switch")
    uplink_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a cable between switches; a NIC port's if not given"
    )
    switch_latency: float = quantity("s", 0.0, zero=True, about="of a switch")
    ecmp: str = choice("ideal", ECMP, about="how flows spread over equal paths")
    rail_local: bool = flag(True, about="cross NVLink to the NIC of the receiver's rail (PXN)")

    def nodes_of(self, gpus: int) -> int:
        """Nodes for that many GPUs; SpecError where the last would be partly used."""
        per_node = self.gpus_per_node
        if gpus % per_node and gpus > per_node:
            less, more = gpus // per_node * per_node, -(-gpus // per_node) * per_node
            raise SpecError.of(
                "gpus", f"{gpus}: nodes have {per_node} GPUs each; expected {less} or {more}"
            )
        return -(-gpus // per_node)

    def ports_down(self, oversubscription: float) -> int:
        """Ports of a leaf for NICs, when ports below to ports above are as the oversubscription."""
        return int(self.switch_ports * oversubscription / (1 + oversubscription))

    def tree(
        self,
        *,
        leaf_of: Ints,
        port_of: Ints,
        leafs: int,
        leaf_ports: int,
        oversubscription: float,
        core_oversubscription: float,
        leafs_per_pod: int,
        leafs_step: int = 1,
    ) -> TreeShape:
        """Size the layers above the leafs.

        Cables are whole; where a ratio wants a fraction of one, they are a little slower each, so
        that the ratio is exact. Two layers as long as a spine has a port for every leaf (or as
        `leafs_per_pod` says), three beyond. The top layer may be a chassis with more ports.
        """
        rate = self.nic_rate_bytes_per_s()
        cable = self.uplink_bandwidth or rate
        up = leaf_ports * rate / oversubscription
        uplinks = max(1, math.ceil(up / cable - 1e-9))
        if not leafs_per_pod:
            fits = leafs <= self.switch_ports
            half = max(1, self.switch_ports // 2 // leafs_step) * leafs_step
            leafs_per_pod = leafs if fits else half
        leafs_per_pod = min(leafs_per_pod, leafs)
        cored = leafs > leafs_per_pod
        room = max(1, self.switch_ports // 2 if cored else self.switch_ports)
        spines = _divisor(uplinks, math.ceil(leafs_per_pod * uplinks / room))
        below = leafs_per_pod * up / spines  # of one spine
        above = below / core_oversubscription
        core_uplinks = max(1, math.ceil(above / cable - 1e-9)) if cored else 0
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
        )

    def assemble(
        self, topology: Topology, gpus: int, gpu: Gpu, seed: int, shape: TreeShape
    ) -> Fabric:
        """Lay the nodes' and the tree's links and make the fabric."""
        node = self.node(gpu)
        nodes = self.nodes_of(gpus)
        table = LinkTableBuilder()
        inside = node.lay(table, nodes)
        tree = FatTree.lay(shape, self.ecmp, nodes, self.nics, table)
        numbers = np.arange(gpus)
        return Fabric(
            name=topology.name,
            family=topology.family,
            n_gpus=gpus,
            n_nodes=nodes,
            node_of=numbers // self.gpus_per_node,
            local_rank=numbers % self.gpus_per_node,
            host_of=numbers // (self.gpus_per_host or self.gpus_per_node),
            links=table.table(),
            router=NodeRouter(node, inside, tree, self.rail_local, seed),
            nics_per_node=self.nics,
            channels=max(1, len(np.unique(node.nics_of_gpu))),
            nic_of=node.nics_of_gpu[numbers % self.gpus_per_node],
            layers=shape.layers(),
            node=node,
            parameters=self,
        )


def _divisor(number: int, least: int) -> int:
    """The smallest divisor of `number` that is `least` or more (or `number`)."""
    return next((d for d in range(max(1, least), number) if number % d == 0), number)
