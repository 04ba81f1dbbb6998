"""Bytes that a layer keeps from its forward for its backward (Korthikanti et al. 2022, arXiv:2205.05198,
section 4), from the tensors that are saved.

For a GPT layer without fused attention they add up to s b h (34 + 5 a s / h), with tensor parallelism of
degree t to s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism to 1 / t of all.
"""

from __future__ import annotations

from simulator.model.attention import core
from simulator.model.context import Context
from simulator.model.experts import routed_tokens, sent_tokens


def layer_bytes(context: Context, layer: int, recompute: str) -> float:
    """`recompute`: "none", "selective" or "full"."""
    model, parallelism = context.model, context.parallelism
    tokens, h, two = float(context.tokens), model.hidden, context.bytes
    t = context.tp
    outside = 1.0 / (t if parallelism.sequence_parallel else 1)  # share of what TP does not split
    if recompute == "full":
        return tokens * h * two * outside
    dropout = 1.0 if model.dropout > 0 else 0.0
    norms = 2 * model.norms_per_layer  # inputs and outputs
    kept = tokens * h * (norms * two + 2 * dropout) * outside  # and masks
    kept += attention_bytes(context)
    kept += tokens * _latent_width(context) * two * outside
    kept += _mlp_bytes(context, layer)
    if recompute != "selective":
        kept += scores_bytes(context, layer)
    if context.attention:
        sizes = core(context, layer)
        kept += 4.0 * context.batch * sizes.heads * sizes.query  # log-sum-exp
    return kept


def attention_bytes(context: Context) -> float:
    """Queries, keys, values and the attention's output."""
    return context.tokens * _attention_width(context) * context.bytes / context.tp


def scores_bytes(context: Context, layer: int) -> float:
    """What unfused attention keeps of its scores; 0 if it is fused."""
    if context.attention:
        return 0.0
    sizes, two = core(context, layer), context.bytes
    scores = context.batch * sizes.heads * sizes.query * sizes.keys
    return scores * (two * 2 + 1.0 if context.model.dropout > 0 else two)


def mlp_streams(context: Context) -> int:
    """Tensors of the MLP's width that are kept, before and after the activation."""
    if not context.model.gated_mlp:
        return 2
    return 3 if context.recipe.fused_gate else 4  # eager PyTorch keeps the activated gate apart


def _attention_width(context: Context) -> float:
    """Elements a token of queries, keys, values and the attention's output, whole."""
    model = context.model
    latent = model.latent_attention
    if latent is None:
        return (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    return model.heads * (2 * model.head_dim + 2 * latent.v_head_dim)


def _latent_width(context: Context) -> float:
    latent = context.model.latent_attention
    return latent.kv_lora_rank + latent.q_lora_rank + latent.qk_rope_head_dim if latent else 0.0


def _mlp_bytes(context: Context, layer: int) -> float:
    model, two = context.model, context.bytes
    streams = mlp_streams(context)
    if not model.is_moe_layer(layer):
        return context.tokens * model.ffn * two * streams / context.tp
    experts = model.experts
    assert experts is not None
    # what the experts get, before and after the activation; what comes back, for the weights' gradient
    width = (streams * experts.ffn / context.expert_tp + model.hidden) * two
    routed = routed_tokens(context) * context.expert_imbalance * width
    routed += sent_tokens(context) * model.hidden * two
    shared = context.tokens * experts.shared_ffn * two * streams / context.tp
    return routed + shared


def embedding_bytes(context: Context) -> float:
    """The dropout's mask."""
    share = context.tp if context.parallelism.sequence_parallel else 1
    return context.tokens * context.model.hidden / share if context.model.dropout else 0.0


def head_bytes(context: Context, logits: float) -> float:
    """Inputs of the last norm and of the head, and bytes of the logits."""
    share = context.tp if context.parallelism.sequence_parallel else 1
    return context.tokens * context.model.hidden * 2 * context.bytes / share + logits
