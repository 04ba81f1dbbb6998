"""A role's instructions, made ready to run: streams numbered, waits and records attached to the work.

A Record completes with the last work issued to its stream before it; a Wait holds back the next work
issued to its stream. So both vanish into the items, and what is left is what the host does in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from simulator.program.instructions import (
    Collective,
    Copy,
    Every,
    HostWait,
    HostWork,
    Instruction,
    Launch,
    NextBatch,
    Programs,
    Record,
    Recv,
    Role,
    Send,
    Wait,
)
from simulator.timeline import DeviceKind

Work: TypeAlias = Launch | Collective | Send | Recv | Copy

#: kind of work -> how it is shown
DEVICE_KINDS: dict[type, DeviceKind] = {
    Collective: DeviceKind.COLLECTIVE,
    Send: DeviceKind.SEND,
    Recv: DeviceKind.RECV,
    Copy: DeviceKind.COPY,
}


@dataclass(slots=True, eq=False)
class Item:
    """One piece of work for one stream, the same for all ranks of a role in all steps that have it.

    `index`: its number in the Script's table; `position`: how far into the step (0 to 1) the host
    issues it; `launch`: its number among the step's launches (which keys noise), -1 for other work.
    """

    work: Work
    index: int
    stream: int
    waits: tuple[str, ...]
    records: list[str]
    position: float = 0.0
    launch: int = -1
    ends_step: bool = False
    launches: int = 1
    then: Item | None = None  # next in a chain
    meets: str = ""  # group of the first collective further on in the chain

    def __post_init__(self) -> None:
        """`launches`: kernels that the item puts into the launch queue."""
        if isinstance(self.work, Launch):
            self.launches = self.work.segment.launches

    @property
    def kind(self) -> DeviceKind:
        if isinstance(self.work, Launch):
            return self.work.segment.kind
        return DEVICE_KINDS[type(self.work)]

    @property
    def name(self) -> str:
        work = self.work
        if isinstance(work, Launch):
            return work.segment.name
        if isinstance(work, Send | Recv):
            return f"{type(work).__name__.lower()} {work.tag}"
        return work.name or work.kind if isinstance(work, Collective) else work.name


HostOp: TypeAlias = "Item | HostWork | HostWait | NextBatch"


@dataclass(frozen=True, slots=True)
class StepScript:
    """What the host does in one step, in order; `trailing` waits hold back the next step's first work.

    `quiet`: for each place, launches of the compute stream that the host issues from there before it does
    anything that could start ahead of them.
    `kept`: events that another step may wait for.
    """

    operations: tuple[HostOp, ...]
    trailing: tuple[tuple[int, str], ...]  # (stream, event)
    quiet: tuple[int, ...]
    kept: frozenset[str] = frozenset()

    @property
    def launch_items(self) -> tuple[Item, ...]:
        """The launches among the operations, in order; `Item.launch` is the place here."""
        return tuple(op for op in self.operations if isinstance(op, Item) and op.launch >= 0)


@dataclass(slots=True)
class Script:
    """All steps of a role. Steps with the same optional parts share one StepScript."""

    role: Role
    streams: tuple[str, ...]
    items: list[Item] = field(default_factory=list)
    _variants: dict[tuple[bool, ...], StepScript] = field(default_factory=dict)
    _periods: tuple[int, ...] | None = None

    def step(self, step: int) -> StepScript:
        """The script of a step (from 0)."""
        if self._periods is None:
            self._periods = self.role.periods()
        key = tuple((step + 1) % period == 0 for period in self._periods)
        known = self._variants.get(key)
        if known is None:
            known = self._variants[key] = self._compile(self.role.instructions(step))
        return known

    def _compile(self, instructions: tuple[Instruction, ...]) -> StepScript:
        operations: list[HostOp] = []
        waiting: dict[int, list[str]] = {}
        last: dict[int, Item] = {}
        launches = 0
        number = {name: i for i, name in enumerate(self.streams)}
        for place, instruction in enumerate(instructions):
            match instruction:
                case Wait(event, stream):
                    waiting.setdefault(number[stream], []).append(event)
                case Record(event, stream):
                    if number[stream] in last:
                        last[number[stream]].records.append(event)
                case HostWork() | HostWait() | NextBatch():
                    operations.append(instruction)
                case _:
                    stream_index = number[instruction.stream]
                    item = Item(
                        instruction,
                        len(self.items),
                        stream_index,
                        tuple(waiting.pop(stream_index, ())),
                        [],
                        position=place / len(instructions),
                        launch=launches if isinstance(instruction, Launch) else -1,
                    )
                    launches += isinstance(instruction, Launch)
                    self.items.append(item)
                    operations.append(item)
                    last[stream_index] = item
        if 0 in last:
            last[0].ends_step = True
        trailing = tuple((stream, event) for stream, events in waiting.items() for event in events)
        followers = _followers(operations)
        _chain(operations, followers, {event for _, event in trailing})
        kept = self._kept() | {event for _, event in trailing}
        return StepScript(tuple(operations), trailing, _quiet(operations, followers), kept)

    def _kept(self) -> frozenset[str]:
        """Events that are waited for before they are recorded, or in some steps only."""
        recorded: set[str] = set()
        kept: set[str] = set()
        for item in self.role.body:
            for instruction in item.instructions if isinstance(item, Every) else (item,):
                if isinstance(instruction, Record):
                    recorded.add(instruction.event)
                elif isinstance(instruction, Wait | HostWait) and (
                    isinstance(item, Every) or instruction.event not in recorded
                ):
                    kept.add(instruction.event)
        return frozenset(kept)


def _followers(operations: list[HostOp]) -> tuple[bool, ...]:
    """By place: whether an operation cannot start before all compute work issued before it is done (or running).

    That is work on the compute stream, and a collective that waits for the last such work.
    """
    result = []
    compute: Item | None = None
    for operation in operations:
        if not isinstance(operation, Item):
            result.append(False)
        elif operation.stream == 0 and isinstance(operation.work, Launch):
            compute = operation
            result.append(True)
        else:
            waits = compute is not None and not set(compute.records).isdisjoint(operation.waits)
            result.append(waits and operation.stream != 0 and isinstance(operation.work, Collective))
    return tuple(result)


def _chain(operations: list[HostOp], followers: tuple[bool, ...], trailing: set[str]) -> None:
    """Say of each item which one follows it in a chain.

    Nothing outside may start when it ends: by waiting for what it records, or next on its stream.
    """
    outside = set(trailing)
    for operation, follower in zip(operations, followers, strict=True):
        if isinstance(operation, HostWait):
            outside.add(operation.event)
        elif isinstance(operation, Item) and not follower:
            outside.update(operation.waits)
    behind = {0: True}  # by stream: whether the next work on it is a follower
    for place in range(len(operations) - 1, -1, -1):
        one = operations[place]
        if not isinstance(one, Item):
            continue
        other = operations[place + 1] if place + 1 < len(operations) else None
        follows = followers[place] and isinstance(other, Item) and followers[place + 1]
        if follows and behind.get(one.stream) and not one.ends_step and outside.isdisjoint(one.records):
            assert isinstance(other, Item)
            one.then = other
        if one.stream:
            behind[one.stream] = followers[place]
    for one, other in zip(operations[-2::-1], operations[:0:-1], strict=True):
        if isinstance(one, Item) and one.then is not None and isinstance(other, Item):
            one.meets = other.work.group if isinstance(other.work, Collective) else other.meets


def _quiet(operations: list[HostOp], followers: tuple[bool, ...]) -> tuple[int, ...]:
    """Launches of the compute stream from each place up to the next operation that is no follower."""
    result = [0] * len(operations)
    launches = 0
    for place in range(len(operations) - 1, -1, -1):
        operation = operations[place]
        if not followers[place]:
            launches = 0
        elif isinstance(operation, Item) and operation.stream == 0:
            launches += operation.launches
        result[place] = launches
    return tuple(result)


def stream_names(programs: Programs) -> tuple[str, ...]:
    """All streams of all roles, "compute" first, then in order of first use."""
    names = {"compute": None}
    for role in programs.roles:
        for item in role.body:
            for instruction in getattr(item, "instructions", (item,)):
                stream = getattr(instruction, "stream", None)
                if stream is not None:
                    names.setdefault(stream, None)
    return tuple(names)


def scripts(programs: Programs) -> tuple[Script, ...]:
    """One Script a role, its first step compiled."""
    names = stream_names(programs)
    made = tuple(Script(role, names) for role in programs.roles)
    for script in made:
        script.step(0)
    return made
