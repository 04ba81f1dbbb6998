"""Ranks and their coordinates: who is in a group with whom.

The mesh has one axis a kind of parallelism. Data parallelism is kept as up to three axes, so that
every group is a product of axes: `ep` (experts are spread over it), `shard` (FSDP's or HSDP's shards
within a replica) and `dp` (the rest); tensor parallelism as two: `tp` (also the experts' own) and
`tp-rest` (ranks that split dense layers, but hold the same experts). `GROUPS` names the groups that
collectives run over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.spec import Parallelism

#: logical group -> the mesh axes whose product it is
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "tp": ("tp", "tp-rest"),
    "expert-tp": ("tp",),  # ranks that split one expert
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp",),
    "dp": ("cp", "ep", "shard", "dp"),  # ranks that hold the same dense parameters
    "expert-dp": ("tp-rest", "cp", "shard", "dp"),  # ranks that hold the same experts
    "shard": ("cp", "ep", "shard"),  # ranks that share one copy (hybrid sharding)
    "expert-shard": ("tp-rest", "cp", "shard"),  # the same of experts
    "replica": ("dp",),  # the copies of one shard
    "model": ("tp", "tp-rest", "pp"),  # ranks that hold one copy of the model together
    "world": ("tp", "tp-rest", "cp", "ep", "shard", "dp", "pp"),
}


@dataclass(frozen=True, slots=True)
class Mesh:
    """`axes` from the fastest-varying to the slowest, with their `sizes`."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.axes)) != len(self.axes):
            raise SpecError.of("parallelism.order", f"{self.axes}: an axis stands twice")

    @property
    def ranks(self) -> int:
        return math.prod(self.sizes)

    def size(self, group: str) -> int:
        """How many ranks a group has; `group` is a mesh axis or a name in GROUPS."""
        members = self._axes_of(group)
        return math.prod(size for axis, size in zip(self.axes, self.sizes, strict=True) if axis in members)

    def _axes_of(self, group: str) -> tuple[str, ...]:
        return GROUPS.get(group, (group,))

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's coordinate along every axis.

        >>> Mesh(("tp", "dp"), (8, 4)).coordinates(13)
        {'tp': 5, 'dp': 1}
        """
        if not 0 <= rank < self.ranks:
            raise SpecError.of("rank", f"{rank}: expected 0 to {self.ranks - 1}")
        result = {}
        for axis, size in zip(self.axes, self.sizes, strict=True):
            rank, result[axis] = divmod(rank, size)
        return result

    def rank(self, **coordinates: int) -> int:
        """The rank at the coordinates; an axis not given is at 0."""
        result, stride = 0, 1
        for axis, size in zip(self.axes, self.sizes, strict=True):
            result += stride * coordinates.get(axis, 0)
            stride *= size
        return result

    def coordinate_array(self, axis: str) -> NDArray[np.int64]:
        """Coordinate along `axis` of every rank, shape (ranks,)."""
        index = self.axes.index(axis)
        stride = math.prod(self.sizes[:index])
        return np.arange(self.ranks) // stride % self.sizes[index]

    def groups(self, group: str) -> NDArray[np.int64]:
        """All groups of a kind, shape (groups, members), ranks ascending in each and over the first."""
        members = set(self._axes_of(group))
        grid = np.arange(self.ranks).reshape(self.sizes[::-1])  # slowest axis first
        slow_first = self.axes[::-1]
        outer = [i for i, axis in enumerate(slow_first) if axis not in members]
        inner = [i for i, axis in enumerate(slow_first) if axis in members]
        arranged = grid.transpose(*outer, *inner)
        count = math.prod(self.sizes[::-1][i] for i in inner)
        return arranged.reshape(-1, count)

    def group_of(self, group: str) -> NDArray[np.int64]:
        """Index into `groups(group)` of every rank's group, shape (ranks,)."""
        table = self.groups(group)
        result = np.empty(self.ranks, dtype=np.int64)
        result[table.ravel()] = np.repeat(np.arange(len(table)), table.shape[1])
        return result

    def shift(self, rank: int, axis: str, by: int) -> int:
        """The rank `by` further along `axis`, around its end."""
        coordinates = self.coordinates(rank)
        size = self.sizes[self.axes.index(axis)]
        coordinates[axis] = (coordinates[axis] + by) % size
        return self.rank(**coordinates)


def build_mesh(parallelism: Parallelism, gpus_per_node: int = 8) -> Mesh:
    """The mesh of a scenario: data parallelism split into ep, shard and the rest, in the order asked for.

    Raises SpecError where the parts do not divide.
    """
    dp, ep = parallelism.dp, parallelism.ep
    if dp % ep:
        raise SpecError.of("parallelism.ep", f"{ep}: does not divide dp ({dp})")
    shard = _shard_size(parallelism, gpus_per_node, dp // ep)
    expert_tp = parallelism.expert_tp or parallelism.tp
    if parallelism.tp % expert_tp:
        raise SpecError.of("parallelism.expert_tp", f"{expert_tp}: does not divide tp ({parallelism.tp})")
    sizes = {
        "tp": expert_tp,
        "tp-rest": parallelism.tp // expert_tp,
        "cp": parallelism.cp,
        "ep": ep,
        "shard": shard,
        "dp": dp // ep // shard,
        "pp": parallelism.pp,
    }
    order = list(parallelism.order)
    if sorted(order) != sorted(("tp", "cp", "ep", "dp", "pp")):
        raise SpecError.of("parallelism.order", f"{order}: expected each of tp, cp, ep, dp, pp once")
    order.insert(order.index("dp"), "shard")
    order.insert(order.index("tp") + 1, "tp-rest")
    return Mesh(tuple(order), tuple(sizes[axis] for axis in order))


def _shard_size(parallelism: Parallelism, gpus_per_node: int, available: int) -> int:
    if parallelism.sharding in ("fsdp", "zero-3"):
        return available
    if parallelism.sharding != "hsdp":
        return 1
    inside = max(1, gpus_per_node // (parallelism.tp * parallelism.cp * parallelism.ep))
    shard = parallelism.shard_group // parallelism.ep if parallelism.shard_group else min(available, inside)
    if shard < 1 or available % shard:
        raise SpecError.of(
            "parallelism.shard_group",
            f"{parallelism.shard_group or shard}: does not divide the data-parallel ranks ({parallelism.dp})",
        )
    return shard
