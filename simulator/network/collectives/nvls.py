"""NVLink SHARP: the NVSwitch adds up and multicasts (NVIDIA, third-generation NVSwitch, Hot Chips 2022).

Each GPU sends its data to the switch once, 1 / each of it coming back reduced, and multicasts that
share: (1 + 1 / each) of the size on each GPU's link each way, instead of a ring's 2 (n - 1) / n.
NVLS tree does this inside nodes and a double binary tree of every share between them.
"""

from __future__ import annotations

import math

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
from simulator.network.collectives.tree import edges
from simulator.network.protocols import Protocol

#: NVLink of a GPU, one direction, from which on its switch can reduce (Hopper: 450 GB/s).
_CAN_REDUCE = 390e9


def supported(groups: Groups) -> bool:
    """An NVSwitch that reduces, and all members on it."""
    fabric = groups.fabric
    if not groups.even or groups.each < 2:
        return False
    _, links = fabric.routes(groups.members[0, 0, :1], groups.members[0, 0, 1:2])
    tiers = {fabric.tiers[tier] for tier in fabric.tier[links].tolist()}
    return tiers == {"nvlink"} and float(fabric.capacity_bytes_per_s[links].min()) >= _CAN_REDUCE


def load(groups: Groups, kind: str) -> Load:
    """Each member's link, both ways."""
    return joined(local_ring(groups, _local(groups, kind)))


def _local(groups: Groups, kind: str) -> float:
    if kind == "all-reduce":
        return 1 + 1 / groups.each
    return 1.0


def tree_load(groups: Groups, kind: str) -> Load:
    """The same, and the trees between nodes."""
    loads = local_ring(groups, _local(groups, kind))
    child, parent = edges(groups.nodes)
    loads += between_nodes(groups, (child, parent), 0.5)
    loads += between_nodes(groups, (parent, child), 0.5)
    return joined(loads)


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """One step up and down; between nodes as a tree."""
    del kind
    table = protocol.hop_s.get("nvls", {"nvlink": 25e-6})
    _, remote = hop_latency_s(groups, protocol, "tree")
    depth = math.log2(groups.nodes) if groups.nodes > 1 else 0.0
    return protocol.base_s["nvls"] + table["nvlink"] + 2 * depth * remote


NVLS = register(
    Algorithm(
        "nvls",
        ("all-reduce", "reduce-scatter", "all-gather"),
        load,
        latency_s,
        lambda groups: groups.nodes == 1 and groups.each > 4 and supported(groups),
        sms="nvls",
        hbm_per_byte=lambda kind, n: 2.0,
    )
)
NVLS_TREE = register(
    Algorithm(
        "nvls-tree",
        ("all-reduce",),
        tree_load,
        latency_s,
        lambda groups: groups.nodes > 1 and groups.each > 4 and supported(groups),
        sms="nvls",
        hbm_per_byte=lambda kind, n: 2.0,
    )
)
