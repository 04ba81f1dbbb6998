"""Copies of activations to the host and back, each way on a stream of its own.

After an offloaded layer's forward its activations go to the host while the next layers compute; compute waits
only for the copy of the layer two before, whose buffer it needs. In the backward the layer before is fetched
while a layer computes. So what shows is what the host's link cannot hide.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model.blocks import Block
from simulator.model.offload import BUFFERS, offloaded
from simulator.program.emit import Emitter
from simulator.program.instructions import Copy, Record, Wait
from simulator.spec import Scenario

OUT, BACK = "offload", "reload"


class Offload:
    """Issues the copies of one role. `chunks`: the blocks of each of its virtual stages."""

    def __init__(self, scenario: Scenario, chunks: Sequence[Sequence[Block]], emit: Emitter):
        self._chunks = chunks
        self._emit = emit
        self._away = [offloaded(scenario, blocks) for blocks in chunks]
        self._out: dict[tuple[int, int, int], str] = {}  # chunk, place, micro-batch -> event of its copy out
        self._back: dict[tuple[int, int, int], str] = {}
        self._under_way: list[str] = []

    def before_forward(self, chunk: int, place: int) -> None:
        """A layer needs a buffer: the copy of the one `BUFFERS` before must be over."""
        if place in self._away[chunk] and len(self._under_way) >= BUFFERS:
            self._emit.add(Wait(self._under_way.pop(0), "compute"))

    def after_forward(self, chunk: int, place: int, micro_batch: int) -> None:
        """Send an offloaded layer's activations out."""
        if place in self._away[chunk]:
            self._emit.order("compute", OUT)
            event = self._copy(chunk, place, OUT, "offload")
            self._out[chunk, place, micro_batch] = event
            self._under_way.append(event)

    def before_backward(self, chunk: int, place: int, micro_batch: int) -> None:
        """Fetch the next offloaded layer, and wait for this one if it was away."""
        away = sorted(self._away[chunk], reverse=True)
        if away:
            wanted = [one for one in away if one <= place][: 2 if place in away else 1]
            for one in wanted:
                self._fetch(chunk, one, micro_batch)
        event = self._back.pop((chunk, place, micro_batch), None)
        if event is not None:
            self._emit.add(Wait(event, "compute"))

    def _fetch(self, chunk: int, place: int, micro_batch: int) -> None:
        key = (chunk, place, micro_batch)
        if key not in self._out:
            return
        event = self._out.pop(key)
        if event in self._under_way:
            self._under_way.remove(event)
        self._emit.add(Wait(event, BACK))
        self._emit.order("compute", BACK)  # the layer that had the buffer is through
        self._back[key] = self._copy(chunk, place, BACK, "reload")

    def _copy(self, chunk: int, place: int, stream: str, what: str) -> str:
        block = self._chunks[chunk][place]
        event = self._emit.new_event()
        self._emit.add(Copy(block.activation_bytes, stream, f"{what} {block.name}"), Record(event, stream))
        return event
