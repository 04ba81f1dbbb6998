"""Tensor-parallel linear layers (Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022,
arXiv:2205.05198): the pieces of their passes.

A column-parallel layer splits its outputs, a row-parallel one its inputs. With sequence parallelism the
all-reduce around them becomes an all-gather before and a reduce-scatter after. In the backward the
gathered input is fetched again beside the input gradient's GEMM, and the input gradient is reduced beside
the weight gradient's.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def before(context: Context, part: str = "forward", width: int = 0) -> list[Piece]:
    """What a column-parallel layer needs first: with sequence parallelism, its whole input."""
    if not context.parallelism.sequence_parallel:
        return []
    return _exchange(context, "all-gather", part, overlaps=context.tp_overlap, width=width)


def after(context: Context, part: str = "forward") -> list[Piece]:
    """What a row-parallel layer leaves: partial sums."""
    kind = "reduce-scatter" if context.parallelism.sequence_parallel else "all-reduce"
    return _exchange(context, kind, part, overlaps=context.tp_overlap)


def forward(context: Context, linear: Linear) -> Kernel:
    """The product."""
    inputs, outputs = linear.local(context)
    own = linear.own_part(context)
    return context.gemm(linear.name, linear.tokens(context), outputs, inputs, counted=own)


def input_gradient(context: Context, linear: Linear) -> Kernel:
    """dX = dY W."""
    inputs, outputs = linear.local(context)
    tokens, own = linear.tokens(context), linear.own_part(context)
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
    pieces: list[Piece] = []
    if context.parallelism.sequence_parallel:
        pieces += _exchange(context, "all-gather", "input", overlaps=context.tp_overlap)
    pieces.append(Run(tuple(input_gradient(context, one) for one in linears), "input"))
    pieces.append(weights(context, linears))
    return pieces


def weights(context: Context, linears: list[Linear]) -> Run:
    """The weight gradients; after it the gradients of the layers' parameters are whole."""
    kernels = [weight_gradient(context, one) for one in linears]
    done = tuple(index for one in reversed(linears) for index in reversed(one.weight))
    return Run(tuple(kernels), "weight", done)
