"""GPT-2 and its heirs: LayerNorm, plain MLPs."""

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
    hidden = needed(fields, "n_embd")
    if fields.flag("add_cross_attention"):
        fields.cannot("add_cross_attention", "is not simulated")
    return {
        "layers": needed(fields, "n_layer"),
        "hidden": hidden,
        "heads": needed(fields, "n_head"),
        "ffn": fields.whole("n_inner") or 4 * hidden,
        "vocab": needed(fields, "vocab_size"),
        "activation": fields.choice("activation_function", ACTIVATIONS) or "gelu",
        "position": "learned",
        "max_positions": needed(fields, "n_positions"),
        "tied_embeddings": tied(fields, True),
        "dropout": dropout_of(fields, "resid_pdrop", "embd_pdrop", "attn_pdrop", default=0.1),
    }


@architecture("gpt_neox")
def _gpt_neox(fields: Fields) -> Values:
    bias = fields.flag("attention_bias") is not False
    _parallel(fields, "use_parallel_residual", True)
    return {
        "layers": needed(fields, "num_hidden_layers"),
        "hidden": needed(fields, "hidden_size"),
        "heads": needed(fields, "num_attention_heads"),
        "ffn": needed(fields, "intermediate_size"),
        "vocab": needed(fields, "vocab_size"),
        "activation": fields.choice("hidden_act", ACTIVATIONS) or "gelu",
        "position": "rope",
        "qkv_bias": bias,
        "proj_bias": bias,
        "tied_embeddings": tied(fields, False),
        "dropout": dropout_of(fields, "hidden_dropout", "attention_dropout"),
    }


@architecture("falcon")
def _falcon(fields: Fields) -> Values:
    hidden, heads = needed(fields, "hidden_size"), needed(fields, "num_attention_heads", "n_head")
    new = bool(fields.flag("new_decoder_architecture"))
    norms = fields.whole("num_ln_in_parallel_attn") or (2 if new else 1)
    parallel = _parallel(fields, "parallel_attn", True) or new
    groups = fields.whole("num_kv_heads") or fields.whole("n_head_kv")
    one = fields.flag("multi_query") is not False
    ffn = fields.whole("ffn_hidden_size")
    return {
        "layers": needed(fields, "num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": (groups or heads) if new else 1 if one else heads,
        "ffn": ffn or 4 * hidden,
        "vocab": needed(fields, "vocab_size"),
        "activation": fields.choice("activation", ACTIVATIONS) or "gelu",
        "position": "alibi" if fields.flag("alibi") else "rope",
        "linear_bias": bool(fields.flag("bias")),
        "norm_bias": True,
        "norms_per_layer": norms if parallel else 2,
        "tied_embeddings": tied(fields, True),
        "dropout": dropout_of(fields, "hidden_dropout", "attention_dropout"),
    }


@architecture("phi")
def _phi(fields: Fields) -> Values:
    if fields.flag("qk_layernorm"):
        fields.cannot("qk_layernorm", "norms of queries and keys are not counted")
    heads = needed(fields, "num_attention_heads")
    hidden = needed(fields, "hidden_size")
    return {
        "layers": needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.whole("num_key_value_heads") or heads,
        "ffn": fields.whole("intermediate_size") or 4 * hidden,
        "vocab": needed(fields, "vocab_size"),
        "activation": fields.choice("hidden_act", ACTIVATIONS) or "gelu",
        "position": "rope",
        "norms_per_layer": 1,
        "head_bias": True,
        "tied_embeddings": tied(fields, False),
        "dropout": dropout_of(fields, "resid_pdrop", "embd_pdrop", "attention_dropout"),
    }


@architecture("opt")
def _opt(fields: Fields) -> Values:
    hidden = needed(fields, "hidden_size")
    if (fields.whole("word_embed_proj_dim") or hidden) != hidden:
        fields.cannot("word_embed_proj_dim", "embeddings are as wide as layers")
    if fields.flag("do_layer_norm_before") is False:
        fields.cannot("do_layer_norm_before", "norms come before")
    if fields.flag("_remove_final_layer_norm"):
        fields.cannot("_remove_final_layer_norm", "there is a last norm")
    biased, affine = fields.flag("enable_bias"), fields.flag("layer_norm_elementwise_affine")
    return {
        "layers": needed(fields, "num_hidden_layers"),
        "hidden": hidden,
        "heads": needed(fields, "num_attention_heads"),
        "ffn": needed(fields, "ffn_dim"),
        "vocab": needed(fields, "vocab_size"),
        "activation": fields.choice("activation_function", ACTIVATIONS) or "relu",
        "position": "learned",
        "max_positions": needed(fields, "max_position_embeddings") + 2,  # two rows are never used
        "linear_bias": biased is not False,
        "norm_bias": True,
        "norm_weights": affine is not False,
        "tied_embeddings": tied(fields, True),
        "dropout": dropout_of(fields, "dropout", "attention_dropout"),
    }


@architecture("mpt")
def _mpt(fields: Fields) -> Values:
    hidden = needed(fields, "d_model")
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
    positions = needed(fields, "max_seq_len")
    return {
        "layers": needed(fields, "n_layers"),
        "hidden": hidden,
        "heads": needed(fields, "n_heads"),
        "kv_heads": kind or 0,
        "ffn": (fields.whole("expansion_ratio") or 4) * hidden,
        "vocab": needed(fields, "vocab_size"),
        "position": position,
        "max_positions": positions if position == "learned" else 0,
        "linear_bias": biased,
        "tied_embeddings": tied(fields, True),
        "dropout": dropout_of(fields, "resid_pdrop", "emb_pdrop", "attn_config.attn_pdrop"),
    }
