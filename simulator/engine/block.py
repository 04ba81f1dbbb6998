"""Runs of work that one stage's host issues without a break, taken as one by the lanes engine.

Nothing in a block waits for other stages but what its first piece of work waits for, and no stream's
launch queue can come to hold one piece back until another of the same block is done. So once what stands
before a block is known, the host's times follow for all of it, and then the device's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from simulator.engine.script import HostOp, Item
from simulator.program.instructions import Collective, HostWait, Launch, Recv, Send

#: What a block waits for from before it: the latest work of a stream, or of an event.
Ref: TypeAlias = "int | str"

#: Fewer pieces of work than this are not worth a block.
_FEWEST: Final = 3

#: Pieces of the first block after the host has waited for the device, and how fast blocks grow from there.
_FIRST: Final = 4
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Pieces of work in the order of issue.

    What they wait for is given by number: first `outside`, then the pieces themselves. `previous`: the
    work before on the piece's stream; `waits`: of its events; `needs`: of both, what must be looked at,
    since the rest is over before these are. `roots`: pieces that need nothing of the block. `queued`: of
    each piece its stream, its launches and the events that others wait for. `covers`: what is over before
    a piece of the first stream begins (given by its number among the block's of that stream). `drops`:
    events that nothing waits for any more once the block is issued.
    """

    places: tuple[int, ...]
    items: tuple[Item, ...]
    outside: tuple[Ref, ...]
    previous: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    streams: frozenset[int]
    queued: tuple[tuple[int, int, tuple[str, ...]], ...]
    covers: tuple[tuple[int, int], ...]
    drops: tuple[str, ...] = ()


def spans_stages(item: Item, spanning: frozenset[str]) -> bool:
    """Whether work meets partners of other stages. `spanning`: names of groups that do."""
    work = item.work
    return isinstance(work, Send | Recv) or (isinstance(work, Collective) and work.group in spanning)


@dataclass(slots=True)
class _Open:
    """A block being put together; pieces by number from 0, what is outside by number from -1 down."""

    places: list[int] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    outside: dict[Ref, int] = field(default_factory=dict)
    made: dict[Ref, int] = field(default_factory=dict)  # by event or stream
    depends: list[list[int]] = field(default_factory=list)  # previous first, then waits
    launches: Counter[int] = field(default_factory=Counter)

    def refs(self, item: Item) -> list[Ref]:
        return [item.stream, *item.waits]

    def fits(self, item: Item, met: set[Ref], launch_queue: int, most: int) -> bool:
        """Whether the block can take the item. `met`: what other stages have a part in."""
        if self.launches[item.stream] + item.launches > launch_queue or len(self.items) >= most:
            return False
        if not self.items or met.isdisjoint(self.refs(item)):
            return True
        return all(ref not in met or ref in self.made or ref in self.outside for ref in self.refs(item))

    def add(self, place: int, item: Item) -> None:
        made, outside, number = self.made, self.outside, len(self.items)
        self.depends.append(
            [
                made[ref] if ref in made else outside.setdefault(ref, -1 - len(outside))
                for ref in self.refs(item)
            ]
        )
        made[item.stream] = number
        for event in item.records:
            made[event] = number
        self.places.append(place)
        self.items.append(item)
        self.launches[item.stream] += item.launches

    def close(self) -> Block:
        before = len(self.outside)

        def number(one: int) -> int:
            return -1 - one if one < 0 else before + one

        depends = [[number(one) for one in ones] for ones in self.depends]
        needs, over = _needs(before, depends)
        return Block(
            tuple(self.places),
            tuple(self.items),
            tuple(self.outside),
            tuple(ones[0] for ones in depends),
            tuple(tuple(ones[1:]) for ones in depends),
            needs,
            tuple(k for k, ones in enumerate(needs) if all(one < before for one in ones)),
            frozenset(item.stream for item in self.items),
            tuple((item.stream, item.launches, tuple(item.records)) for item in self.items),
            self._covers(before, over),
        )

    def _covers(self, before: int, over: Sequence[int]) -> tuple[tuple[int, int], ...]:
        first = [before + k for k, item in enumerate(self.items) if item.stream == 0]
        seen = sum(1 << number for number in first)
        if 0 in self.outside:
            seen |= 1 << (-1 - self.outside[0])
        covers = []
        for number, piece in enumerate(first):
            new = over[piece] & ~seen
            seen |= new
            while new:
                bit = new & -new
                covers.append((bit.bit_length() - 1, number))
                new ^= bit
        return tuple(covers)


def _needs(
    before: int, depends: Sequence[Sequence[int]]
) -> tuple[tuple[tuple[int, ...], ...], Sequence[int]]:
    """Of what each piece depends on, that which nothing else it depends on has waited for.

    And, as bits, all that is over when each is.
    """
    over = [1 << one for one in range(before)]  # bits of what is over once a piece is
    needs = []
    for ones in depends:
        if len(ones) == 1:
            kept = list(ones)
        else:
            unique = list(dict.fromkeys(ones))
            kept = [
                one for one in unique if not any(over[other] >> one & 1 for other in unique if other != one)
            ]
        bits = 1 << len(over)
        for one in kept:
            bits |= over[one]
        over.append(bits)
        needs.append(tuple(kept))
    return tuple(needs), over


def split(
    operations: Sequence[HostOp],
    spanning: frozenset[str],
    launch_queue: int,
    most: int,
    kept: frozenset[str] = frozenset(),
) -> list[tuple[int, HostOp | Block]]:
    """A step's operations with their places, runs of at most `most` pieces of work as blocks.

    `kept`: events that another step may wait for.
    """
    result: list[tuple[int, HostOp | Block]] = []
    met: set[Ref] = set()
    block = _Open()
    room = most

    def close() -> None:
        nonlocal block, room
        if block.items:
            room *= _GROWTH
        if len(block.items) >= _FEWEST:
            result.append((block.places[0], block.close()))
        else:
            result.extend(zip(block.places, block.items, strict=True))
        block = _Open()

    for place, operation in enumerate(operations):
        if not isinstance(operation, Item):
            close()
            result.append((place, operation))
            if isinstance(operation, HostWait):
                room = _FIRST  # the host has yet to get ahead
            continue
        spans = spans_stages(operation, spanning)
        if spans or not isinstance(operation.work, Launch | Collective) or operation.launches > launch_queue:
            close()
            result.append((place, operation))
        else:
            if not block.fits(operation, met, launch_queue, min(room, most)):
                close()
            block.add(place, operation)
        made: list[Ref] = [operation.stream, *operation.records]
        if spans:
            met.update(made)
        elif met:
            met.difference_update(made)
    close()
    return _without_idle_events(result, kept)


def _without_idle_events(
    pieces: list[tuple[int, HostOp | Block]], kept: frozenset[str]
) -> list[tuple[int, HostOp | Block]]:
    """Events within blocks are forgotten, others once nothing waits for them: they hold arrays."""
    users: dict[str, int] = {}
    for number, (_, piece) in enumerate(pieces):
        for ref in _waited(piece):
            users[ref] = number
    public = users.keys() | kept
    drops: dict[int, list[str]] = {}
    for event, number in users.items():
        if event not in kept:
            drops.setdefault(number, []).append(event)
    result: list[tuple[int, HostOp | Block]] = []
    idle: list[str] = []
    for number, (place, piece) in enumerate(pieces):
        idle += drops.get(number, ())
        if isinstance(piece, Block):
            queued = tuple((s, n, tuple(e for e in events if e in public)) for s, n, events in piece.queued)
            piece = replace(piece, queued=queued, drops=tuple(idle))  # noqa: PLW2901
            idle = []
        result.append((place, piece))
    return result


def _waited(piece: HostOp | Block) -> Sequence[str]:
    match piece:
        case Block():
            return [ref for ref in piece.outside if isinstance(ref, str)]
        case Item():
            return piece.waits
        case HostWait():
            return (piece.event,)
    return ()
