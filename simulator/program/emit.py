"""Writing down a role's instructions: kernels gather into segments until something must be waited for."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.model.blocks import Kernel
from simulator.program.instructions import Every, Instruction, Launch, Record, Segment, Wait
from simulator.timeline import DeviceKind

#: A segment is cut after a block once it has so many kernels, so that the launch queue's bound
#: (1024 kernels by default) still bites where it would.
MOST_KERNELS = 128


class Emitter:
    """Collects instructions. Equal segments become one object, so that each is priced once."""

    def __init__(self, segments: dict[tuple[object, ...], Segment]):
        self._segments = segments
        self._body: list[Instruction | Every] = []
        self._kernels: list[Kernel] = []
        self._parts: list[tuple[str, int]] = []
        self._launches = 0
        self._host_s = 0.0
        self._kind = DeviceKind.COMPUTE
        self._micro_batch = -1
        self._what = ""
        self._events = 0

    def kernels(
        self,
        kernels: Iterable[Kernel],
        block: str,
        what: str,
        *,
        kind: DeviceKind = DeviceKind.COMPUTE,
        micro_batch: int = -1,
        host_s: float = 0.0,
    ) -> None:
        """Launch kernels on the compute stream, as part of the run under way if they belong to it.

        `block` and `what` ("forward", "backward") name them in a trace.
        """
        added = tuple(kernels)
        same = (kind, micro_batch, what) == (self._kind, self._micro_batch, self._what)
        if self._kernels and not same:
            self.flush()
        self._kind, self._micro_batch, self._what = kind, micro_batch, what
        if self._parts and self._parts[-1][0] == block:
            self._parts[-1] = (block, self._parts[-1][1] + len(added))
        elif added:
            self._parts.append((block, len(added)))
        self._kernels.extend(added)
        self._launches += sum(kernel.launches for kernel in added)
        self._host_s += host_s

    def end_block(self) -> None:
        """A block is complete: cut the run here if it is long."""
        if self._launches >= MOST_KERNELS:
            self.flush()

    def flush(self) -> None:
        """End the run under way: what follows must wait, or be waited for."""
        if not self._kernels:
            return
        parts = tuple(self._parts)
        name = f"{self._what} {parts[0][0]}"
        if parts[-1][0] != parts[0][0]:
            name += f" .. {parts[-1][0]}"
        key = (name, tuple(self._kernels), self._kind, self._host_s, parts)
        segment = self._segments.get(key)
        if segment is None:
            segment = self._segments[key] = Segment(
                name, tuple(self._kernels), self._kind, self._host_s, parts
            )
        self._body.append(Launch(segment, "compute", self._micro_batch))
        self._kernels, self._parts, self._launches, self._host_s = [], [], 0, 0.0

    def add(self, *instructions: Instruction | Every) -> None:
        """Append instructions after what has been launched."""
        self.flush()
        self._body.extend(instructions)

    def order(self, before: str, after: str, event: str = "") -> str:
        """Make the stream `after` wait for what is on the stream `before`; returns the event's name."""
        event = event or self.new_event()
        self.add(Record(event, before), Wait(event, after))
        return event

    def new_event(self) -> str:
        """A name that no other event of this role has."""
        self._events += 1
        return f"e{self._events}"

    def body(self) -> tuple[Instruction | Every, ...]:
        """All that was emitted."""
        self.flush()
        return tuple(self._body)
