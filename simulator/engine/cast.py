"""Who plays: the lanes that an engine runs, the groups they meet in, the links they share.

Unfolded, every rank is a lane. Folded, a lane stands for a class of ranks that do the same at the same
time, a group for a class of groups, a link for a class of links; engines cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine.setting import Setting
from simulator.network.activity import LATENCY_BOUND_BYTES
from simulator.network.collectives import Activity
from simulator.program.instructions import Collective, Programs
from simulator.timeline import Lane

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_LINKS: Final = (np.empty(0, dtype=np.int64), np.empty(0))


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that take part in the same collectives.

    `lanes`: those that must arrive; `ranks`: all members (of the representative group), in rank order.
    """

    name: str
    number: int
    lanes: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """`groups[name][lane]` is the group that a lane meets in. `lane_of_rank`: shape (ranks,).

    `wire(activity, name, rank)` gives the links (indices into `capacity`) and the bytes that the activity,
    together with all those it stands for, puts on each; `name` is that of the group (or "send 0-1"),
    `rank` a member.
    """

    setting: Setting
    lanes: tuple[Lane, ...]
    lane_of_rank: Ints
    groups: Mapping[str, tuple[Group, ...]]
    capacity: Floats
    wire: Callable[[Activity, str, int], tuple[Ints, Floats]]
    link_class: Ints | None = None  # link of the fabric -> index into capacity; None: the identity
    meta: Mapping[str, object] = field(default_factory=dict)

    def link_name(self, link: int) -> str:
        """Name of a link, or of the first that a class stands for; `link`: index into `capacity`."""
        if self.link_class is not None:
            link = int(np.flatnonzero(self.link_class == link)[0])
        return self.setting.fabric.link_name(link)

    def peer(self, lane: int, stage: int) -> int:
        """The lane of the rank at another stage with the same other coordinates."""
        mesh = self.setting.mesh
        coordinates = mesh.coordinates(self.lanes[lane].rank)
        coordinates["pp"] = stage
        return int(self.lane_of_rank[mesh.rank(**coordinates)])


def used_groups(programs: Programs) -> tuple[str, ...]:
    """Names of the groups that some instruction communicates in."""
    found: dict[str, None] = {}
    for role in programs.roles:
        for item in role.body:
            for instruction in getattr(item, "instructions", (item,)):
                if isinstance(instruction, Collective):
                    found.setdefault(instruction.group, None)
    return tuple(found)


def lane_for(setting: Setting, rank: int, multiplicity: int = 1) -> Lane:
    """The Lane value of a rank."""
    coordinates = setting.mesh.coordinates(rank)
    return Lane(
        rank=rank,
        node=int(setting.node_of_rank[rank]),
        role=coordinates["pp"],
        multiplicity=multiplicity,
        gpu=setting.gpus[int(setting.gpu_of_rank[rank])].name,
        coordinates=coordinates,
    )


def _wire(activity: Activity, name: str, rank: int) -> tuple[Ints, Floats]:
    del name, rank
    if activity.size_bytes <= LATENCY_BOUND_BYTES:
        return NO_LINKS
    return activity.links, activity.bytes


def unfolded(setting: Setting) -> Cast:
    """Every rank for itself."""
    mesh = setting.mesh
    nodes = setting.node_of_rank
    gpus = setting.gpu_of_rank
    axes = {axis: mesh.coordinate_array(axis).tolist() for axis in mesh.axes}
    lanes = tuple(
        Lane(
            rank,
            int(nodes[rank]),
            axes["pp"][rank],
            1,
            setting.gpus[int(gpus[rank])].name,
            {axis: values[rank] for axis, values in axes.items()},
        )
        for rank in range(mesh.ranks)
    )
    groups = {}
    for name in used_groups(setting.programs):
        table = [tuple(row) for row in mesh.groups(name).tolist()]
        made = [Group(name, number, ranks, ranks) for number, ranks in enumerate(table)]
        groups[name] = tuple(made[number] for number in mesh.group_of(name).tolist())
    return Cast(
        setting=setting,
        lanes=lanes,
        lane_of_rank=np.arange(mesh.ranks),
        groups=groups,
        capacity=setting.fabric.capacity_bytes_per_s,
        wire=_wire,
    )
