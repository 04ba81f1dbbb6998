"""Routes in fabrics of like nodes: inside a node by table, between nodes by the network's formula.

Everything works on whole arrays of pairs. A piece of a route is an array of link numbers of shape
(m, width), -1 where a pair needs fewer; pieces are set side by side and packed to CSR at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.network.links import Ints

if TYPE_CHECKING:
    from simulator.network.families.node import Node, NodeWays

NONE: Final = -1


class Network(Protocol):
    """What joins the NICs. NICs are numbered through all nodes: node * nics + NIC of the node."""

    def ways(self, src: Ints, dst: Ints, flow: NDArray[np.uint64]) -> list[Ints]:
        """Pieces of the ways between NICs, each (m,) or (m, width). `flow` is what ECMP hashes."""
        ...


def flow_keys(seed: int, src: Ints, dst: Ints, channel: int) -> NDArray[np.uint64]:
    """A number for each flow that is as good as random and depends on nothing but its arguments."""
    key = np.full(len(src), np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    for part in (src, dst, np.full(len(src), channel)):
        key = mix(key ^ part.astype(np.uint64))
    return key


def mix(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        key = key + np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return key ^ (key >> np.uint64(31))


def pick(flow: NDArray[np.uint64], among: int, round_: int = 0) -> Ints:
    """A choice of 0 to `among` - 1 for each flow; other rounds are independent of each other."""
    return np.asarray(mix(flow + np.uint64(round_)) % np.uint64(among), np.int64)


def pack(pieces: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Set pieces side by side and drop the holes: CSR (indptr, links)."""
    columns = np.concatenate([piece.reshape(len(piece), -1) for piece in pieces], axis=1)
    used = columns >= 0
    indptr = np.zeros(len(columns) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=indptr[1:])
    return indptr, columns[used]


@dataclass(frozen=True, slots=True, eq=False)
class NodeRouter:
    """Routes between GPUs of like nodes.

    A message leaves by a NIC of the sender and arrives at a NIC of the receiver. With `exits`, shape
    (gpus of a node, rails), it leaves by the sender's exit to the receiver's rail instead, crossing
    NVLink to the GPU next to that NIC (NCCL's PXN), so that it stays on one leaf.
    """

    node: Node
    inside: NodeWays
    network: Network
    exits: Ints | None
    seed: int

    def routes(self, src: Ints, dst: Ints, channel: int) -> tuple[Ints, Ints]:
        node, network = self.node, self.network
        (from_node, a), (to_node, b) = np.divmod(src, node.gpus), np.divmod(dst, node.gpus)
        here = (from_node == to_node)[:, None]
        some = here.any()
        within = []
        if some or not node.nics:
            within = [np.where(here, self.inside.between_gpus.links(from_node, a, b), NONE)]
        if here.all() or not node.nics:
            return pack(within)
        own = node.nics_of_gpu[:, channel % node.nics_of_gpu.shape[1]]
        arrives, leaves, ways = own[b], own[a], self.inside.to_nic
        if self.exits is not None:
            rails = self.exits.shape[1]
            same = leaves % rails == arrives % rails
            leaves = np.where(same, leaves, self.exits[a, arrives % rails])
            ways = self.inside.to_nic_over_nvlink
        out = ways.links(from_node, a, leaves)
        back = self.inside.from_nic.links(to_node, arrives, b)
        ports = from_node * node.nics + leaves, to_node * node.nics + arrives
        flow = flow_keys(self.seed, *ports, channel)
        between = network.ways(*ports, flow)
        pieces = [piece.reshape(len(src), -1) for piece in (out, *between, back)]
        if some:
            pieces = [np.where(here, NONE, piece) for piece in pieces]
        return pack([*within, *pieces])
