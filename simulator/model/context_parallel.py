"""The attention core with what context parallelism of degree p exchanges around it.

A rank holds s / p tokens of every sequence, as two chunks of the 2 p that the sequence is cut into, the i-th
from the front and the i-th from the back: so that under a causal mask all ranks have the same work.

- `ring`: blocks of keys and values go around the ring in p - 1 shifts, each beside the attention of the block
  that came before; the backward sends the blocks around again, and their gradients one block behind them
  (Liu et al. 2023, arXiv:2310.01889). A block of one's own is causal; of another's, half is masked: s / p
  queries see s / 2 p keys, or half of the queries all of them.
- `all-gather`: keys and values are gathered before the attention, which waits for them; their gradients are
  reduce-scattered after it (Llama team 2024, arXiv:2407.21783, section 3.3.2).
- `all-to-all`: sequences are gathered and heads spread, and back after it (Jacobs et al. 2023,
  DeepSpeed-Ulysses, arXiv:2309.14509).

A way of exchanging is one function with one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal

from simulator.errors import SpecError, nearest
from simulator.model import attention
from simulator.model.attention import Core
from simulator.model.blocks import Exchange, Kernel, Piece, Run
from simulator.model.context import Context

Part = Literal["forward", "input"]
#: (context, layer, part) -> pieces
Way = Callable[[Context, int, Part], list[Piece]]

_WAYS: Final[dict[str, Way]] = {}


def way(name: str) -> Callable[[Way], Way]:
    """Register a way of exchanging."""

    def register(pieces: Way) -> Way:
        _WAYS[name] = pieces
        return pieces

    return register


def ways() -> Mapping[str, Way]:
    """All ways by name (`parallelism.cp_kind`)."""
    return _WAYS


def pieces(context: Context, layer: int, part: Part) -> list[Piece]:
    """The core of a layer with its exchanges. Raises SpecError for an unknown way."""
    kind = context.parallelism.cp_kind
    if kind not in _WAYS:
        raise SpecError.of("parallelism.cp_kind", f"'{kind}': no such way{nearest(kind, _WAYS)}")
    if context.parallelism.cp == 1:
        return [Run(attention.kernels(context, layer, _pass(part)), part)]
    return _WAYS[kind](context, layer, part)


def _pass(part: Part) -> str:
    return "forward" if part == "forward" else "backward"


def _keys_values_bytes(context: Context, sizes: Core) -> float:
    """Keys and values of a rank's own tokens and heads."""
    return float(context.tokens * sizes.kv_heads * (sizes.width + sizes.value_width) * context.bytes)


@way("ring")
def _ring(context: Context, layer: int, part: Part) -> list[Piece]:
    cp, sizes = context.parallelism.cp, attention.core(context, layer)
    size = _keys_values_bytes(context, sizes)
    windowed = sizes.keys < context.sequence
    share = sizes.keys / cp if windowed else context.sequence / cp
    counted = sum(one.model_flops for one in attention.kernels(context, layer, _pass(part))) / cp
    found: list[Piece] = []
    for step in range(cp):
        own = step == 0
        block = replace(sizes, keys=round(share if own or windowed else share / 2))
        kernels = tuple(
            replace(one, model_flops=counted if one.model_flops else 0.0)
            for one in attention.fused(context, block, _pass(part), causal=own and not windowed)
        )
        # blocks beside this block's attention; in the backward, with the gradients of the one before
        sent = (size if step < cp - 1 else 0.0) + (size if part == "input" and step else 0.0)
        if sent:
            found.append(Exchange("ring-shift", "cp", sent, True, part))
        found.append(Run((*kernels, *_merge(context, sizes, step, part)), part))
    if part == "input":  # the last block's gradients go home
        found.append(Exchange("ring-shift", "cp", size, False, part))
    return found


def _merge(context: Context, sizes: Core, step: int, part: Part) -> tuple[Kernel, ...]:
    """What a block's result is added to: outputs scaled anew, or gradients of queries, keys and values."""
    if not step:
        return ()
    outputs = context.tokens * sizes.heads * sizes.value_width
    gradients = context.tokens * (
        sizes.heads * sizes.width + sizes.kv_heads * (sizes.width + sizes.value_width)
    )
    elements = 3.0 * (outputs if part == "forward" else gradients)  # two reads, one write
    name = "merge outputs" if part == "forward" else "add gradients"
    return (
        Kernel(
            name, "elementwise", flops=elements, bytes=context.bytes * elements,
            launches=2 if part == "forward" else 3, precision=context.precision,
        ),
    )  # fmt: skip


@way("all-gather")
def _all_gather(context: Context, layer: int, part: Part) -> list[Piece]:
    size = _keys_values_bytes(context, attention.core(context, layer)) * context.parallelism.cp
    found: list[Piece] = [
        Exchange("all-gather", "cp", size, False, part),
        Run(attention.kernels(context, layer, _pass(part)), part),
    ]
    if part == "input":
        found.append(Exchange("reduce-scatter", "cp", size, False, part))
    return found


@way("all-to-all")
def _all_to_all(context: Context, layer: int, part: Part) -> list[Piece]:
    cp, sizes = context.parallelism.cp, attention.core(context, layer)
    # sizes are of the heads that a rank works on: where there are fewer of keys and values, they are copied
    each = context.tokens * cp * context.bytes
    output = float(each * sizes.heads * sizes.value_width)
    queries = each * sizes.heads * sizes.width
    everything = float(queries + each * sizes.kv_heads * (sizes.width + sizes.value_width))
    first, last = (everything, output) if part == "forward" else (output, everything)
    return [
        Exchange("all-to-all", "cp", first, False, part),
        Run(attention.kernels(context, layer, _pass(part)), part),
        Exchange("all-to-all", "cp", last, False, part),
    ]
