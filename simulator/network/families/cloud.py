"""A flat network: every NIC on one switch that never blocks, as a tenant of a cloud sees it.

Nothing is known of what lies behind, so only the NICs limit. Also the family of single machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.parameters import flag
from simulator.network.families.switched import SwitchedParameters
from simulator.spec import Gpu, Topology


@family("cloud")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud(SwitchedParameters):
    """Parameters of nodes on a flat network. The last node may be partly used."""

    rail_local: bool = flag(False, about="cross NVLink to the NIC of the receiver's number (PXN)")

    def nodes_of(self, gpus: int) -> int:
        return -(-gpus // self.gpus_per_node)

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        ports = self.nodes_of(gpus) * self.nics
        shape = self.single(np.zeros(ports, np.int64), np.arange(ports))
        return self.assemble(topology, gpus, gpu, seed, shape)
