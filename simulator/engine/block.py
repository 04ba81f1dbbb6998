"""Runs of work that one stage's host issues without a break, taken as one by the lanes engine.

Nothing in a block waits for other stages but what its first piece of work waits for, and no stream's
launch queue can come to hold one piece back until another of the same block is done. So once what stands
before a block is known, the host's times follow for all of it, and then the device's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from simulator.engine.script import HostOp, Item
from simulator.program.instructions import Collective, Launch, Recv, Send

#: What a block waits for from before it: the latest work of a stream, or of an event.
Ref: TypeAlias = "int | str"

#: Fewer pieces of work than this are not worth a block.
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Pieces of work in the order of issue.

    What they wait for is given by number: first `outside`, then the pieces themselves. `previous`: the
    work before on the piece's stream; `waits`: of its events; `needs`: of both, what must be looked at,
    since the rest is over before these are. `roots`: pieces that need nothing of the block.
    """

    places: tuple[int, ...]
    items: tuple[Item, ...]
    outside: tuple[Ref, ...]
    previous: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    streams: frozenset[int]
    queued: tuple[tuple[int, int, tuple[str, ...]], ...]  # stream, launches, events of each piece


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
        known = self.made.keys() | self.outside.keys()
        return not self.items or not any(ref in met and ref not in known for ref in self.refs(item))

    def add(self, place: int, item: Item) -> None:
        found = []
        for ref in self.refs(item):
            if ref in self.made:
                found.append(self.made[ref])
            else:
                found.append(self.outside.setdefault(ref, -1 - len(self.outside)))
        self.depends.append(found)
        made: list[Ref] = [item.stream, *item.records]
        self.made.update((ref, len(self.items)) for ref in made)
        self.places.append(place)
        self.items.append(item)
        self.launches[item.stream] += item.launches

    def close(self) -> Block:
        before = len(self.outside)

        def number(one: int) -> int:
            return -1 - one if one < 0 else before + one

        depends = [[number(one) for one in ones] for ones in self.depends]
        needs = _needs(before, depends)
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
        )


def _needs(before: int, depends: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Of what each piece depends on, that which nothing else it depends on has waited for."""
    over = [1 << one for one in range(before)]  # bits of what is over once a piece is
    needs = []
    for ones in depends:
        unique = list(dict.fromkeys(ones))
        kept = [one for one in unique if not any(over[other] >> one & 1 for other in unique if other != one)]
        bits = 1 << len(over)
        for one in kept:
            bits |= over[one]
        over.append(bits)
        needs.append(tuple(kept))
    return tuple(needs)


def split(
    operations: Sequence[HostOp], spanning: frozenset[str], launch_queue: int, most: int
) -> list[tuple[int, HostOp | Block]]:
    """A step's operations with their places, runs of at most `most` pieces of work as blocks."""
    result: list[tuple[int, HostOp | Block]] = []
    met: set[Ref] = set()
    block = _Open()

    def close() -> None:
        nonlocal block
        if len(block.items) >= _FEWEST:
            result.append((block.places[0], block.close()))
        else:
            result.extend(zip(block.places, block.items, strict=True))
        block = _Open()

    for place, operation in enumerate(operations):
        if not isinstance(operation, Item):
            close()
            result.append((place, operation))
            continue
        spans = spans_stages(operation, spanning)
        if spans or not isinstance(operation.work, Launch | Collective) or operation.launches > launch_queue:
            close()
            result.append((place, operation))
        else:
            if not block.fits(operation, met, launch_queue, most):
                close()
            block.add(place, operation)
        made: list[Ref] = [operation.stream, *operation.records]
        met = met.union(made) if spans else met.difference(made)
    close()
    return result
