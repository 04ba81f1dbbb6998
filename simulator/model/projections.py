"""The products that make queries, keys and values of a layer's normed input.

Plain attention has one column-parallel product. Latent attention (DeepSeek-V2, arXiv:2405.04434) first
makes narrow latents with products that every TP rank holds whole, then widens them by heads: with sequence
parallelism each rank makes the latents of its own tokens, and those are gathered instead of the hidden
states (Megatron-LM's `MLASelfAttention`).
"""

from __future__ import annotations

from simulator.model.blocks import Kernel, Piece, Run
from simulator.model.context import Context
from simulator.model.linear import Linear, column_backward, column_forward, forward, input_gradient, weights


def forward_pieces(
    context: Context, linears: list[Linear], first: tuple[Kernel, ...], last: Kernel
) -> list[Piece]:
    """`first`: kernels that stand before them in the same run; `last`: after them."""
    down, up = _apart(linears)
    return [
        Run((*first, *(forward(context, one) for one in down))),
        *column_forward(context, up, _width(context, down, up)),
        Run((last,)),
    ]


def backward_pieces(context: Context, linears: list[Linear]) -> list[Piece]:
    """The same backwards: the latents' gradients are sums over the heads of all TP ranks."""
    down, up = _apart(linears)
    pieces = column_backward(context, up, _width(context, down, up))
    if down:
        pieces.append(Run(tuple(input_gradient(context, one) for one in down), "input"))
        pieces.append(weights(context, down))
    return pieces


def _apart(linears: list[Linear]) -> tuple[list[Linear], list[Linear]]:
    """(those that every rank holds whole, those split by heads)."""
    return [one for one in linears if not one.split], [one for one in linears if one.split]


def _width(context: Context, down: list[Linear], up: list[Linear]) -> int:
    """Elements a token that the split products take in: latents, and hidden states where one needs those."""
    hidden = context.model.hidden
    latents = sum(one.outputs for one in down)
    return latents + (hidden if any(one.inputs == hidden for one in up) or not down else 0)
