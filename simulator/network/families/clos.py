"""Three-tier Clos: racks under a leaf, pods of racks under spines, pods joined by a core.

The Llama 3 RoCE cluster is one: 16 GPUs a rack, 192 racks a pod with full bisection, 8 pods joined at
1:7 (The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.parameters import checked, flag, ratio, whole
from simulator.network.families.switched import SwitchedParameters
from simulator.spec import Gpu, Topology


@family("clos")
@dataclass(frozen=True, slots=True, kw_only=True)
class Clos(SwitchedParameters):
    """Parameters of a three-tier Clos network; a cluster within one pod has two tiers."""

    nodes_per_leaf: int = whole(2, about="nodes of a rack, under one leaf")
    leafs_per_pod: int = whole(about="racks of a pod")
    oversubscription: float = ratio(1.0, least=1.0, about="of leafs, capacity below to above")
    core_oversubscription: float = ratio(1.0, least=1.0, about="of a pod, capacity below to above")
    rail_local: bool = flag(False, about="cross NVLink to the NIC of the receiver's number (PXN)")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        checked((self.nics > 0, "nics", "0: expected 1 or more"))
        nodes = self.nodes_of(gpus)
        node, nic = np.divmod(np.arange(nodes * self.nics), self.nics)
        shape = self.tree(
            leaf_of=node // self.nodes_per_leaf,
            port_of=node % self.nodes_per_leaf * self.nics + nic,
            leafs=-(-nodes // self.nodes_per_leaf),
            leaf_ports=self.nodes_per_leaf * self.nics,
            oversubscription=self.oversubscription,
            core_oversubscription=self.core_oversubscription,
            leafs_per_pod=self.leafs_per_pod,
        )
        return self.assemble(topology, gpus, gpu, seed, shape)
