"""Rail-optimised fat tree: NIC k of every node hangs on a leaf of rail k.

A scalable unit is the nodes that share a set of leafs, one for each rail. Traffic between GPUs of the
same number stays on one leaf within a unit (NVIDIA DGX SuperPOD reference architectures RA-11333
(H100) and RA-10270 (A100)). Leafs are numbered unit * rails + rail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.parameters import checked, ratio, whole
from simulator.network.families.switched import SwitchedParameters
from simulator.spec import Gpu, Topology


@family("rail-optimised")
@dataclass(frozen=True, slots=True, kw_only=True)
class RailOptimised(SwitchedParameters):
    """Parameters of a rail-optimised fat tree."""

    rails: int = whole(0, least=0, about="leafs of a scalable unit; 0: one for each NIC of a node")
    nodes_per_leaf: int = whole(0, least=0, about="nodes of a scalable unit; 0: by switch ports")
    oversubscription: float = ratio(1.0, least=1.0, about="of leafs, capacity below to above")
    core_oversubscription: float = ratio(1.0, least=1.0, about="of spines, where there is a core")
    units_per_pod: int = whole(0, least=0, about="scalable units under one set of spines; 0: by ports")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        nodes = self.nodes_of(gpus)
        rails = self.rails or self.nics
        checked(
            (
                rails > 0 and self.nics % rails == 0,
                "rails",
                f"{rails}: does not divide nics ({self.nics})",
            )
        )
        per_rail = self.nics // rails
        unit = self.nodes_per_leaf or self.ports_down(self.oversubscription) // per_rail
        checked(
            (
                unit >= 1,
                "nodes_per_leaf",
                f"a leaf of {self.switch_ports} ports has no room for a node",
            )
        )
        node, nic = np.divmod(np.arange(nodes * self.nics), self.nics)
        shape = self.tree(
            leaf_of=node // unit * rails + nic % rails,
            port_of=node % unit * per_rail + nic // rails,
            leafs=-(-nodes // unit) * rails,
            leaf_ports=unit * per_rail,
            oversubscription=self.oversubscription,
            core_oversubscription=self.core_oversubscription,
            leafs_per_pod=self.units_per_pod * rails,
            leafs_step=rails,
        )
        return self.assemble(topology, gpus, gpu, seed, shape, rails=rails)
