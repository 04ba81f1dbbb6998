"""llama and its heirs: RMSNorm, rotary positions, gated MLPs; mixtures of experts, Gemma, DeepSeek."""

from __future__ import annotations

from simulator.formats.foreign import Fields
from simulator.formats.huggingface_architectures import (
    ACTIVATIONS,
    Values,
    architecture,
    dropout_of,
    needed,
    tied,
)
from simulator.spec import Experts, LatentAttention


def _base(fields: Fields) -> Values:
    """What llama's heirs share: RMSNorm, rotary positions, a gated MLP, no biases."""
    heads, hidden = needed(fields, "num_attention_heads"), needed(fields, "hidden_size")
    return {
        "layers": needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.whole("num_key_value_heads") or heads,
        "head_dim": fields.whole("head_dim") or 0,
        "ffn": needed(fields, "intermediate_size"),
        "vocab": needed(fields, "vocab_size"),
        "gated_mlp": True,
        "activation": fields.choice("hidden_act", ACTIVATIONS) or "silu",
        "norm": "rmsnorm",
        "position": "rope",
        "linear_bias": False,
        "tied_embeddings": tied(fields, False),
        "dropout": dropout_of(fields, "attention_dropout"),
    }


def _attention_bias(fields: Fields) -> Values:
    bias = bool(fields.flag("attention_bias"))
    return {"qkv_bias": bias, "proj_bias": bias}


def _window(fields: Fields) -> Values:
    """A sliding window in every layer, where one is given."""
    return {"sliding_window": fields.whole("sliding_window", 0) or 0}


def _window_every(fields: Fields, values: Values, every: int) -> Values:
    """A window in all but every n-th layer; a list of kinds of layers says so for each."""
    window = fields.whole("sliding_window", 0) or 0
    every = fields.whole("sliding_window_pattern") or fields.whole("_sliding_window_pattern") or every
    kinds = fields.raw("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != values["layers"] or set(map(str, kinds)) - set(known):
            fields.refuse("layer_types", kinds, f"for every layer one of {', '.join(known)}")
            return {}
        full = [layer for layer, kind in enumerate(kinds) if kind == known[0]]
        if not full:
            every = 1
        elif len(full) == len(kinds):
            window = 0
        else:
            every = full[0] + 1
            if full != list(range(every - 1, len(kinds), every)):
                fields.cannot("layer_types", f"full attention is simulated in every layer {every} n")
    return {"sliding_window": window, "sliding_window_every": every if window else 1}


def _qwen_window(fields: Fields, values: Values) -> Values:
    """Qwen's windows are off unless asked for, and start at some layer."""
    use, window = fields.flag("use_sliding_window"), fields.whole("sliding_window", 0) or 0
    first, kinds = fields.whole("max_window_layers", 0), fields.raw("layer_types")
    sliding = isinstance(kinds, list) and "sliding_attention" in kinds
    if not use or not window:
        if sliding:
            fields.refuse(
                "layer_types", "sliding_attention", "full_attention where use_sliding_window is off"
            )
        return {}
    if first is not None and first >= values["layers"]:
        return {}
    if first:
        fields.cannot("max_window_layers", f"{first}: the window is simulated in all layers")
    return {"sliding_window": window}


# -------------------------------------------------------------------------------- llama and its heirs


@architecture("llama")
def _llama(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields)
    return values | {"linear_bias": bool(fields.flag("mlp_bias"))}


@architecture("mistral")
def _mistral(fields: Fields) -> Values:
    return _base(fields) | _window(fields)


@architecture("mixtral")
def _mixtral(fields: Fields) -> Values:
    values = _base(fields) | _window(fields)
    experts = Experts(
        count=fields.whole("num_local_experts") or 8,
        top_k=_top_k(fields, fields.whole("num_local_experts") or 8),
        ffn=values["ffn"],
    )
    return values | {"experts": experts}


def _top_k(fields: Fields, count: int, default: int = 2) -> int:
    top_k = fields.whole("num_experts_per_tok") or default
    if top_k > count:
        fields.refuse("num_experts_per_tok", top_k, f"at most the number of experts ({count})")
        return count
    return top_k


@architecture("qwen2")
def _qwen2(fields: Fields) -> Values:
    values = _base(fields)
    return values | {"qkv_bias": True, "proj_bias": False} | _qwen_window(fields, values)


@architecture("qwen3")
def _qwen3(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields) | {"qk_norm": True}
    values["head_dim"] = values["head_dim"] or 128
    return values | _qwen_window(fields, values)


def _sparse_experts(fields: Fields, values: Values, *, shared: bool) -> Values:
    """Qwen's experts: every n-th layer has them, but those that are listed."""
    count = needed(fields, "num_experts")
    step, listed = fields.whole("decoder_sparse_step") or 1, fields.wholes("mlp_only_layers") or []
    dense = tuple(layer for layer in range(values["layers"]) if layer in listed or (layer + 1) % step)
    width = (fields.whole("shared_expert_intermediate_size") or 5632) if shared else 0
    experts = Experts(
        count=count,
        top_k=_top_k(fields, count, 4 if shared else 8),
        ffn=needed(fields, "moe_intermediate_size"),
        shared=1 if shared else 0,
        shared_ffn=width,
        dense_layers=dense,
        shared_gate=shared,
    )
    return {"experts": experts}


@architecture("qwen2_moe")
def _qwen2_moe(fields: Fields) -> Values:
    bias = fields.flag("qkv_bias")
    values = _base(fields) | {"qkv_bias": bias is not False, "proj_bias": False}
    return values | _sparse_experts(fields, values, shared=True) | _qwen_window(fields, values)


@architecture("qwen3_moe")
def _qwen3_moe(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields) | {"qk_norm": True}
    return values | _sparse_experts(fields, values, shared=False) | _qwen_window(fields, values)


@architecture("olmo")
def _olmo(fields: Fields) -> Values:
    if fields.raw("clip_qkv") is not None:
        fields.cannot("clip_qkv", "clamping is not simulated")
    return _base(fields) | _attention_bias(fields) | {"norm": "layernorm", "norm_weights": False}


@architecture("olmo2", "olmo3")
def _olmo2(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields) | {"qk_norm": True, "qk_norm_whole": True}
    return values | (_window_every(fields, values, 4) if fields.given("layer_types") else _window(fields))


@architecture("olmoe")
def _olmoe(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields) | {"qk_norm": True, "qk_norm_whole": True}
    count = fields.whole("num_experts") or 64
    if fields.raw("clip_qkv") is not None:
        fields.cannot("clip_qkv", "clamping is not simulated")
    return values | {"experts": Experts(count=count, top_k=_top_k(fields, count, 8), ffn=values["ffn"])}


@architecture("phi3")
def _phi3(fields: Fields) -> Values:
    dropout = dropout_of(fields, "resid_pdrop", "embd_pdrop", "attention_dropout")
    fields.flag("attention_bias")  # phi3's projections have none, whatever it says
    return _base(fields) | _window(fields) | {"dropout": dropout}


@architecture("gpt_oss")
def _gpt_oss(fields: Fields) -> Values:
    values = _base(fields)
    bias = fields.flag("attention_bias") is not False
    count = fields.whole("num_local_experts") or fields.whole("num_experts") or 128
    experts = Experts(
        count=count, top_k=_top_k(fields, count, 4), ffn=values["ffn"], router_bias=True
    )  # fmt: skip
    return (
        values
        | {"linear_bias": True, "qkv_bias": bias, "proj_bias": bias, "norm_bias": False}
        | {"attention_sinks": True, "experts": experts}
        | _window_every(fields, values, 2)
    )


# --------------------------------------------------------------------------------------------- Gemma


def _gemma_base(fields: Fields) -> Values:
    values = _base(fields) | _attention_bias(fields)
    activation = fields.choice("hidden_activation", ACTIVATIONS)
    return values | {"activation": activation or "gelu", "tied_embeddings": tied(fields, True)}


@architecture("gemma")
def _gemma(fields: Fields) -> Values:
    return _gemma_base(fields)


def _caps(fields: Fields) -> None:
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        if fields.number(name):
            fields.cannot(name, "caps of logits are not simulated")


@architecture("gemma2")
def _gemma2(fields: Fields) -> Values:
    _caps(fields)
    values = _gemma_base(fields)
    return values | {"norms_per_layer": 4} | _window_every(fields, values, 2)


@architecture("gemma3_text")
def _gemma3(fields: Fields) -> Values:
    _caps(fields)
    if fields.flag("use_bidirectional_attention"):
        fields.cannot("use_bidirectional_attention", "attention is causal")
    values = _gemma_base(fields)
    return values | {"norms_per_layer": 4, "qk_norm": True} | _window_every(fields, values, 6)


# ------------------------------------------------------------------------------------------ DeepSeek


@architecture("deepseek_v2", "deepseek_v3")
def _deepseek(fields: Fields) -> Values:
    third = fields.raw("model_type") == "deepseek_v3"
    values = _base(fields) | _attention_bias(fields)
    latent = LatentAttention(
        **{
            name: needed(fields, name)
            for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        },
        q_lora_rank=fields.whole("q_lora_rank") or 0,
    )
    if (fields.whole("num_nextn_predict_layers", 0) or 0) > 0:
        fields.cannot("num_nextn_predict_layers", "layers that predict further tokens are not simulated")
    values |= {
        "latent_attention": latent,
        "kv_heads": values["heads"],
        "head_dim": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
    }
    first, frequency = fields.whole("first_k_dense_replace", 0) or 0, fields.whole("moe_layer_freq") or 1
    count, shared = fields.whole("n_routed_experts"), fields.whole("n_shared_experts", 0) or 0
    width = fields.whole("moe_intermediate_size")
    if count is None:
        return values
    dense = tuple(layer for layer in range(values["layers"]) if layer < first or layer % frequency)
    ffn = width or 1407
    experts = Experts(
        count=count, top_k=_top_k(fields, count, 8), ffn=ffn, shared=shared, shared_ffn=shared * ffn,
        dense_layers=dense, router_bias=third,
    )  # fmt: skip
    return values | {"experts": experts}
