"""Architectures of Hugging Face's transformers: which fields of a config shape a model, and how.

Defaults are those of the configuration classes (huggingface/transformers, src/transformers/models/*/
configuration_*.py); shapes are those of the modelling files beside them. A new architecture is one function
with one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simulator.formats.foreign import Fields
from simulator.spec import Experts, LatentAttention

Values = dict[str, Any]
Architecture = Callable[[Fields], Values]

_ARCHITECTURES: Final[dict[str, Architecture]] = {}
_ACTIVATIONS: Final = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def architecture(*names: str) -> Callable[[Architecture], Architecture]:
    """Register what reads the configs of these model types."""

    def register(read: Architecture) -> Architecture:
        for name in names:
            _ARCHITECTURES[name] = read
        return read

    return register


def architectures() -> Mapping[str, Architecture]:
    """Model type -> the fields of a Transformer from those of a config."""
    return _ARCHITECTURES


# ------------------------------------------------------------------------------------------ shared


def _needed(fields: Fields, *names: str) -> int:
    """A size under the first of its names that is there; 1 if none is, which is refused."""
    for name in names:
        if fields.given(name):
            return fields.whole(name) or 1
    fields.refuse(names[0], None, "a whole number of 1 or more")
    return 1


def _tied(fields: Fields, default: bool) -> bool:
    tied = fields.flag("tie_word_embeddings")
    return default if tied is None else tied


def _dropout(fields: Fields, *names: str, default: float = 0.0) -> float:
    """The largest: a Transformer has one."""
    found = [fields.number(name, 0, 1) for name in names]
    return max(default if one is None else one for one in found)


def _base(fields: Fields) -> Values:
    """What llama's heirs share: RMSNorm, rotary positions, a gated MLP, no biases."""
    heads, hidden = _needed(fields, "num_attention_heads"), _needed(fields, "hidden_size")
    return {
        "layers": _needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.whole("num_key_value_heads") or heads,
        "head_dim": fields.whole("head_dim") or 0,
        "ffn": _needed(fields, "intermediate_size"),
        "vocab": _needed(fields, "vocab_size"),
        "gated_mlp": True,
        "activation": fields.choice("hidden_act", _ACTIVATIONS) or "silu",
        "norm": "rmsnorm",
        "position": "rope",
        "linear_bias": False,
        "tied_embeddings": _tied(fields, False),
        "dropout": _dropout(fields, "attention_dropout"),
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
    count = _needed(fields, "num_experts")
    step, listed = fields.whole("decoder_sparse_step") or 1, fields.wholes("mlp_only_layers") or []
    dense = tuple(layer for layer in range(values["layers"]) if layer in listed or (layer + 1) % step)
    width = (fields.whole("shared_expert_intermediate_size") or 5632) if shared else 0
    experts = Experts(
        count=count,
        top_k=_top_k(fields, count, 4 if shared else 8),
        ffn=_needed(fields, "moe_intermediate_size"),
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
    dropout = _dropout(fields, "resid_pdrop", "embd_pdrop", "attention_dropout")
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
    activation = fields.choice("hidden_activation", _ACTIVATIONS)
    return values | {"activation": activation or "gelu", "tied_embeddings": _tied(fields, True)}


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
            name: _needed(fields, name)
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


# ------------------------------------------------------------------------------- GPT-2 and its heirs


def _parallel(fields: Fields, name: str, default: bool) -> bool:
    """Attention and MLP side by side: the same work, run one after the other here."""
    given = fields.flag(name)
    parallel = default if given is None else given
    if parallel:
        fields.cannot(name, "attention and MLP run one after the other")
    return parallel


@architecture("gpt2")
def _gpt2(fields: Fields) -> Values:
    hidden = _needed(fields, "n_embd")
    if fields.flag("add_cross_attention"):
        fields.cannot("add_cross_attention", "is not simulated")
    return {
        "layers": _needed(fields, "n_layer"),
        "hidden": hidden,
        "heads": _needed(fields, "n_head"),
        "ffn": fields.whole("n_inner") or 4 * hidden,
        "vocab": _needed(fields, "vocab_size"),
        "activation": fields.choice("activation_function", _ACTIVATIONS) or "gelu",
        "position": "learned",
        "max_positions": _needed(fields, "n_positions"),
        "tied_embeddings": _tied(fields, True),
        "dropout": _dropout(fields, "resid_pdrop", "embd_pdrop", "attn_pdrop", default=0.1),
    }


@architecture("gpt_neox")
def _gpt_neox(fields: Fields) -> Values:
    bias = fields.flag("attention_bias") is not False
    _parallel(fields, "use_parallel_residual", True)
    return {
        "layers": _needed(fields, "num_hidden_layers"),
        "hidden": _needed(fields, "hidden_size"),
        "heads": _needed(fields, "num_attention_heads"),
        "ffn": _needed(fields, "intermediate_size"),
        "vocab": _needed(fields, "vocab_size"),
        "activation": fields.choice("hidden_act", _ACTIVATIONS) or "gelu",
        "position": "rope",
        "qkv_bias": bias,
        "proj_bias": bias,
        "tied_embeddings": _tied(fields, False),
        "dropout": _dropout(fields, "hidden_dropout", "attention_dropout"),
    }


@architecture("falcon")
def _falcon(fields: Fields) -> Values:
    hidden, heads = _needed(fields, "hidden_size"), _needed(fields, "num_attention_heads", "n_head")
    new = bool(fields.flag("new_decoder_architecture"))
    norms = fields.whole("num_ln_in_parallel_attn") or (2 if new else 1)
    parallel = _parallel(fields, "parallel_attn", True) or new
    groups = fields.whole("num_kv_heads") or fields.whole("n_head_kv")
    one = fields.flag("multi_query") is not False
    ffn = fields.whole("ffn_hidden_size")
    return {
        "layers": _needed(fields, "num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": (groups or heads) if new else 1 if one else heads,
        "ffn": ffn or 4 * hidden,
        "vocab": _needed(fields, "vocab_size"),
        "activation": fields.choice("activation", _ACTIVATIONS) or "gelu",
        "position": "alibi" if fields.flag("alibi") else "rope",
        "linear_bias": bool(fields.flag("bias")),
        "norm_bias": True,
        "norms_per_layer": norms if parallel else 2,
        "tied_embeddings": _tied(fields, True),
        "dropout": _dropout(fields, "hidden_dropout", "attention_dropout"),
    }


@architecture("phi")
def _phi(fields: Fields) -> Values:
    if fields.flag("qk_layernorm"):
        fields.cannot("qk_layernorm", "norms of queries and keys are not counted")
    heads = _needed(fields, "num_attention_heads")
    hidden = _needed(fields, "hidden_size")
    return {
        "layers": _needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.whole("num_key_value_heads") or heads,
        "ffn": fields.whole("intermediate_size") or 4 * hidden,
        "vocab": _needed(fields, "vocab_size"),
        "activation": fields.choice("hidden_act", _ACTIVATIONS) or "gelu",
        "position": "rope",
        "norms_per_layer": 1,
        "head_bias": True,
        "tied_embeddings": _tied(fields, False),
        "dropout": _dropout(fields, "resid_pdrop", "embd_pdrop", "attention_dropout"),
    }


@architecture("opt")
def _opt(fields: Fields) -> Values:
    hidden = _needed(fields, "hidden_size")
    if (fields.whole("word_embed_proj_dim") or hidden) != hidden:
        fields.cannot("word_embed_proj_dim", "embeddings are as wide as layers")
    if fields.flag("do_layer_norm_before") is False:
        fields.cannot("do_layer_norm_before", "norms come before")
    if fields.flag("_remove_final_layer_norm"):
        fields.cannot("_remove_final_layer_norm", "there is a last norm")
    biased, affine = fields.flag("enable_bias"), fields.flag("layer_norm_elementwise_affine")
    return {
        "layers": _needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": _needed(fields, "num_attention_heads"),
        "ffn": _needed(fields, "ffn_dim"),
        "vocab": _needed(fields, "vocab_size"),
        "activation": fields.choice("activation_function", _ACTIVATIONS) or "relu",
        "position": "learned",
        "max_positions": _needed(fields, "max_position_embeddings") + 2,  # two rows are never used
        "linear_bias": biased is not False,
        "norm_bias": True,
        "norm_weights": affine is not False,
        "tied_embeddings": _tied(fields, True),
        "dropout": _dropout(fields, "dropout", "attention_dropout"),
    }


@architecture("mpt")
def _mpt(fields: Fields) -> Values:
    hidden = _needed(fields, "d_model")
    biased = fields.flag("no_bias") is False
    alibi, learned = fields.flag("attn_config.alibi"), fields.flag("learned_pos_emb")
    kind = fields.choice("attn_config.attn_type", {"multihead_attention": 0, "multiquery_attention": 1})
    for name in ("attn_config.clip_qkv", "attn_config.qk_ln", "attn_config.prefix_lm"):
        if fields.raw(name):
            fields.cannot(name, "is not simulated")
    for name in ("attn_impl", "alibi_bias_max", "attn_uses_sequence_id", "softmax_scale", "model_type"):
        fields.raw(f"attn_config.{name}")
    for name in ("embedding_fraction", "verbose", "use_cache", "no_bias", "norm_type"):
        fields.raw(name)
    position = "alibi" if alibi else "learned" if learned is not False else "none"
    positions = _needed(fields, "max_seq_len")
    return {
        "layers": _needed(fields, "n_layers"),
        "hidden": hidden,
        "heads": _needed(fields, "n_heads"),
        "kv_heads": kind or 0,
        "ffn": (fields.whole("expansion_ratio") or 4) * hidden,
        "vocab": _needed(fields, "vocab_size"),
        "position": position,
        "max_positions": positions if position == "learned" else 0,
        "linear_bias": biased,
        "tied_embeddings": _tied(fields, True),
        "dropout": _dropout(fields, "resid_pdrop", "emb_pdrop", "attn_config.attn_pdrop"),
    }
