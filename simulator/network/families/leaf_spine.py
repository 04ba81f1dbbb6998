"""Leaf-spine: all NICs of a node on one leaf, leafs joined by spines, oversubscribed or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.parameters import checked, flag, ratio, whole
from simulator.network.families.switched import SwitchedParameters
from simulator.spec import Gpu, Topology


@family("leaf-spine")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpine(SwitchedParameters):
    """Parameters of a leaf-spine network; a third layer is added when spines run out of ports."""

    nodes_per_leaf: int = whole(0, least=0, about="nodes on a leaf; 0: by switch ports")
    oversubscription: float = ratio(1.0, least=1.0, about="of leafs, capacity below to above")
    core_oversubscription: float = ratio(1.0, least=1.0, about="of spines, where there is a core")
    rail_local: bool = flag(False, about="cross NVLink to the NIC of the receiver's number (PXN)")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        checked((self.nics > 0, "nics", "0: expected 1 or more"))
        nodes = self.nodes_of(gpus)
        on_leaf = self.nodes_per_leaf or self.ports_down(self.oversubscription) // self.nics
        checked(
            (
                on_leaf >= 1,
                "switch_ports",
                f"{self.switch_ports}: too few for a node of {self.nics} NICs; give nodes_per_leaf",
            )
        )
        node, nic = np.divmod(np.arange(nodes * self.nics), self.nics)
        shape = self.tree(
            leaf_of=node // on_leaf,
            port_of=node % on_leaf * self.nics + nic,
            leafs=-(-nodes // on_leaf),
            leaf_ports=on_leaf * self.nics,
            oversubscription=self.oversubscription,
            core_oversubscription=self.core_oversubscription,
        )
        return self.assemble(topology, gpus, gpu, seed, shape)
