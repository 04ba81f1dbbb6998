"""Memory that lives only while a block's backward runs, and buffers that its modules keep for the whole step.

A layer's backward is followed through the places where most is live: the gradients it makes, less what it
kept and has freed by then. What full recomputation makes again is live there too.

Sources, beside Korthikanti et al. 2022 (arXiv:2205.05198) for what is kept:

- TransformerEngine adds weight gradients straight to the fp32 ones and returns a placeholder of the weight's
  shape, one for each shape, kept for good (transformer_engine/pytorch/module/base.py, `get_dummy_wgrad`).
- Megatron-LM's output layer makes such a placeholder anew each time, and gathers its input into a buffer that
  stays (megatron/core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`).
- A fused cross-entropy leaves the logits' gradient where the logits were (transformer_engine/common/triton/
  cross_entropy.py); Megatron-LM's own keeps a softmax in fp32 and works in place
  (tensor_parallel/cross_entropy.py); PyTorch's keeps log-probabilities in fp32, and its backward holds two
  more tensors of that size (aten `nll_loss`, `log_softmax`), and the logits too unless they are let go, as
  torchtitan does (train.py).
"""

from __future__ import annotations

from simulator.model.activations import attention_bytes, mlp_streams, scores_bytes
from simulator.model.attention import core
from simulator.model.context import Context
from simulator.model.experts import routed_tokens, sent_tokens

Buffers = tuple[tuple[str, float], ...]


def layer_working(context: Context, layer: int, kept: float, whole: float, selective: bool) -> float:
    """Bytes that a layer's backward needs beside what is kept.

    `kept`, `whole`: what the layer keeps, and what it would without recomputation.
    """
    model, element = context.model, context.bytes
    hidden = context.sharded_tokens * model.hidden * element  # of the residual stream
    gathered = context.hidden_bytes if context.parallelism.sequence_parallel and context.tp > 1 else 0.0
    rows, width, exchanged = _mlp_rows(context, layer)
    inside = rows * width * element  # one tensor inside the MLP
    gates = 2 if model.gated_mlp else 1
    freed = inside * (mlp_streams(context) - gates)  # outputs of the activation
    second = hidden + gathered + exchanged + inside  # gradient of the second product's input
    middle = hidden + exchanged + inside * (1 + gates) - freed
    first = hidden + 2 * max(gathered, exchanged, hidden) + inside * gates - freed - inside * gates
    sizes = core(context, layer)
    attention = hidden + attention_bytes(context) - inside * mlp_streams(context)
    scores = scores_bytes(context, layer)
    if scores:
        attention += 2.0 * element * context.batch * sizes.heads * sizes.query * sizes.keys
        attention += scores if selective else 0.0
    return max(whole - kept if not selective else 0.0, 0.0) + max(second, middle, first, attention)


def _mlp_rows(context: Context, layer: int) -> tuple[float, float, float]:
    """(tokens, width a token inside the MLP on this rank, bytes of gradients on their way from experts)."""
    model = context.model
    experts = model.experts
    if experts is None or not model.is_moe_layer(layer):
        return float(context.tokens), model.ffn / context.tp, 0.0
    rows = routed_tokens(context) * context.expert_imbalance
    on_the_way = (rows + sent_tokens(context)) * model.hidden * context.bytes
    return rows, experts.ffn / context.expert_tp, on_the_way


def layer_buffers(context: Context, weights: tuple[tuple[float, float], ...]) -> Buffers:
    """Placeholders of a layer's weights, shapes (inputs, outputs) on this rank."""
    if not context.recipe.placeholders:
        return ()
    return tuple((f"placeholder {a:g} x {b:g}", a * b * context.bytes) for a, b in weights)


def head_working(context: Context, logits: float) -> float:
    """Bytes that head and loss need in their backward beside what is kept; `logits`: a rank's elements."""
    model, element = context.model, context.bytes
    kept, beside = logit_bytes(context)
    loss = logits * beside
    product = context.hidden_bytes * (1 + (1 / context.tp if context.parallelism.sequence_parallel else 0))
    product += logits * (element - kept)  # the gradient has taken the place of what was kept
    if context.recipe.accumulates_fp32:
        product += logits / context.tokens * model.hidden * element
    return max(loss, product)


def logit_bytes(context: Context) -> tuple[float, float]:
    """(bytes a logit kept for the backward, live beside them in it)."""
    element = float(context.bytes)
    if context.fused_loss:
        return element, 0.0
    if context.recipe.accumulates_fp32:
        return 4.0, element
    return 4.0, 8.0 if context.recipe.frees_logits else 8.0 + element


def head_buffers(context: Context) -> Buffers:
    """The gathered input of the head."""
    if not (context.parallelism.sequence_parallel and context.tp > 1 and context.recipe.accumulates_fp32):
        return ()
    return (("gathered input of the head", context.hidden_bytes),)
