"""What all ranks of any layout count as the model's FLOPs is the model's, once: 6 N and the scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import scenario

from simulator.model import model_blocks
from simulator.model.blocks import Run
from simulator.model.context_parallel import ways
from simulator.model.flops import flops_per_token, parameters
from simulator.model.shapes import attention_tensors
from simulator.spec import Scenario, Transformer

DENSE: dict[str, Any] = {"layers": 2, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 4096, "vocab": 50257}
PLAIN = {**DENSE, "linear_bias": False, "qkv_bias": False}
MOE = {**PLAIN, "experts": {"count": 8, "top_k": 2, "ffn": 2048, "shared": 1, "shared_ffn": 1024}}
MLA = {
    **MOE, "kv_heads": 16, "head_dim": 96,
    "latent_attention": {
        "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
        "q_lora_rank": 512,
    },
}  # fmt: skip
MLA_PLAIN_QUERY = {**MLA, "latent_attention": {**MLA["latent_attention"], "q_lora_rank": 0}}
MODELS = {"dense": PLAIN, "experts": MOE, "latent": MLA, "latent, whole queries": MLA_PLAIN_QUERY}


def _counted(given: Scenario) -> float:
    """Model FLOPs of all ranks that share a micro-batch."""
    runs = [p for b in model_blocks(given) for p in (*b.forward, *b.backward) if isinstance(p, Run)]
    each = sum(kernel.model_flops for run in runs for kernel in run.kernels)
    return each * given.parallelism.tp * given.parallelism.cp


def _products(model: Transformer, sequence_length: int) -> float:
    """`flops_per_token` without 6 FLOPs for each norm weight and bias, which no product has."""
    layer = sum(inputs * outputs for _, inputs, outputs in attention_tensors(model))
    gates = 3 if model.gated_mlp else 2
    if model.experts is None:
        layer += gates * model.hidden * model.ffn
    else:
        experts = model.experts
        layer += model.hidden * (experts.count + gates * (experts.top_k * experts.ffn + experts.shared_ffn))
    inside = parameters(model).active_non_embedding
    return flops_per_token(model, sequence_length) - 6.0 * (inside - model.layers * layer)


@given(
    name=st.sampled_from(sorted(MODELS)),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    cp_kind=st.sampled_from(sorted(ways())),
    ep=st.sampled_from([1, 2]),
    split=st.sampled_from([0, 1, 2]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["unfused", "flash1", "flash2"]),
    overlapped=st.booleans(),
    precision=st.sampled_from(["bf16", "fp32"]),
)
@settings(max_examples=80, deadline=None)
def test_all_layouts_count_the_same_flops(
    name: str, tp: int, cp: int, cp_kind: str, ep: int, split: int, sequence_parallel: bool, recompute: str,
    attention: str, overlapped: bool, precision: str,
) -> None:  # fmt: skip
    if cp > 1 and cp_kind == "ring" and attention == "unfused":
        attention = "flash2"  # a ring needs fused kernels
    if cp_kind == "all-to-all" and 16 // tp % cp:
        tp = 16 // cp
    layout: dict[str, Any] = {"tp": tp, "cp": cp, "cp_kind": cp_kind, "sequence_parallel": sequence_parallel}
    if "experts" in MODELS[name]:
        layout |= {"ep": min(ep, 32 // tp // cp), "expert_tp": split if tp % max(1, split) == 0 else 0}
    made = scenario(
        model=MODELS[name], parallelism=layout, recompute=recompute, software__attention=attention,
        precision=precision, overlap__tp=overlapped and sequence_parallel,
    )  # fmt: skip
    assert isinstance(made.model, Transformer)
    tokens = made.batch.micro_batch * made.batch.sequence_length
    expected = _products(made.model, made.batch.sequence_length) * tokens
    assert _counted(made) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", ["gpt3-175b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"])
@pytest.mark.parametrize("tp", [1, 8])
def test_catalogue_models_count_what_the_formula_counts(model: str, tp: int) -> None:
    made = scenario(model=model, parallelism={"tp": tp}, batch={"sequence_length": 2048, "global_batch": 32})
    assert isinstance(made.model, Transformer)
    assert _counted(made) == pytest.approx(flops_per_token(made.model, 2048) * 2048, rel=2e-3)


def test_padding_takes_time_and_does_not_count() -> None:
    blocks = model_blocks(scenario(model=PLAIN, parallelism={"tp": 8}))
    (logits,) = [k for p in blocks[-1].forward if isinstance(p, Run) for k in p.kernels if k.name == "logits"]
    assert logits.shape[1] * 8 == 51200
    assert logits.model_flops == pytest.approx(logits.flops * 50257 / 51200)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_latents_of_a_token_are_made_once_with_sequence_parallelism(sequence_parallel: bool) -> None:
    made = scenario(model=MLA, parallelism={"tp": 4, "sequence_parallel": sequence_parallel})
    kernels = {k.name: k for p in model_blocks(made)[1].forward if isinstance(p, Run) for k in p.kernels}
    tokens = 8 * 1024
    for name in ("kv_down", "q_down"):
        assert kernels[name].shape[0] == (tokens // 4 if sequence_parallel else tokens)
        assert kernels[name].model_flops * 4 == pytest.approx(
            2.0 * tokens * kernels[name].shape[1] * kernels[name].shape[2]
        )
