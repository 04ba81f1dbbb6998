"""Work of one stage's ranks as the lanes engine keeps it while something may still ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.lane_axes import Floats
from simulator.engine.script import Item


class Done:
    """When work is over, over the mesh. `row`, `shown`: where it is recorded, and its end on shown ranks."""

    __slots__ = ("end", "row", "shown")

    end: Floats

    def __init__(self) -> None:
        self.row = -1
        self.shown: Floats | None = None


class Op(Done):
    """One issue of an item on all ranks of its stage."""

    __slots__ = ("arrival", "begin", "busy", "host", "issued", "item", "previous", "ready", "start", "waits")

    def __init__(
        self, item: Item, host: Floats, issued: Floats, previous: Done | None, waits: Sequence[Done]
    ):
        super().__init__()
        self.item = item
        self.host = host
        self.issued = issued
        self.previous = previous
        self.waits = waits
        self.ready = self.arrival = self.start = self.begin = self.end = issued
        self.busy: Floats | None = None

    def settle(self) -> None:
        """It is over: let go of all but its end."""
        self.previous, self.waits, self.busy = None, (), None
        self.host = self.issued = self.ready = self.arrival = self.start = self.begin = self.end
