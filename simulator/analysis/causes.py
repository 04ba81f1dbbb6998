"""The items of a waterfall, by name, and which span or host activity counts as which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from simulator.analysis.intervals import Ints
from simulator.timeline import DeviceKind, HostKind, Timeline

MODEL: Final = "model FLOPs at peak"
BELOW_PEAK: Final = "kernels below peak"
CONTENTION: Final = "slowed by communication kernels"
SLOW_GPUS: Final = "slow GPUs"
RECOMPUTE: Final = "recompute"
OPTIMIZER: Final = "optimizer"
BUBBLE: Final = "pipeline bubble"
WAITING: Final = "waiting for a slower rank"
COPIES: Final = "host-device copies"
LOADER: Final = "dataloader wait"
LAUNCH: Final = "launch-bound gaps"
SYNC: Final = "synchronisation"
GARBAGE: Final = "garbage collection"
CHECKPOINT: Final = "checkpoint"
STALL: Final = "host stalls"
UNEXPLAINED: Final = "unexplained idle"

#: axes that always have an item, in order
AXES: Final = ("tp", "cp", "ep", "pp", "dp")

#: groups whose traffic is data-parallel traffic by another name
_AXIS_OF_GROUP: Final[Mapping[str, str]] = {
    "expert-dp": "dp",
    "shard": "dp",
    "expert-shard": "dp",
    "replica": "dp",
    "expert-tp": "tp",
}


def exposed(axis: str) -> str:
    """The item for communication over `axis` that no compute hides."""
    return f"exposed {axis.upper() if len(axis) == 2 else axis} communication"


#: all items in the order in which they are shown
ITEMS: Final = (
    MODEL, BELOW_PEAK, CONTENTION, SLOW_GPUS, RECOMPUTE, OPTIMIZER,
    *(exposed(axis) for axis in AXES),
    BUBBLE, WAITING, COPIES, LOADER, LAUNCH, SYNC, GARBAGE, CHECKPOINT, STALL, UNEXPLAINED,
)  # fmt: skip

_OF_DEVICE: Final[Mapping[DeviceKind, str]] = {
    DeviceKind.COMPUTE: BELOW_PEAK,
    DeviceKind.COLLECTIVE: WAITING,  # replaced by its axis
    DeviceKind.SEND: exposed("pp"),
    DeviceKind.RECV: exposed("pp"),
    DeviceKind.COPY: COPIES,
    DeviceKind.MEMSET: COPIES,
    DeviceKind.OPTIMIZER: OPTIMIZER,
    DeviceKind.RECOMPUTE: RECOMPUTE,
}

OF_HOST: Final[Mapping[HostKind, str]] = {
    HostKind.LAUNCH: LAUNCH,
    HostKind.FRAMEWORK: LAUNCH,
    HostKind.LOADER: LOADER,
    HostKind.SYNC: SYNC,
    HostKind.QUEUE_FULL: LAUNCH,
    HostKind.STALL: STALL,
    HostKind.GARBAGE_COLLECTION: GARBAGE,
    HostKind.CHECKPOINT: CHECKPOINT,
}


class Causes:
    """The items of one timeline by number: the usual ones and those of its other process groups."""

    def __init__(self, timeline: Timeline):
        groups = [timeline.names[index] for index in np.unique(timeline.collectives.axis).tolist()]
        extra = {exposed(_AXIS_OF_GROUP.get(group, group)) for group in groups} - set(ITEMS)
        place = ITEMS.index(BUBBLE)
        self.names: tuple[str, ...] = (*ITEMS[:place], *sorted(extra), *ITEMS[place:])
        self._number = {name: number for number, name in enumerate(self.names)}
        self.of_device: Ints = np.array([self[_OF_DEVICE[kind]] for kind in DeviceKind])
        self.of_host: Ints = np.array([self[OF_HOST[kind]] for kind in HostKind])
        self.waiting, self.bubble, self.launch = self[WAITING], self[BUBBLE], self[LAUNCH]
        self.sync, self.unexplained = self[SYNC], self[UNEXPLAINED]

    def __getitem__(self, name: str) -> int:
        return self._number[name]

    def __len__(self) -> int:
        return len(self.names)

    def axis_of_spans(self, timeline: Timeline) -> Ints:
        """The item of each device span's axis: by its collective, else by its stream's name."""
        device, table = timeline.device, timeline.collectives
        by_stream = np.array([self._of_group(name.split("-")[0]) for name in timeline.streams] or [0])
        result = by_stream[device.stream]
        used = set(np.unique(table.axis).tolist())
        by_name = np.array(
            [self._of_group(name) if index in used else 0 for index, name in enumerate(timeline.names)] or [0]
        )
        known = device.collective >= 0
        result[known] = by_name[table.axis[device.collective[known]]]
        return result

    def _of_group(self, group: str) -> int:
        return self._number.get(exposed(_AXIS_OF_GROUP.get(group, group)), self.unexplained)
