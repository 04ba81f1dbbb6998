"""One pass of a chunk of the model: its blocks' pieces as launches, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from simulator.hardware import Stack
from simulator.model.blocks import Block, Exchange, Piece, Run
from simulator.program.emit import Emitter
from simulator.program.instructions import Collective, Record, Wait
from simulator.timeline import DeviceKind

#: called after each piece of a backward with (block's place in the chunk, parameters now whole)
Ready = Callable[[int, tuple[int, ...]], None]

#: A pass as it is issued: it pauses where experts' tokens are under way and compute would wait for them.
Pass = Iterator[str]

#: Exchanges that a pass running side by side covers (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1).
_COVERED = ("ep",)


def run(emit: Emitter, one: Pass) -> None:
    """Issue a pass by itself: compute waits wherever it pauses."""
    for event in one:
        emit.add(Wait(event, "compute"))


def run_beside(emit: Emitter, first: Pass, second: Pass) -> None:
    """Issue two passes in turns: while the tokens of one are under way, the other computes."""
    waiting: list[tuple[Pass, str]] = [(first, ""), (second, "")]
    while waiting:
        one, event = waiting.pop(0)
        if event:
            emit.add(Wait(event, "compute"))
        following = next(one, None)
        if following is not None:
            waiting.append((one, following))


def forward(emit: Emitter, blocks: Sequence[Block], micro_batch: int, stack: Stack) -> Pass:
    """The forward pass of a chunk."""
    for block in blocks:
        host_s = block.host_s + stack.forward_host_s(block)
        yield from _pieces(emit, block, block.forward, "forward", micro_batch, host_s)
        emit.end_block()


def backward(
    emit: Emitter,
    blocks: Sequence[Block],
    micro_batch: int,
    stack: Stack,
    *,
    parts: frozenset[str] = frozenset({"recompute", "input", "weight"}),
    ready: Ready | None = None,
) -> Pass:
    """The backward pass of a chunk, last block first; `parts` chooses a half of it.

    A recomputed forward belongs to the half that needs it first, the input's.
    """
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        chosen = [piece for piece in block.backward if piece.part in parts]
        host_s = (block.host_s + stack.backward_host_s(block)) * len(chosen) / max(1, len(block.backward))
        yield from _pieces(
            emit,
            block,
            chosen,
            "backward",
            micro_batch,
            host_s,
            partial(ready, place) if ready else None,
        )
        emit.end_block()


def _pieces(
    emit: Emitter,
    block: Block,
    pieces: Iterable[Piece],
    what: str,
    micro_batch: int,
    host_s: float,
    ready: Callable[[tuple[int, ...]], None] | None = None,
) -> Pass:
    late: list[str] = []
    for piece in pieces:
        if isinstance(piece, Exchange):
            event = _exchange(emit, block, piece, micro_batch)
            if piece.overlaps:
                late.append(event)
            elif piece.axis in _COVERED:
                yield event
            else:
                emit.add(Wait(event, "compute"))
            continue
        if piece.settles and late:
            emit.add(*(Wait(event, "compute") for event in late))
            late = []
        recomputes = piece.part == "recompute"
        emit.kernels(
            piece.kernels,
            block.name,
            "recompute" if recomputes else what,
            kind=DeviceKind.RECOMPUTE if recomputes else DeviceKind.COMPUTE,
            micro_batch=micro_batch,
            host_s=host_s,
        )
        host_s = 0.0
        if late:  # what was exchanged beside this run is needed after it
            emit.add(*(Wait(event, "compute") for event in late))
            late = []
        if ready and isinstance(piece, Run) and piece.gradients:
            ready(piece.gradients)
    if late:
        emit.add(*(Wait(event, "compute") for event in late))


def _exchange(emit: Emitter, block: Block, piece: Exchange, micro_batch: int) -> str:
    """Issue an exchange on its axis' stream; returns the event that says it is over."""
    stream = piece.axis
    emit.order("compute", stream)
    emit.add(
        Collective(
            piece.kind,
            piece.axis,
            piece.size_bytes,
            stream,
            name=f"{piece.kind} {piece.axis} {block.name}",
            micro_batch=micro_batch,
        )
    )
    event = emit.new_event()
    emit.add(Record(event, stream))
    return event
