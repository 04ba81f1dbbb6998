"""Products pipelined with the exchanges of tensor parallelism (asynchronous TP).

With sequence parallelism of degree t a product's tokens come in t parts. A product of gathered tokens works
on the part that is there while the next is on its way, t - 1 shifts in all; a product whose partial sums are
scattered sends the part that is done while it works on the next, its own last, and adds up what came at the
end. So a shift shows where it takes longer than a t-th of the product, and each part pays for its smaller
matrix (Wang et al. 2023, ASPLOS, "Overlap communication with dependent computation via decomposition";
TransformerEngine's userbuffers and PyTorch's asynchronous TP do so).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from simulator.model.blocks import Exchange, Kernel, Piece, Run
from simulator.model.context import Context

Part = Literal["forward", "input"]
#: the kernels of a product of so many tokens
Product = Callable[[float], tuple[Kernel, ...]]


def applies(context: Context) -> bool:
    """Whether products and exchanges are pipelined."""
    return context.tp_overlap and context.tp > 1 and context.parallelism.sequence_parallel


def _shift(context: Context, part: Part, width: int) -> Exchange:
    """One rank's tokens, `width` elements each (hidden if 0), to the next rank."""
    size = context.hidden_bytes * ((width or context.model.hidden) / context.model.hidden) / context.tp
    return Exchange("ring-shift", "tp", size, True, part)


def gathered(context: Context, product: Product, part: Part, width: int = 0) -> list[Piece]:
    """A product of tokens that are gathered, `width` elements each (hidden if 0)."""
    kernels = product(context.tokens / context.tp)
    pieces: list[Piece] = []
    for step in range(context.tp):
        if step < context.tp - 1:
            pieces.append(_shift(context, part, width))
        pieces.append(Run(kernels, part))
    return pieces


def scattered(context: Context, product: Product, part: Part) -> list[Piece]:
    """A product whose partial sums are scattered."""
    kernels = product(context.tokens / context.tp)
    pieces: list[Piece] = [Run(kernels, part)]
    for _ in range(context.tp - 1):
        pieces += [_shift(context, part, 0), Run(kernels, part)]
    moved = (context.tp + 1) * context.hidden_bytes / context.tp  # t parts read, one written
    total = Kernel("sum of parts", "elementwise", flops=moved, bytes=moved, precision=context.precision)
    return [*pieces, Run((total,), part, settles=True)]
