"""Direct exchanges: all-to-all between every pair, and a send with its receive."""

from __future__ import annotations

import numpy as np

from simulator.network.collectives.base import (
    Algorithm,
    Groups,
    Load,
    always,
    between_nodes,
    hop_latency_s,
    joined,
    register,
    route_load,
)
from simulator.network.protocols import Protocol


def load(groups: Groups, kind: str) -> Load:
    """1 / n of what a member sends goes to each other one."""
    del kind
    members = groups.members.reshape(groups.count, -1)
    n = members.shape[1]
    group = np.repeat(np.arange(groups.count), n)
    loads = [
        route_load(groups, group, members.ravel(), np.roll(members, -by, axis=1).ravel(), 1 / n)
        for by in range(1, n)
    ]
    return joined(loads)


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """All pairs at once: a step, and the issue of each further message."""
    del kind
    local, remote = hop_latency_s(groups, protocol, "ring")
    return protocol.base_s["ring"] + max(local, remote) + 0.2e-6 * (groups.size - 1) * (remote > 0)


PAIRWISE = register(Algorithm("pairwise", ("all-to-all",), load, latency_s, always, sms="pair"))


def rail_load(groups: Groups, kind: str) -> Load:
    """Inside nodes to the member on the receiver's rail, then along rails (PXN)."""
    del kind
    each, nodes = groups.each, groups.nodes
    loads = []
    here = groups.members
    group = np.broadcast_to(np.arange(groups.count)[:, None, None], here.shape).ravel()
    for by in range(1, each):
        there = np.roll(here, -by, axis=2)
        loads.append(route_load(groups, group, here.ravel(), there.ravel(), 1 / each))
    index = np.arange(nodes)
    for by in range(1, nodes):
        # a member sends for all members of its node: each x 1 / n of the size to every node
        loads += between_nodes(groups, (index, np.roll(index, -by)), each / nodes)
    return joined(loads)


def rail_latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """A step inside the node and one between nodes."""
    del kind
    local, remote = hop_latency_s(groups, protocol, "ring")
    return protocol.base_s["ring"] + local + remote + 0.2e-6 * (groups.nodes - 1)


HIERARCHICAL = register(
    Algorithm(
        "hierarchical-all-to-all",
        ("all-to-all",),
        rail_load,
        rail_latency_s,
        lambda groups: groups.even and groups.nodes > 1 and groups.each > 1,
        sms="pair",
    )
)


def send_load(groups: Groups, kind: str) -> Load:
    """From the first member to the second; over all NICs of the sender."""
    del kind
    members = groups.members.reshape(groups.count, -1)
    group = np.arange(groups.count)
    if groups.nodes == 1 and groups.even:
        return joined([route_load(groups, group, members[:, 0], members[:, 1], 1.0)])
    channels = max(1, groups.fabric.nic_of.shape[1])
    loads = [
        route_load(groups, group, members[:, 0], members[:, 1], 1 / channels, channel)
        for channel in range(channels)
    ]
    return joined(loads)


def send_latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """One step."""
    del kind
    return protocol.base_s["ring"] + max(hop_latency_s(groups, protocol, "ring"))


SEND = register(Algorithm("direct", ("send-recv",), send_load, send_latency_s, always, sms="pair"))
