"""Hugging Face config.json to a Transformer: the fields that shape a decoder-only model, by architecture.

A field is read by its architecture, listed as having no effect on shapes, or reported as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simulator.errors import Finding, SpecError, nearest
from simulator.formats.foreign import Fields, Foreign, foreign_format, read_json
from simulator.formats.huggingface_architectures import architectures
from simulator.spec import Transformer

#: fields that say nothing about the shapes of parameters or kernels, whatever the architecture
_NAMES: Final = """
architectures auto_map auto_map.* tokenizer_name use_mrope _name_or_path name_or_path _commit_hash
transformers_version torch_dtype dtype quantization_config.* is_decoder is_encoder_decoder return_dict
use_cache cache_implementation use_bfloat16 torchscript bos_token_id eos_token_id pad_token_id unk_token_id
sep_token_id decoder_start_token_id initializer_range initializer_factor init_device init_config.*
logit_scale layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps max_position_embeddings rope_theta
rope_scaling rope_scaling.* rope_parameters rope_parameters.* rope_interleave rope_local_base_freq rope_pct
rotary_pct rotary_emb_base rotary_dim partial_rotary_factor original_max_position_embeddings
initial_context_length max_seq_len seq_length n_ctx summary_type summary_use_proj summary_activation
summary_proj_to_labels summary_first_dropout task_specific_params task_specific_params.* id2label.*
label2id.* problem_type tokenizer_name use_mrope router_aux_loss_coef router_jitter_noise
output_router_logits router_z_loss_coef aux_loss_alpha seq_aux norm_topk_prob routed_scaling_factor
scoring_func topk_method topk_group n_group ep_size pretraining_tp swiglu_limit experts_per_token
scale_attn_weights reorder_and_upcast_attn scale_attn_by_inverse_layer_idx query_pre_attn_scalar
attn_implementation _attn_implementation attention_implementation head_dim_total bos_token eos_token
apply_residual_connection_post_layernorm classifier_dropout model_max_length prefix layerdrop
activation_dropout architecture tokenizer_class use_flash_attn
"""
_EFFECTLESS: Final = frozenset(_NAMES.split())


def _is_config(path: Path, text: str) -> bool:
    return path.suffix == ".json" and '"model_type"' in text


@foreign_format("Hugging Face config.json", _is_config, order=1)
def scenario_of_config(path: Path) -> Foreign:
    """A scenario whose model is the file. Raises FileFormatError or SpecError."""
    _, unknown, effectless = _read(path)
    missing = [f"{name}: not in the file" for name in ("cluster", "batch")]
    return Foreign({"model": str(path.resolve())}, unknown, effectless, missing)


def read_config(path: Path) -> tuple[Transformer, tuple[str, ...]]:
    """(the model, fields of the file that are not understood or that a Transformer cannot say).

    Raises FileFormatError for what is no JSON object, SpecError for fields that are missing or wrong.
    """
    model, unknown, _ = _read(path)
    return model, tuple(unknown)


def _read(path: Path) -> tuple[Transformer, list[str], list[str]]:
    data, line_of = read_json(path)
    inner = data.get("text_config")
    outside = ""
    if isinstance(inner, Mapping) and data.get("model_type") in ("gemma3",):
        outside = ", ".join(name for name in ("vision_config", "audio_config") if name in data)
        data, outer_line = inner, line_of

        def line_of(name: str) -> int | None:
            return outer_line(f"text_config.{name}")

    fields = Fields(path, data, line_of)
    known = architectures()
    kind = fields.raw("model_type")
    if not isinstance(kind, str) or kind not in known:
        expected = f"one of {', '.join(sorted(known))}"
        tail = nearest(kind, known) if isinstance(kind, str) else ""
        message = f"{kind!r}: expected {expected}{tail if 'did you mean' in tail else ''}"
        raise SpecError(Finding("model_type", message, file=str(path), line=line_of("model_type") or 1))
    if outside:
        fields.cannot(outside, "only the text model is simulated")
    values = known[kind](fields)
    fields.check()
    unknown, effectless = fields.rest(_EFFECTLESS)
    source = f"Hugging Face config ({kind})"
    if unknown:
        source += "; not understood: " + "; ".join(unknown)
    name = path.parent.name if path.stem == "config" else path.stem
    try:
        model = Transformer(**{"name": name or kind, "source": source, **values})
    except SpecError as error:
        findings = [Finding(one.path, one.message, file=str(path), line=1) for one in error.findings]
        raise SpecError(findings) from error
    return model, unknown, effectless
