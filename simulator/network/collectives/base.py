"""What an algorithm is, and the shape of groups on a fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.network.fabric import Fabric
from simulator.network.protocols import Protocol

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: (index of the group, link, bytes on it for each byte of the collective's size)
Load: TypeAlias = tuple[Ints, Ints, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of n GPUs each, members sorted by node.

    `members`: shape (groups, nodes, each): `nodes` nodes with `each` members, or, where groups are not
    spread evenly, (groups, 1, n) with `even` False.
    """

    fabric: Fabric
    members: Ints
    even: bool

    @property
    def count(self) -> int:
        return int(self.members.shape[0])

    @property
    def nodes(self) -> int:
        return int(self.members.shape[1])

    @property
    def each(self) -> int:
        return int(self.members.shape[2])

    @property
    def size(self) -> int:
        return self.nodes * self.each

    @property
    def channels(self) -> int:
        """Rings between nodes side by side: one for each NIC of the members of a node."""
        return self.each * max(1, int(self.fabric.nic_of.shape[1]))


def make_groups(fabric: Fabric, gpus: Ints) -> Groups:
    """Sort the members of each group by node and place in it, whatever order they were named in.

    `gpus`: shape (groups, n).
    """
    node = fabric.node_of[gpus]
    place = node * (int(fabric.local_rank.max()) + 1) + fabric.local_rank[gpus]
    order = np.argsort(place, axis=1, kind="stable")
    ordered = np.take_along_axis(gpus, order, axis=1)
    node = np.take_along_axis(node, order, axis=1)
    starts = np.concatenate([np.ones((len(node), 1), dtype=bool), np.diff(node, axis=1) != 0], axis=1)
    nodes = int(starts[0].sum())
    n = gpus.shape[1]
    if n % nodes == 0:
        each = n // nodes
        blocks = node.reshape(len(node), nodes, each)
        same = (blocks == blocks[:, :, :1]).all() and (np.diff(blocks[:, :, 0], axis=1) != 0).all()
        if same:
            return Groups(fabric, ordered.reshape(len(node), nodes, each), even=True)
    return Groups(fabric, ordered[:, None, :], even=False)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`load`: bytes on links; `latency_s`: of all steps, from (groups, kind, protocol); `kinds` it can do.

    `of_nccl`: NCCL would choose it by itself; else it is taken only when asked for.
    """

    name: str
    kinds: tuple[str, ...]
    load: Callable[[Groups, str], Load]
    latency_s: Callable[[Groups, str, Protocol], float]
    works: Callable[[Groups], bool]
    of_nccl: bool = True
    sms: str = "node"
    hbm_per_byte: Callable[[str, int], float] = lambda kind, n: 2.0


_ALGORITHMS: Final[dict[str, Algorithm]] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Make an algorithm known by its name."""
    _ALGORITHMS[algorithm.name] = algorithm
    return algorithm


@cache
def algorithms() -> Mapping[str, Algorithm]:
    """All algorithms by name."""
    import simulator.network.collectives as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _ALGORITHMS


# ------------------------------------------------------------------------------------- shared pieces


def always(groups: Groups) -> bool:
    """Works for any group."""
    del groups
    return True


#: Places a (group, link) that counting may look at; sorting costs about as much as ten.
_DENSE: Final = 8


def route_load(groups: Groups, group: Ints, src: Ints, dst: Ints, weight: float, channel: int = 0) -> Load:
    """Load of `weight` bytes per byte from each src to its dst."""
    keep = src != dst
    indptr, links = groups.fabric.routes(src[keep], dst[keep], channel)
    owner = np.repeat(group[keep], np.diff(indptr))
    return owner, links, np.full(len(links), weight)


def joined(loads: list[Load]) -> Load:
    """One load after the other; a (group, link) may stand several times, and its bytes add up."""
    none = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([none, *(load[0] for load in loads)]),
        np.concatenate([none, *(load[1] for load in loads)]),
        np.concatenate([np.empty(0), *(load[2] for load in loads)]),
    )


def merged(groups: Groups, load: Load) -> Load:
    """Each (group, link) once, in order."""
    group, link, weight = load
    if groups.count == 1:
        total = np.bincount(link, weights=weight)
        only: Ints = np.flatnonzero(total).astype(np.int64, copy=False)
        return np.zeros_like(only), only, np.asarray(total[only], np.float64)
    key = group * groups.fabric.n_links + link
    if groups.count * groups.fabric.n_links <= _DENSE * len(key):  # counting is faster than sorting
        unique = np.flatnonzero(np.bincount(key))
        total = np.bincount(key, weights=weight)[unique]
    else:
        unique, index = np.unique(key, return_inverse=True)
        total = np.bincount(index, weights=weight, minlength=len(unique))
    return unique // groups.fabric.n_links, unique % groups.fabric.n_links, np.asarray(total, np.float64)


def local_ring(groups: Groups, weight: float, *, both: bool = False) -> list[Load]:
    """`weight` bytes per byte over each edge of the rings inside nodes."""
    if groups.each == 1:
        return []
    here = groups.members
    there = np.roll(here, -1, axis=2)
    group = np.broadcast_to(np.arange(groups.count)[:, None, None], here.shape)
    forward = route_load(groups, group.ravel(), here.ravel(), there.ravel(), weight)
    if not both:
        return [forward]
    return [forward, route_load(groups, group.ravel(), there.ravel(), here.ravel(), weight)]


def between_nodes(groups: Groups, edges: tuple[Ints, Ints], weight: float) -> list[Load]:
    """`weight` bytes per byte over each edge (from, to) between the groups' nodes, over all channels."""
    loads = []
    source, target = edges
    channels = groups.channels
    for channel in range(channels):
        member = channel % groups.each
        src, dst = groups.members[:, source, member], groups.members[:, target, member]
        group = np.broadcast_to(np.arange(groups.count)[:, None], src.shape)
        loads.append(
            route_load(
                groups,
                group.ravel(),
                src.ravel(),
                dst.ravel(),
                weight / channels,
                channel // groups.each,
            )
        )
    return loads


def hop_latency_s(groups: Groups, protocol: Protocol, algorithm: str) -> tuple[float, float]:
    """(a step inside a node, a step between nodes): the protocol's, or the links' where that is more."""
    fabric = groups.fabric
    table = protocol.hop_s.get(algorithm, protocol.hop_s["ring"])
    first = groups.members[0]
    local = remote = 0.0
    if groups.each > 1:
        a, b = first[0, :1], first[0, 1:2]
        kind, links_s = _way(fabric, a, b)
        local = max(table.get(kind, 0.0), links_s)
    if groups.nodes > 1:
        kind, links_s = _way(fabric, first[0, :1], first[1, :1])
        remote = max(table.get(kind, 0.0), links_s)
    return local, remote


def _way(fabric: Fabric, a: Ints, b: Ints) -> tuple[str, float]:
    _, links = fabric.routes(a, b)
    return slowest_kind(fabric, links), float(fabric.latency_s[links].sum())


def slowest_kind(fabric: Fabric, links: Ints) -> str:
    """ "net" if a way leaves its node, "pcie" if it takes PCIe, else "nvlink"."""
    kinds = {kind_of_tier(fabric.tiers[tier]) for tier in np.unique(fabric.tier[links]).tolist()}
    return "net" if "net" in kinds else "pcie" if "pcie" in kinds else "nvlink"


def kind_of_tier(tier: str) -> str:
    """The kind of link that a tier of the fabric is, for protocols."""
    if tier in ("nvlink", "torus"):
        return "nvlink"
    return "pcie" if tier in ("pcie", "socket", "pcie-switch", "cpu") else "net"
