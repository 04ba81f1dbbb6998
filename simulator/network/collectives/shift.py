"""Ring shift: every member sends all it has to the next and receives from the one before.

Ring attention's exchange of keys and values; nccl-tests calls it sendrecv. All of the size goes over each
edge, in one step.
"""

from __future__ import annotations

import numpy as np

from simulator.network.collectives.base import (
    Algorithm,
    Groups,
    Load,
    always,
    hop_latency_s,
    joined,
    register,
    route_load,
)
from simulator.network.protocols import Protocol


def load(groups: Groups, kind: str) -> Load:
    """The size from each member to the next, by node; over all NICs of the sender."""
    del kind
    members = groups.members.reshape(groups.count, -1)
    group = np.repeat(np.arange(groups.count), members.shape[1])
    here, there = members.ravel(), np.roll(members, -1, axis=1).ravel()
    channels = max(1, groups.fabric.nic_of.shape[1]) if groups.nodes > 1 else 1
    return joined(
        [route_load(groups, group, here, there, 1 / channels, channel) for channel in range(channels)]
    )


def latency_s(groups: Groups, kind: str, protocol: Protocol) -> float:
    """One step, as slow as the slowest edge's."""
    del kind
    return protocol.base_s["ring"] + max(hop_latency_s(groups, protocol, "ring"))


SHIFT = register(Algorithm("ring-shift", ("ring-shift",), load, latency_s, always, sms="pair"))
