"""Ring: every member passes 1/n of the data at a time to the next.

All-reduce takes 2 (n - 1) steps and puts 2 (n - 1) / n of the size on every edge; reduce-scatter and
all-gather take half of both; broadcast passes all of it along. (Patarasuk and Yuan 2009, "Bandwidth
optimal all-reduce algorithms for clusters of workstations".)

As NCCL does, rings run side by side, one for each NIC of a node's members: each enters a node by its NIC,
goes around the members, and leaves by the same NIC.
"""

from __future__ import annotations

import numpy as np

from simulator.network.collectives.base import (
    Algorithm,
    Groups,
    Ints,
    Load,
    always,
    between_nodes,
    hop_latency_s,
    joined,
    local_ring,
    register,
    route_load,
)
from simulator.network.collectives.mesh_rings import rings
from simulator.network.protocols import Protocol


def share(kind: str, n: int) -> float:
    """Bytes on every edge for each byte of the size."""
    return {"all-reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(kind, (n - 1) / n)


def load(groups: Groups, kind: str) -> Load:
    """Edges inside nodes, and from each node to the next."""
    if groups.size == 1:
        return _nothing()
    weight = share(kind, groups.size)
    side_by_side = _side_by_side(groups, weight)
    if side_by_side:
        return joined(side_by_side)
    nodes = np.arange(groups.nodes)
    loads = local_ring(groups, weight)
    if groups.nodes > 1:
        loads += between_nodes(groups, (nodes, np.roll(nodes, -1)), weight)
    return joined(loads)


def _side_by_side(groups: Groups, weight: float) -> list[Load]:
    """Edges of the rings that a mesh of direct links takes side by side; empty for any other node."""
    if groups.nodes > 1 or not rings(groups):
        return []
    local = groups.fabric.local_rank
    known: dict[tuple[int, ...], list[tuple[Ints, float]]] = {}
    loads = []
    for number in range(groups.count):
        members = groups.members[number, 0]
        shape = tuple(local[members].tolist())
        if shape not in known:
            one = Groups(groups.fabric, groups.members[number : number + 1], groups.even)
            order = np.argsort(members)
            known[shape] = [
                (order[np.searchsorted(members[order], cycle)], part) for cycle, part in rings(one)
            ] or [(np.arange(len(members)), 1.0)]
        for place, part in known[shape]:
            cycle = members[place]
            group = np.full(len(cycle), number, dtype=np.int64)
            loads.append(route_load(groups, group, cycle, np.roll(cycle, -1), weight * part))
    return loads


def _nothing() -> Load:
    none = np.empty(0, dtype=np.int64)
    return none, none, np.empty(0)


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """NCCL's model: base + (steps - steps between nodes) x local + steps between nodes x remote."""
    n = groups.size
    if n == 1:
        return 0.0
    local, remote = hop_latency_s(groups, protocol, "ring")
    rounds = 2 if kind == "all-reduce" else 1
    steps, between = rounds * (n - 1), rounds * groups.nodes if groups.nodes > 1 else 0
    between = min(steps, between)
    return protocol.base_s["ring"] + (steps - between) * local + between * remote


def hbm_per_byte(kind: str, n: int) -> float:
    """Reads and writes: reducing reads two operands and writes one, passing on reads and writes."""
    part = (n - 1) / n
    return {"all-reduce": 5 * part, "reduce-scatter": 3 * part}.get(kind, 2 * part)


RING = register(
    Algorithm(
        "ring",
        ("all-reduce", "reduce-scatter", "all-gather", "broadcast"),
        load,
        latency_s,
        always,
        hbm_per_byte=hbm_per_byte,
    )
)
