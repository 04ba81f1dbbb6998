"""The blocks at the ends of a transformer: embedding, and norm, head and loss."""

from __future__ import annotations

from simulator.model.activations import embedding_bytes, head_bytes
from simulator.model.blocks import Block, Exchange, Kernel, Parameter, Piece, Run
from simulator.model.context import Context
from simulator.model.linear import Linear, input_gradient, weight_gradient
from simulator.model.linear import forward as product
from simulator.model.shapes import norm_parameters
from simulator.model.working import head_buffers, head_working, logit_bytes


def _padded(context: Context) -> int:
    """The vocabulary, padded so that TP divides it (Megatron-LM pads to 128 x tp)."""
    tp = context.tp
    return context.model.vocab if tp == 1 else -(-context.model.vocab // (128 * tp)) * 128 * tp


def embedding_block(context: Context) -> Block:
    """Look-up, position table, dropout; with TP the table is split by vocabulary and sums are reduced."""
    model = context.model
    parameters = [Parameter("token embedding", _padded(context) * model.hidden // context.tp)]
    if model.position == "learned":
        parameters.append(
            Parameter("position embedding", model.max_positions * model.hidden, replicated=True)
        )
    elements = context.tokens * model.hidden
    look_up = Kernel(
        "embedding", "embedding", bytes=3.0 * context.bytes * elements, launches=3,
        precision=context.precision,
    )  # fmt: skip
    scatter = Kernel(
        "embedding grad", "embedding", bytes=6.0 * context.bytes * elements, launches=3,
        precision=context.precision,
    )  # fmt: skip
    forward: list[Piece] = [Run((look_up,))]
    if context.tp > 1:
        kind = "reduce-scatter" if context.parallelism.sequence_parallel else "all-reduce"
        forward.append(Exchange(kind, "tp", context.hidden_bytes))
    backward: list[Piece] = []
    if context.tp > 1 and context.parallelism.sequence_parallel:
        backward.append(Exchange("all-gather", "tp", context.hidden_bytes, False, "weight"))
    backward.append(Run((scatter,), "weight", tuple(reversed(range(len(parameters))))))
    share = context.tp if context.parallelism.sequence_parallel else 1
    return Block(
        "embedding",
        tuple(parameters),
        tuple(forward),
        tuple(backward),
        activation_bytes=embedding_bytes(context),
        working_bytes=float(context.bytes * parameters[0].numel),  # a whole gradient, then added to the rest
        boundary_bytes=context.hidden_bytes / share,
        kind="embedding",
    )


def head_block(context: Context) -> Block:
    """Last norm, logits, (vocabulary-parallel) cross-entropy."""
    model, recipe = context.model, context.recipe
    parameters = [
        Parameter(f"last norm {name}", size, replicated=True) for name, size in norm_parameters(model)
    ]
    vocab = _padded(context)
    norms = tuple(range(len(parameters)))
    weight: tuple[int, ...] = ()
    if not model.tied_embeddings or context.parallelism.pp > 1:
        parameters.append(Parameter("head", vocab * model.hidden // context.tp))
        weight = (len(parameters) - 1,)
    if model.head_bias:
        parameters.append(Parameter("head bias", vocab // context.tp))
        weight = (*weight, len(parameters) - 1)
    head = Linear("logits", model.hidden, vocab, "column", weight, counted=model.vocab / vocab)
    logits = context.tokens * vocab / context.tp
    norm = context.elementwise("norm", *recipe.norm, op="norm")
    loss, loss_grad = _loss(context, logits)
    forward: list[Piece] = [Run((norm,))]
    sums: list[Piece] = []
    if context.tp > 1:
        if context.parallelism.sequence_parallel:
            forward.append(Exchange("all-gather", "tp", context.hidden_bytes))
        sums = [Exchange("all-reduce", "tp", 4.0 * context.tokens) for _ in range(3)]  # max, target, sum
    forward += [Run((product(context, head),)), *sums, Run((loss,))]
    gradient: list[Piece] = [Run((loss_grad, input_gradient(context, head)), "input")]
    if context.tp > 1:
        kind = "reduce-scatter" if context.parallelism.sequence_parallel else "all-reduce"
        gradient.append(Exchange(kind, "tp", context.hidden_bytes, True, "input"))
    gradient.append(Run((weight_gradient(context, head),), "weight", weight))
    norm_grad = context.elementwise("norm grad", recipe.norm[0] * 2, recipe.norm[1] + 1, op="norm")
    gradient.append(Run((norm_grad,), "input", tuple(reversed(norms))))
    return Block(
        "head",
        tuple(parameters),
        tuple(forward),
        tuple(gradient),
        activation_bytes=head_bytes(context, logits * logit_bytes(context)[0]),
        working_bytes=head_working(context, logits),
        buffers=head_buffers(context),
        boundary_bytes=context.hidden_bytes,
        kind="head",
    )


def _loss(context: Context, logits: float) -> tuple[Kernel, Kernel]:
    """Cross-entropy forward and backward. Fused it reads the logits twice and writes their gradient in place."""
    forward, backward = context.recipe.loss
    launches = (4, 2)
    if context.fused_loss:
        forward, backward, launches = 3.0 * context.bytes, 2.0 * context.bytes, (2, 1)
    return (
        Kernel(
            "cross-entropy", "cross-entropy", flops=6 * logits, bytes=forward * logits,
            launches=launches[0], precision=context.precision,
        ),
        Kernel(
            "cross-entropy grad", "cross-entropy", flops=2 * logits, bytes=backward * logits,
            launches=launches[1], precision=context.precision,
        ),
    )  # fmt: skip
