"""Sizes of a transformer's parameter tensors, by its fields."""

from __future__ import annotations

from simulator.spec import Transformer


def attention_tensors(model: Transformer) -> list[tuple[str, int, int]]:
    """(name, inputs, outputs) of the attention's weight matrices."""
    h, a, d = model.hidden, model.heads, model.head_dim
    latent = model.latent_attention
    if latent is None:
        return [("qkv", h, (a + 2 * model.kv_heads) * d), ("proj", a * d, h)]
    query = a * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    tensors = [("kv_down", h, latent.kv_lora_rank + latent.qk_rope_head_dim)]
    if latent.q_lora_rank:
        tensors += [("q_down", h, latent.q_lora_rank), ("q_up", latent.q_lora_rank, query)]
    else:
        tensors += [("q", h, query)]
    up = a * (latent.qk_nope_head_dim + latent.v_head_dim)
    return [*tensors, ("kv_up", latent.kv_lora_rank, up), ("proj", a * latent.v_head_dim, h)]


def attention_parameters(model: Transformer) -> list[int]:
    """Elements of each tensor of the attention, biases and inner norms too."""
    sizes = []
    for name, inputs, outputs in attention_tensors(model):
        sizes.append(inputs * outputs)
        biased = model.proj_bias if name == "proj" else model.qkv_bias
        if biased and model.latent_attention is None:
            sizes.append(outputs)
    latent = model.latent_attention
    if latent is not None:
        sizes += [latent.kv_lora_rank, latent.q_lora_rank] if latent.q_lora_rank else [latent.kv_lora_rank]
    return [*sizes, *(size for _, size in inner_parameters(model))]


def inner_parameters(model: Transformer) -> list[tuple[str, int]]:
    """(name, elements) of what attention has beside its matrices: norms of queries and keys, sinks."""
    found = []
    if model.qk_norm:
        times = (model.heads, model.kv_heads) if model.qk_norm_whole else (1, 1)
        found += [(f"{name} norm", model.head_dim * n) for name, n in zip("qk", times, strict=True)]
    if model.attention_sinks:
        found.append(("sinks", model.heads))
    return found


def norm_parameters(model: Transformer) -> list[tuple[str, int]]:
    """(name, elements) of one norm over the hidden width."""
    kinds = (("weight", model.norm_weights), ("bias", model.norm_bias and model.norm_weights))
    return [(name, model.hidden) for name, there in kinds if there]


def router_parameters(model: Transformer) -> int:
    """Elements of an MoE layer's router, its bias and the shared experts' gate."""
    experts = model.experts
    assert experts is not None
    return (
        model.hidden * experts.count
        + (experts.count if experts.router_bias else 0)
        + (model.hidden if experts.shared_gate else 0)
    )


def mlp_parameters(model: Transformer, ffn: int = 0) -> list[int]:
    """Elements of each tensor of a dense MLP of width `ffn` (the model's if 0)."""
    width, h = ffn or model.ffn, model.hidden
    first = width * (2 if model.gated_mlp else 1)
    sizes = [h * first, width * h]
    if model.linear_bias:
        sizes = [h * first, first, width * h, h]
    return sizes


def experts_parameters(model: Transformer) -> tuple[int, int, int]:
    """(all routed experts, those that a token visits, router and shared experts) of an MoE layer."""
    experts = model.experts
    assert experts is not None
    one = sum(mlp_parameters(model, experts.ffn))
    router = router_parameters(model)
    shared = sum(mlp_parameters(model, experts.shared_ffn)) if experts.shared_ffn else 0
    return experts.count * one, experts.top_k * one, router + shared
