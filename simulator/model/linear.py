"""Tensor-parallel linear layers (Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022,
arXiv:2205.05198): the pieces of their passes.

A column-parallel layer splits its outputs, a row-parallel one its inputs. With sequence parallelism the
all-reduce around them becomes an all-gather before and a reduce-scatter after. In the backward the
gathered input is fetched again beside the input gradient's GEMM, and the input gradient is reduced beside
the weight gradient's.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model import tp_overlap
from simulator.model.blocks import Exchange, Kernel, Piece, Run
from simulator.model.context import Context


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix: `inputs` x `outputs` whole; `split`: "column", "row" or "" (every rank has it all).

    `weight`: indices of its parameters in the block. `counted`: the part of its FLOPs that is the model's
    (vocabularies are padded).

    Where every rank has all of the matrix, each works on its own tokens with sequence parallelism; without,
    all do the same, which counts once.
    """

    name: str
    inputs: int
    outputs: int
    split: str
    weight: tuple[int, ...]
    counted: float = 1.0

    def local(self, context: Context) -> tuple[float, float]:
        """(inputs, outputs) on one rank."""
        inputs = self.inputs / (context.tp if self.split == "row" else 1)
        outputs = self.outputs / (context.tp if self.split == "column" else 1)
        return inputs, outputs

    def tokens(self, context: Context) -> float:
        """Tokens that one rank works on."""
        return context.tokens if self.split else context.sharded_tokens

    def own_part(self, context: Context) -> float:
        """The part of a rank's FLOPs that counts as the model's."""
        return self.counted * (1.0 if self.split else context.own_part)


def _exchange(
    context: Context, kind: str, part: str, *, overlaps: bool = False, width: int = 0
) -> list[Piece]:
    """Over TP, of all tokens' activations of `width` elements (hidden if 0)."""
    if context.tp == 1:
        return []
    size = context.hidden_bytes * ((width or context.model.hidden) / context.model.hidden)
    return [Exchange(kind, "tp", size, overlaps, part)]  # type: ignore[arg-type]


def column_forward(context: Context, linears: list[Linear], width: int = 0) -> list[Piece]:
    """Column-parallel layers that share their input, `width` elements a token (hidden if 0) in all."""

    def product(tokens: float) -> tuple[Kernel, ...]:
        return tuple(forward(context, one, tokens) for one in linears)

    if tp_overlap.applies(context):
        return tp_overlap.gathered(context, product, "forward", width)
    pieces: list[Piece] = []
    if context.parallelism.sequence_parallel:
        pieces += _exchange(context, "all-gather", "forward", width=width)
    return [*pieces, Run(product(0))]


def row_forward(context: Context, linear: Linear) -> list[Piece]:
    """A row-parallel layer: it leaves partial sums."""
    if tp_overlap.applies(context):
        return tp_overlap.scattered(context, lambda tokens: (forward(context, linear, tokens),), "forward")
    kind = "reduce-scatter" if context.parallelism.sequence_parallel else "all-reduce"
    return [Run((forward(context, linear),)), *_exchange(context, kind, "forward")]


def forward(context: Context, linear: Linear, tokens: float = 0) -> Kernel:
    """The product, of so many tokens (0: of all that the rank works on)."""
    inputs, outputs = linear.local(context)
    own, rows = linear.own_part(context), tokens or linear.tokens(context)
    return context.gemm(linear.name, rows, outputs, inputs, counted=own)


def input_gradient(context: Context, linear: Linear, tokens: float = 0) -> Kernel:
    """dX = dY W, of so many tokens (0: of all that the rank works on)."""
    inputs, outputs = linear.local(context)
    tokens, own = tokens or linear.tokens(context), linear.own_part(context)
    return context.gemm(f"{linear.name} dgrad", tokens, inputs, outputs, layout="NN", counted=own)


def weight_gradient(context: Context, linear: Linear) -> Kernel:
    """dW = dY^T X, added to the gradient there is."""
    inputs, outputs = linear.local(context)
    layout = "NT-accumulate" if context.recipe.accumulates_fp32 else "NT"
    tokens, own = linear.tokens(context), linear.own_part(context)
    return context.gemm(f"{linear.name} wgrad", outputs, inputs, tokens, layout=layout, counted=own)


def column_backward(context: Context, linears: list[Linear], width: int = 0) -> list[Piece]:
    """Backward of column-parallel layers whose inputs are `width` elements a token (hidden if 0) in all."""
    pieces: list[Piece] = []
    if context.parallelism.sequence_parallel:  # the input again, for the weight gradient
        pieces += _exchange(context, "all-gather", "input", overlaps=True, width=width)
    pieces.append(Run(tuple(input_gradient(context, one) for one in linears), "input"))
    kind = "reduce-scatter" if context.parallelism.sequence_parallel else "all-reduce"
    pieces += _exchange(context, kind, "input", overlaps=True, width=width)
    pieces.append(weights(context, linears))
    return pieces


def row_backward(context: Context, linears: list[Linear]) -> list[Piece]:
    """Backward of row-parallel layers: with sequence parallelism the output's gradient is gathered."""

    def product(tokens: float) -> tuple[Kernel, ...]:
        return tuple(input_gradient(context, one, tokens) for one in linears)

    if tp_overlap.applies(context):
        return [*tp_overlap.gathered(context, product, "input"), weights(context, linears)]
    pieces: list[Piece] = []
    if context.parallelism.sequence_parallel:
        pieces += _exchange(context, "all-gather", "input")
    return [*pieces, Run(product(0), "input"), weights(context, linears)]


def weights(context: Context, linears: list[Linear]) -> Run:
    """The weight gradients; after it the gradients of the layers' parameters are whole."""
    kernels = [weight_gradient(context, one) for one in linears]
    done = tuple(index for one in reversed(linears) for index in reversed(one.weight))
    return Run(tuple(kernels), "weight", done)
