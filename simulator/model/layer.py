"""One transformer layer as a block: norm, attention, norm, MLP or experts, and back."""

from __future__ import annotations

from dataclasses import replace

from simulator.model import attention, context_parallel, experts, projections
from simulator.model.activations import layer_bytes
from simulator.model.attention import without_count
from simulator.model.blocks import Block, Exchange, Kernel, Parameter, Piece, Run
from simulator.model.context import Context
from simulator.model.linear import (
    Linear,
    column_backward,
    column_forward,
    row_backward,
    row_forward,
)
from simulator.model.shapes import (
    attention_tensors,
    inner_parameters,
    mlp_parameters,
    norm_parameters,
    router_parameters,
)
from simulator.model.working import layer_buffers, layer_working
from simulator.spec import Recompute


class LayerBuilder:
    """Collects the parameters of a layer in order of registration, and the pieces of its passes."""

    def __init__(self, context: Context, layer: int):
        self.context = context
        self.layer = layer
        self.parameters: list[Parameter] = []
        model = context.model
        self.is_moe = model.is_moe_layer(layer)
        self.norms = context.model.norms_per_layer
        self.norm1 = self._norm("norm1")
        self.attention_in, self.attention_out = self._attention()
        self.inner_norms = self._inner_norms()
        self.norm2 = self._norm("norm2") if self.norms > 1 else ()
        after = ("norm after attention", "norm after mlp") if self.norms > 2 else ()
        self.after = [self._norm(name) for name in after]
        self.router, self.expert_indices = self._routed() if self.is_moe else (-1, ())
        ffn = model.ffn
        if self.is_moe:
            assert model.experts is not None
            ffn = model.experts.shared_ffn
        self.mlp = self._mlp(ffn) if ffn else None

    # ---------------------------------------------------------------------------------- parameters

    def _add(self, name: str, numel: float, **about: bool) -> int:
        self.parameters.append(Parameter(f"layer {self.layer} {name}", max(1, round(numel)), **about))
        return len(self.parameters) - 1

    def _norm(self, name: str) -> tuple[int, ...]:
        kinds = norm_parameters(self.context.model)
        return tuple(self._add(f"{name} {kind}", size, replicated=True) for kind, size in kinds)

    def _linear(self, name: str, inputs: int, outputs: int, split: str, bias: bool) -> Linear:
        tp = self.context.tp
        index = [self._add(f"{name} weight", inputs * outputs / (tp if split else 1), replicated=not split)]
        if bias:
            share = tp if split == "column" else 1
            index.append(self._add(f"{name} bias", outputs / share, replicated=split != "column"))
        return Linear(name, inputs, outputs, split, tuple(index))

    def _attention(self) -> tuple[list[Linear], Linear]:
        model = self.context.model
        found = []
        for name, inputs, outputs in attention_tensors(model):
            split = {"proj": "row", "kv_down": "", "q_down": ""}.get(name, "column")
            bias = bool(model.proj_bias if name == "proj" else model.qkv_bias)
            bias = bias and model.latent_attention is None
            found.append(self._linear(name, inputs, outputs, split, bias))
        return found[:-1], found[-1]

    def _inner_norms(self) -> tuple[int, ...]:
        model, found = self.context.model, []
        for name, size in inner_parameters(model):
            found.append(self._add(name, size, replicated=True))
        if model.latent_attention:
            ranks = (model.latent_attention.kv_lora_rank, model.latent_attention.q_lora_rank)
            found += [self._add("latent norm", rank, replicated=True) for rank in ranks if rank]
        return tuple(found)

    def _mlp(self, ffn: int) -> tuple[Linear, Linear]:
        model = self.context.model
        first = ffn * (2 if model.gated_mlp else 1)
        return (
            self._linear("fc1", model.hidden, first, "column", model.linear_bias),
            self._linear("fc2", ffn, model.hidden, "row", model.linear_bias),
        )

    def _routed(self) -> tuple[int, tuple[int, ...]]:
        context, model = self.context, self.context.model
        assert model.experts is not None
        router = self._add("router", router_parameters(model), replicated=True)
        local = model.experts.count / context.parallelism.ep / context.expert_tp
        sizes = mlp_parameters(model, model.experts.ffn)
        names = ("up", "up bias", "down", "down bias") if len(sizes) == 4 else ("up", "down")
        found = tuple(
            self._add(f"experts {name}", size * local, expert=True)
            for name, size in zip(names, sizes, strict=True)
        )
        return router, found

    @property
    def weights(self) -> tuple[tuple[float, float], ...]:
        """Shapes (inputs, outputs) of the weight matrices on this rank, one expert for all."""
        context, model = self.context, self.context.model
        found = [one.local(context) for one in (*self.attention_in, self.attention_out, *(self.mlp or ()))]
        if self.is_moe and model.experts is not None:
            width = model.experts.ffn / context.expert_tp
            found += [(model.hidden, width * (2 if model.gated_mlp else 1)), (width, model.hidden)]
        return tuple(found)

    # -------------------------------------------------------------------------------------- passes

    def forward(self) -> list[Piece]:
        context, recipe = self.context, self.context.recipe
        layout = context.elementwise("bias, rotary, layout", *recipe.layout, width=self._local_width())
        norm = context.elementwise("norm", *recipe.norm, op="norm")
        residual = context.elementwise("dropout, residual", *recipe.residual)
        closing = (norm, residual) if self.after else (residual,)
        return [
            *projections.forward_pieces(context, self.attention_in, (*self._small(), norm), layout),
            *context_parallel.pieces(context, self.layer, "forward"),
            *row_forward(context, self.attention_out),
            Run((*closing, *((norm,) if self.norms > 1 else ()))),
            *self._mlp_forward(),
            Run(closing),
        ]

    def _local_width(self) -> float:
        """Layout kernels work on whole sequences of this rank's heads."""
        context = self.context
        share = context.tokens / context.sharded_tokens
        return context.model.hidden / context.tp * share

    def _small(self) -> list[Kernel]:
        recipe, context = self.context.recipe, self.context
        found = []
        if recipe.split_launches:
            found.append(context.elementwise("small kernels", 0.0, recipe.split_launches))
        if recipe.casts:
            weights = sum(one.numel for one in self.parameters)
            share = recipe.casts * weights / context.sharded_tokens / context.bytes
            found.append(context.elementwise("casts of weights", share, 4, width=1.0))
        return found

    def _activation(self, ffn: float, times: float) -> Kernel:
        context = self.context
        moved, launches = context.recipe.activation
        streams = 1.5 if context.model.gated_mlp else 1.0
        share = context.tokens / context.sharded_tokens
        width = ffn / context.tp * share
        return context.elementwise("activation", moved * streams * times, launches, width=width)

    def _mlp_forward(self) -> list[Piece]:
        context = self.context
        pieces: list[Piece] = []
        if self.is_moe:
            pieces += experts.forward_pieces(context)
        if self.mlp is not None:
            up, down = self.mlp
            pieces += [
                *column_forward(context, [up]),
                Run((self._activation(down.inputs, 1.0),)),
                *row_forward(context, down),
            ]
        return pieces

    def backward(self) -> list[Piece]:
        context, recipe = self.context, self.context.recipe
        times = recipe.backward
        norm, launches = recipe.norm
        residual = context.elementwise("dropout, residual grad", recipe.residual[0] * times / 2, 1)
        norm_grad = context.elementwise("norm grad", norm * times, launches + 1, op="norm")
        closing = (residual, norm_grad) if self.after else (residual,)
        done = [tuple(reversed(one)) for one in self.after] or [(), ()]
        layout = context.elementwise(
            "layout grad", recipe.layout[0] * times / 2, recipe.layout[1], width=self._local_width()
        )
        return [
            Run((*self._small(), *closing), "input", done[1]),
            *self._mlp_backward(),
            Run(
                (*((norm_grad,) if self.norms > 1 else ()), *closing),
                "input",
                (*reversed(self.norm2), *done[0]),
            ),
            *row_backward(context, [self.attention_out]),
            *context_parallel.pieces(context, self.layer, "input"),
            Run((layout,), "input", tuple(reversed(self.inner_norms))),
            *projections.backward_pieces(context, self.attention_in),
            Run((norm_grad,), "input", tuple(reversed(self.norm1))),
        ]

    def _mlp_backward(self) -> list[Piece]:
        context = self.context
        pieces: list[Piece] = []
        if self.mlp is not None:
            up, down = self.mlp
            pieces += row_backward(context, [down])
            activation = self._activation(down.inputs, context.recipe.backward)
            pieces.append(Run((activation,), "input"))
            pieces += column_backward(context, [up])
        if self.is_moe:
            done = tuple(reversed(self.expert_indices))
            pieces += experts.backward_pieces(context, done, self.router)
        return pieces


def layer_block(context: Context, layer: int, recompute: Recompute, whole: bool) -> Block:
    """The block of one layer, what it recomputes (`whole`: all of it) already in its backward."""
    builder = LayerBuilder(context, layer)
    forward_pieces = merge(builder.forward())
    again: list[Piece] = []
    if whole:
        needed = forward_pieces
        if context.recipe.stops_early and builder.mlp is not None:
            needed = _until_last_product(forward_pieces)
        again = [_again(piece) for piece in needed]
    elif recompute.kind == "selective":
        core = attention.recomputed(context, layer)
        again = [Run(core, "recompute")] if core else []
    kept = "full" if whole else recompute.kind if recompute.kind == "selective" else "none"
    kept_bytes, all_bytes = layer_bytes(context, layer, kept), layer_bytes(context, layer, "none")
    return Block(
        name=f"layer {layer}",
        parameters=tuple(builder.parameters),
        forward=tuple(forward_pieces),
        backward=(*again, *merge(builder.backward())),
        activation_bytes=kept_bytes,
        working_bytes=layer_working(context, layer, kept_bytes, all_bytes, kept == "selective"),
        buffers=layer_buffers(context, builder.weights),
        boundary_bytes=context.hidden_bytes / (context.tp if context.parallelism.sequence_parallel else 1),
    )


def _until_last_product(pieces: list[Piece]) -> list[Piece]:
    """A forward without its last product and what follows: no backward needs what they make."""
    for place in reversed(range(len(pieces))):
        piece = pieces[place]
        if not isinstance(piece, Run):
            continue
        for number in reversed(range(len(piece.kernels))):
            if piece.kernels[number].op == "gemm":
                return [*pieces[:place], replace(piece, kernels=piece.kernels[:number])]
    return pieces


def _again(piece: Piece) -> Piece:
    if isinstance(piece, Exchange):
        return Exchange(piece.kind, piece.axis, piece.size_bytes, piece.overlaps, "recompute")
    return Run(without_count(piece.kernels), "recompute", settles=piece.settles)


def merge(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring runs of one part with nothing to report between them become one."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if (
            isinstance(piece, Run)
            and isinstance(last, Run)
            and last.part == piece.part
            and not last.gradients
            and not piece.settles
        ):
            result[-1] = Run((*last.kernels, *piece.kernels), piece.part, piece.gradients, last.settles)
        else:
            result.append(piece)
    return result
