"""Double binary tree (Sanders, Speck and Traff 2009; NVIDIA, "Massively scale your deep learning
training with NCCL 2.4").

Nodes form two trees in which an inner node of one is a leaf of the other; each tree carries half of the
data up (reducing) and down again. Inside a node data goes along a chain. Steps grow with log2(nodes).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from simulator.network.collectives.base import (
    Algorithm,
    Groups,
    Ints,
    Load,
    between_nodes,
    hop_latency_s,
    joined,
    local_ring,
    register,
)
from simulator.network.protocols import Protocol


@lru_cache(maxsize=256)
def parents(nodes: int) -> tuple[int, ...]:
    """Parent of each node in the first tree; -1 for the root, node 0.

    A node's children differ from it in a lower bit, so leaves are the odd ones.

    >>> parents(6)
    (-1, 2, 4, 2, 0, 4)
    """
    found = [-1]
    for node in range(1, nodes):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        found.append(up if up < nodes else node ^ bit)
    return tuple(found)


def edges(nodes: int) -> tuple[Ints, Ints]:
    """(child, parent) of both trees, the second mirrored (even) or shifted by one (odd)."""
    first = parents(nodes)
    pairs = [(child, parent) for child, parent in enumerate(first) if parent >= 0]
    for child, parent in list(pairs):
        if nodes % 2:
            pairs.append(((child + 1) % nodes, (parent + 1) % nodes))
        else:
            pairs.append((nodes - 1 - child, nodes - 1 - parent))
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def load(groups: Groups, kind: str) -> Load:
    """Half of the data on every edge of each tree, up and down; all of it along the chains."""
    del kind
    chain = (groups.each - 1) / groups.each if groups.each > 1 else 0.0
    loads = local_ring(groups, chain, both=True)
    if groups.nodes > 1:
        child, parent = edges(groups.nodes)
        loads += between_nodes(groups, (child, parent), 0.5)
        loads += between_nodes(groups, (parent, child), 0.5)
    return joined(loads)


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """NCCL's model: base + 2 x (members - 1) x local + 2 x log2(nodes) x remote."""
    del kind
    local, remote = hop_latency_s(groups, protocol, "tree")
    depth = math.log2(groups.nodes) if groups.nodes > 1 else 0.0
    return protocol.base_s["tree"] + 2 * ((groups.each - 1) * local + depth * remote)


TREE = register(
    Algorithm(
        "tree",
        ("all-reduce",),
        load,
        latency_s,
        lambda groups: groups.even and groups.nodes > 1,
        hbm_per_byte=lambda kind, n: 5.0,
    )
)
