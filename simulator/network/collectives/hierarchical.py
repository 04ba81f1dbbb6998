"""Hierarchical: reduce-scatter inside the nodes, all-reduce of each share between them, all-gather inside.

(Jia et al. 2018, arXiv:1807.11205; Mikami et al. 2018, arXiv:1811.05233.) Every member talks across
nodes with its namesakes only, about 1 / each of the data, so traffic stays on its rail, and the ring
between nodes has nodes steps, not n.
"""

from __future__ import annotations

import numpy as np

from simulator.network.collectives.base import (
    Algorithm,
    Groups,
    Load,
    between_nodes,
    hop_latency_s,
    joined,
    local_ring,
    register,
)
from simulator.network.collectives.ring import hbm_per_byte, share
from simulator.network.protocols import Protocol


def load(groups: Groups, kind: str) -> Load:
    """Rings inside nodes, and a ring between nodes for each member's share."""
    loads = local_ring(groups, share(kind, groups.each))
    nodes = np.arange(groups.nodes)
    weight = share(kind, groups.nodes)  # the channels share it out: 1 / each of the data a member
    loads += between_nodes(groups, (nodes, np.roll(nodes, -1)), weight)
    return joined(loads)


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """Steps of the rings inside and between nodes, one after the other."""
    local, remote = hop_latency_s(groups, protocol, "ring")
    rounds = 2 if kind == "all-reduce" else 1
    steps = rounds * ((groups.each - 1) * local + (groups.nodes - 1) * remote)
    return protocol.base_s["ring"] + steps


HIERARCHICAL = register(
    Algorithm(
        "hierarchical",
        ("all-reduce", "reduce-scatter", "all-gather"),
        load,
        latency_s,
        lambda groups: groups.even and groups.nodes > 1 and groups.each > 1,
        of_nccl=False,
        hbm_per_byte=hbm_per_byte,
    )
)
