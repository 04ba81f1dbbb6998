"""What one host thread issues, in order, as PyTorch or Megatron would.

Streams are named: "compute", "copy", one a process group for collectives ("dp", "tp", ...), and one a
direction for pipeline traffic. Events are named too; an event may be recorded again in a later step,
and a Wait means its latest Record before the Wait in program order, as with CUDA events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from simulator.model.blocks import Kernel
from simulator.timeline import DeviceKind, HostKind


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of kernels on one stream with nothing to wait for inside. Compared by identity.

    `host_s`: Python time spread evenly over the launches, beside the launches themselves.
    `parts` names the blocks in order with the number of kernels each has, for a trace.
    """

    name: str
    kernels: tuple[Kernel, ...]
    kind: DeviceKind = DeviceKind.COMPUTE
    host_s: float = 0.0
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class Launch:
    segment: Segment
    stream: str = "compute"
    micro_batch: int = -1


@dataclass(frozen=True, slots=True)
class Collective:
    """All ranks of the group take part; it starts when the last has arrived."""

    kind: str
    group: str  # a name in parallel.mesh.GROUPS
    size_bytes: float
    stream: str
    name: str = ""
    algorithm: str = "auto"
    micro_batch: int = -1


@dataclass(frozen=True, slots=True)
class Send:
    """Activations or gradients to another stage; done when the peer has them. `tag` pairs it with a Recv."""

    peer: int
    size_bytes: float
    stream: str
    tag: str
    micro_batch: int = -1


@dataclass(frozen=True, slots=True)
class Recv:
    peer: int
    size_bytes: float
    stream: str
    tag: str
    micro_batch: int = -1


@dataclass(frozen=True, slots=True)
class Copy:
    """Between host and device over PCIe."""

    size_bytes: float
    stream: str = "copy"
    name: str = "host-to-device copy"
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class Record:
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Wait:
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class HostWork:
    """Python time; GPU work that was launched goes on meanwhile."""

    duration_s: float
    name: str
    kind: HostKind = HostKind.FRAMEWORK


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host blocks until the GPU has reached the event."""

    event: str
    name: str = "synchronise"


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The host blocks until the dataloader has the next batch."""


Instruction: TypeAlias = (
    Launch | Collective | Send | Recv | Copy | Record | Wait | HostWork | HostWait | NextBatch
)


@dataclass(frozen=True, slots=True)
class Every:
    """Instructions that only some steps have: those whose number, counted from 1, `steps` divides."""

    steps: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """What the ranks of one pipeline stage run, step after step."""

    stage: int
    body: tuple[Instruction | Every, ...]

    def periods(self) -> tuple[int, ...]:
        return tuple(sorted({item.steps for item in self.body if isinstance(item, Every)}))

    def instructions(self, step: int) -> tuple[Instruction, ...]:
        """The instructions of a step (from 0)."""
        result: list[Instruction] = []
        for item in self.body:
            if isinstance(item, Every):
                if (step + 1) % item.steps == 0:
                    result.extend(item.instructions)
            else:
                result.append(item)
        return tuple(result)


@dataclass(frozen=True, slots=True)
class Programs:
    """One Program a role, and how many micro-batches a step has (for loads that differ by micro-batch)."""

    roles: tuple[Role, ...]
    micro_batches: int
    meta: Mapping[str, object] = field(default_factory=dict)

    def batches(self, stage: int) -> int:
        """Batches that a rank of a stage loads for a step: with micro-batches from both ends, half of them."""
        loaded = sum(isinstance(item, NextBatch) for item in self.roles[stage].body)
        return loaded or self.micro_batches
