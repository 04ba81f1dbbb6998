"""Configs of published models give the parameters of their checkpoints; fields that are not read are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import load
from simulator.errors import SpecError
from simulator.formats.huggingface import read_config
from simulator.formats.huggingface_architectures import architectures
from simulator.model import model_blocks
from simulator.model.catalogue import published_parameters
from simulator.model.flops import parameters


def sizes(layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The names that most architectures share."""
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocab, "hidden_act": "silu", "rms_norm_eps": 1e-5, **more,
    }  # fmt: skip


GEMMA = {"hidden_act": "gelu_pytorch_tanh", "head_dim": 256}
DEEPSEEK = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "moe_layer_freq": 1, "tie_word_embeddings": False,
}  # fmt: skip

#: (model type, fields, parameters: of the checkpoint's index or, where a name stands, of the catalogue)
CONFIGS: list[tuple[str, dict[str, Any], int | str]] = [
    ("llama", sizes(32, 4096, 32, 11008, 32000), "llama-2-7b"),
    ("llama", sizes(32, 4096, 32, 14336, 128256, num_key_value_heads=8), "llama-3.1-8b"),
    ("llama", sizes(126, 16384, 128, 53248, 128256, num_key_value_heads=8), "llama-3.1-405b"),
    (
        "llama",
        sizes(16, 2048, 32, 8192, 128256, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True),
        1235814400,
    ),
    ("mistral", sizes(32, 4096, 32, 14336, 32000, num_key_value_heads=8, sliding_window=4096), 7241732096),
    (
        "mixtral",
        sizes(32, 4096, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2),
        "mixtral-8x7b",
    ),
    ("qwen2", sizes(28, 3584, 28, 18944, 152064, num_key_value_heads=4), 7615616512),
    ("qwen2", sizes(24, 896, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True), 494032768),
    (
        "qwen2_moe",
        sizes(
            24, 2048, 16, 5632, 151936, num_key_value_heads=16, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1,
        ),
        14315784192,
    ),
    ("qwen3", sizes(36, 4096, 32, 12288, 151936, num_key_value_heads=8, head_dim=128), "qwen3-8b"),
    (
        "qwen3",
        sizes(28, 1024, 16, 3072, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
        596049920,
    ),
    (
        "qwen3_moe",
        sizes(
            48, 2048, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768, mlp_only_layers=[], decoder_sparse_step=1,
        ),
        "qwen3-30b-a3b",
    ),
    ("gemma", sizes(18, 2048, 8, 16384, 256000, num_key_value_heads=1, **GEMMA), 2506172416),
    ("gemma", sizes(28, 3072, 16, 24576, 256000, num_key_value_heads=16, **GEMMA), 8537680896),
    ("gemma2", sizes(26, 2304, 8, 9216, 256000, num_key_value_heads=4, **GEMMA), 2614341888),
    ("gemma2", sizes(42, 3584, 16, 14336, 256000, num_key_value_heads=8, **GEMMA), 9241705984),
    ("gemma3_text", sizes(26, 1152, 4, 6912, 262144, num_key_value_heads=1, **GEMMA), 999885952),
    (
        "deepseek_v2",
        sizes(
            27, 2048, 16, 10944, 102400, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
            moe_intermediate_size=1408, first_k_dense_replace=1, q_lora_rank=None, **DEEPSEEK,
        ),
        "deepseek-v2-lite",
    ),
    (
        "deepseek_v3",
        sizes(
            61, 7168, 128, 18432, 129280, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
            moe_intermediate_size=2048, first_k_dense_replace=3, q_lora_rank=1536, **DEEPSEEK,
        ),
        "deepseek-v3",
    ),
    (
        "gpt2",
        {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        "gpt2",
    ),
    (
        "gpt2",
        {"n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        "gpt2-xl",
    ),
    ("gpt_neox", sizes(44, 6144, 64, 24576, 50432, hidden_act="gelu_fast"), 20554567680),
    ("gpt_neox", sizes(12, 768, 12, 3072, 50304, hidden_act="gelu"), 162322944),
    (
        "falcon",
        {
            "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024,
            "multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False,
        },
        6921720704,
    ),
    (
        "falcon",
        {
            "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "vocab_size": 65024,
            "num_kv_heads": 8, "parallel_attn": True, "bias": False, "new_decoder_architecture": True,
        },
        41303293952,
    ),
    ("phi", sizes(32, 2560, 32, 10240, 51200, hidden_act="gelu_new"), 2779683840),
    ("phi3", sizes(32, 3072, 32, 8192, 32064, sliding_window=2047), 3821079552),
    (
        "gpt_oss",
        sizes(
            24, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, num_local_experts=32,
            num_experts_per_tok=4, sliding_window=128, attention_bias=True,
            layer_types=["sliding_attention", "full_attention"] * 12,
        ),
        "gpt-oss-20b",
    ),
    ("olmo", sizes(16, 2048, 16, 8192, 50304, tie_word_embeddings=True), 1176764416),
    ("olmo", sizes(32, 4096, 32, 11008, 50304), 6888095744),
    ("olmo2", sizes(32, 4096, 32, 11008, 100352), 7298617344),
    (
        "mpt",
        {
            "n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432, "max_seq_len": 2048,
            "expansion_ratio": 4, "no_bias": True, "attn_config": {"alibi": True},
        },
        "mpt-7b",
    ),
    (
        "opt",
        {
            "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072,
            "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768,
        },
        125239296,
    ),
]  # fmt: skip


def config(folder: Path, kind: str, fields: dict[str, Any]) -> Path:
    """A model's folder, under a name that says nothing of its kind."""
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": kind, **fields}))
    return file


@pytest.mark.parametrize(("kind", "fields", "wanted"), CONFIGS, ids=lambda value: str(value)[:24])
def test_a_published_config_gives_the_published_parameters(
    tmp_path: Path, kind: str, fields: dict[str, Any], wanted: int | str
) -> None:
    count = published_parameters(wanted) if isinstance(wanted, str) else wanted
    file = config(tmp_path, kind, fields)
    assert parameters(read_config(file)[0]).total == count
    scenario = load(
        {
            "model": str(file), "cluster": {"topology": "dgx-h100", "gpus": 1},
            "batch": {"global_batch": 1, "sequence_length": 1024},
        }
    )  # fmt: skip
    assert sum(one.numel for block in model_blocks(scenario) for one in block.parameters) == count


def test_every_architecture_has_a_published_config_here() -> None:
    assert set(architectures()) - {kind for kind, _, _ in CONFIGS} == {"olmo3", "olmoe"}


def test_experts_stand_where_the_config_says(tmp_path: Path) -> None:
    fields = sizes(
        8, 2048, 16, 6144, 32000, num_experts=8, moe_intermediate_size=768, num_experts_per_tok=2,
        decoder_sparse_step=2, mlp_only_layers=[3],
    )  # fmt: skip
    model, unknown = read_config(config(tmp_path, "qwen3_moe", fields))
    assert [layer for layer in range(8) if model.is_moe_layer(layer)] == [1, 5, 7]
    assert unknown == ()


def test_a_field_of_another_architecture_is_listed(tmp_path: Path) -> None:
    fields = sizes(2, 256, 4, 512, 1000, decoder_sparse_step=2, logits_to_keep=1)
    _, unknown = read_config(config(tmp_path, "llama", fields))
    assert set(unknown) == {"decoder_sparse_step", "logits_to_keep"}


def test_an_architecture_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config.json:1: model_type: 'llamma': expected one of .*llama"):
        read_config(config(tmp_path, "llamma", sizes(2, 256, 4, 512, 1000)))


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in CONFIGS}))
@pytest.mark.parametrize("value", ["wide", -3, 1.5, [["x"]], {"x": 1}])
def test_a_value_without_meaning_is_refused_in_every_field(tmp_path: Path, kind: str, value: object) -> None:
    fields = next(fields for known, fields, _ in CONFIGS if known == kind)
    for name in fields:
        if name == "rms_norm_eps":
            continue  # says nothing about shapes
        if name == "attn_config" and isinstance(value, dict):
            continue  # a section of further fields
        file = config(tmp_path, kind, {**fields, name: value})
        with pytest.raises(SpecError) as caught:
            read_config(file)
        assert any(name in finding.path for finding in caught.value.findings), name
        assert all("expected" in finding.message for finding in caught.value.findings), name
