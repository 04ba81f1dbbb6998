"""Hugging Face config.json to a Transformer: the fields that shape a decoder-only model.

Fields that say nothing about shape are passed over; fields that nobody here knows are reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator.errors import FileFormatError, SpecError
from simulator.formats.foreign import Foreign, foreign_format
from simulator.spec import Experts, LatentAttention, Transformer

#: field of a config -> ours; the first that is there counts
_NAMES: Final = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "head_dim": ("head_dim",),
    "max_positions": ("n_positions", "max_position_embeddings", "max_seq_len"),
}
_EXPERTS: Final = {
    "count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "moe_topk", "num_selected_experts"),
    "ffn": ("moe_intermediate_size", "expert_dim"),
    "shared": ("n_shared_experts",),
}
_LATENT: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")

#: fields that say nothing about the shape of parameters or kernels
_SILENT: Final = frozenset(
    [
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "initializer_range",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "attention_dropout",
        "hidden_act",
        "activation_function",
        "hidden_activation",
        "mlp_bias",
        "attention_bias",
        "tie_word_embeddings",
        "pretraining_tp",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
        "n_ctx",
        "task_specific_params",
        "router_aux_loss_coef",
        "output_router_logits",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "first_k_dense_replace",
        "moe_layer_freq",
        "shared_expert_intermediate_size",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
        "n_group",
        "aux_loss_alpha",
        "seq_aux",
        "ep_size",
        "num_nextn_predict_layers",
        "quantization_config",
        "auto_map",
        "text_config",
        "vision_config",
        "scale_attn_weights",
        "reorder_and_upcast_attn",
        "scale_attn_by_inverse_layer_idx",
        "attn_config",
        "no_bias",
        "learned_pos_emb",
        "expansion_ratio",
        "norm_type",
        "logit_scale",
        "init_device",
        "emb_pdrop",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "rope_interleave",
        "swiglu_limit",
        "initial_context_length",
        "router_jitter_noise",
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "query_pre_attn_scalar",
        "name_or_path",
        "_name_or_path",
        "qk_layernorm",
        "use_qk_norm",
        "qkv_bias",
        "bias",
    ]
)


def _is_config(path: Path, text: str) -> bool:
    return path.suffix == ".json" and any(f'"{name}"' in text for name in _NAMES["layers"])


@foreign_format("Hugging Face config.json", _is_config, order=1)
def scenario_of_config(path: Path) -> Foreign:
    """A scenario whose model is the file. Raises FileFormatError."""
    _, unknown = read_config(path)
    missing = [f"{name}: not in the file" for name in ("cluster", "batch")]
    return Foreign({"model": str(path.resolve())}, list(unknown), missing=missing)


def read_config(path: Path) -> tuple[Transformer, tuple[str, ...]]:
    """(the model, fields of the file that nobody here knows).

    Raises FileFormatError for what is no JSON object, SpecError for fields that are missing or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        config = json.loads(text)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    if not isinstance(config, Mapping):
        raise FileFormatError(f"{path}: expected a JSON object")
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    known = {name for names in (*_NAMES.values(), *_EXPERTS.values()) for name in names}
    unknown = tuple(sorted(set(config) - known - set(_LATENT) - _SILENT))
    try:
        return transformer_of(config, path.parent.name or path.stem), unknown
    except SpecError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _first(config: Mapping[str, Any], names: tuple[str, ...], default: int | None) -> int:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError.of(name, f"{value!r}: expected a whole number of 1 or more")
        return value
    if default is None:
        raise SpecError.of(names[0], "missing")
    return default


def transformer_of(config: Mapping[str, Any], name: str) -> Transformer:
    """A transformer from the fields of a config."""
    hidden = _first(config, _NAMES["hidden"], None)
    heads = _first(config, _NAMES["heads"], None)
    activation = str(config.get("hidden_act") or config.get("activation_function") or "gelu")
    kind = str(config.get("model_type", ""))
    gated = activation in ("silu", "swiglu") or "rms_norm_eps" in config
    learned = kind in ("gpt2", "gpt_neo", "opt", "gpt_bigcode")
    bias = not ("rms_norm_eps" in config or config.get("no_bias"))
    experts = _experts(config)
    latent = _latent(config)
    head_dim = _first(config, _NAMES["head_dim"], 0) if config.get("head_dim") else 0
    if latent is not None:
        head_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    positions = _first(config, _NAMES["max_positions"], 0)
    window = config.get("sliding_window") or 0
    ffn = _first(config, _NAMES["ffn"], 4 * hidden)
    return Transformer(
        name=name,
        layers=_first(config, _NAMES["layers"], None),
        hidden=hidden,
        heads=heads,
        kv_heads=_first(config, _NAMES["kv_heads"], heads),
        ffn=ffn,
        vocab=_first(config, _NAMES["vocab"], None),
        head_dim=head_dim,
        gated_mlp=gated,
        activation=activation,
        norm="rmsnorm" if "rms_norm_eps" in config else "layernorm",
        position="learned" if learned else "alibi" if kind == "mpt" else "rope",
        max_positions=positions if learned else 0,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind in ("gpt2", "mpt"))),
        linear_bias=bias or bool(config.get("mlp_bias")),
        qkv_bias=bias or bool(config.get("attention_bias")) or kind in ("qwen2", "qwen2_moe"),
        qk_norm=kind.startswith("qwen3"),
        sliding_window=window if config.get("use_sliding_window", True) and isinstance(window, int) else 0,
        dropout=float(config.get("resid_pdrop") or 0.0),
        experts=experts,
        latent_attention=latent,
        source=f"Hugging Face config ({kind or 'unknown type'})",
    )


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = _first(config, _EXPERTS["count"], 0)
    if count < 2:
        return None
    ffn = _first(config, _EXPERTS["ffn"], _first(config, _NAMES["ffn"], None))
    shared = config.get("n_shared_experts") or 0
    dense = range(config.get("first_k_dense_replace") or 0)
    layers = config.get("mlp_only_layers") or dense
    return Experts(
        count=count,
        top_k=_first(config, _EXPERTS["top_k"], 1),
        ffn=ffn,
        shared=shared,
        shared_ffn=config.get("shared_expert_intermediate_size") or shared * ffn,
        dense_layers=tuple(int(layer) for layer in layers),
    )


def _latent(config: Mapping[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    values = {name: _first(config, (name,), 0) for name in _LATENT}
    return LatentAttention(**values)
