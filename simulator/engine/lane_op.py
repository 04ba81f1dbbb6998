"""Work of one stage's ranks as the lanes engine keeps it while something may still ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.lane_axes import Floats
from simulator.engine.script import Item


class Queued:
    """A place in a launch queue. `end`: of its work, once known; `past`: the host has waited for longer."""

    __slots__ = ("end", "launches", "past")

    def __init__(self, launches: int):
        self.launches = launches
        self.past = False
        self.end: Floats | None = None

    def release(self) -> None:
        """The host has waited for what is over later."""
        self.past, self.end = True, None


class Done:
    """When work is over, over the mesh. `row`, `shown`: where it is recorded, and its end on shown ranks.

    Of work in a block, all three are known once the block is over.
    """

    __slots__ = ("end", "queued", "row", "shown")

    end: Floats
    queued: Queued
    row: int
    shown: Floats | None


class Op(Done):
    """One issue of an item on all ranks of its stage."""

    __slots__ = ("arrival", "begin", "busy", "host", "issued", "item", "previous", "ready", "start", "waits")

    def __init__(
        self,
        item: Item,
        host: Floats,
        issued: Floats,
        previous: Done | None,
        waits: Sequence[Done],
        queued: Queued,
    ):
        self.row, self.shown = -1, None
        self.item = item
        self.host = host
        self.issued = issued
        self.previous = previous
        self.waits = waits
        self.ready = self.arrival = self.start = self.begin = self.end = issued
        self.busy: Floats | None = None
        self.queued = queued

    def settle(self) -> None:
        """It is over: let go of all but its end."""
        self.queued.end = self.end
        self.previous, self.waits, self.busy = None, (), None
        self.host = self.issued = self.ready = self.arrival = self.start = self.begin = self.end
