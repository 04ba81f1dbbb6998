"""Blocks of any layout: gradients once, backwards twice the forwards, recomputation that repeats them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import scenario

from simulator.model import model_blocks, models
from simulator.model.blocks import Block, Exchange, Piece, Run
from simulator.spec import Scenario, Transformer

DENSE: dict[str, Any] = {"layers": 3, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 4096, "vocab": 32000}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {**DENSE, "kv_heads": 16, "dropout": 0.1, "tied_embeddings": True},
    "llama": {**DENSE, "gated_mlp": True, "linear_bias": False, "norm": "rmsnorm", "position": "rope"},
    "experts": {
        **DENSE,
        "experts": {
            "count": 8, "top_k": 2, "ffn": 2048, "shared": 1, "shared_ffn": 1024, "dense_layers": [0],
            "router_bias": True,
        },
    },
    "latent": {
        **DENSE, "kv_heads": 16, "head_dim": 96, "qk_norm": True,
        "latent_attention": {
            "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
            "q_lora_rank": 512,
        },
    },
}  # fmt: skip

layouts = st.fixed_dictionaries(
    {
        "model": st.sampled_from(sorted(MODELS)),
        "tp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "sequence_parallel": st.booleans(),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "attention": st.sampled_from(["unfused", "flash2"]),
        "framework": st.sampled_from(["pytorch", "megatron", "megatron-deepspeed"]),
    }
).filter(lambda layout: layout["cp"] == 1 or layout["attention"] != "unfused")  # a ring needs it fused


def _scenario(layout: dict[str, Any], **changes: Any) -> Scenario:
    names = ("tp", "cp", "sequence_parallel")
    return scenario(
        model=MODELS[layout["model"]],
        parallelism={name: layout[name] for name in names},
        recompute=layout["recompute"],
        software={"framework": layout["framework"], "attention": layout["attention"]},
        **changes,
    )


def _runs(pieces: tuple[Piece, ...], *parts: str) -> list[Run]:
    return [one for one in pieces if isinstance(one, Run) and (not parts or one.part in parts)]


def _flops(runs: list[Run], *, counted: bool = False) -> float:
    return sum(k.model_flops if counted else k.flops for run in runs for k in run.kernels)


@given(layouts)
@settings(max_examples=30, deadline=None)
def test_every_parameters_gradient_is_whole_exactly_once(layout: dict[str, Any]) -> None:
    for block in model_blocks(_scenario(layout)):
        done = Counter(index for run in _runs(block.backward) for index in run.gradients)
        assert done == Counter(range(len(block.parameters))), block.name


@given(layouts)
@settings(max_examples=30, deadline=None)
def test_a_layers_backward_counts_twice_its_forward(layout: dict[str, Any]) -> None:
    """Input's and weights' gradient for each product; recomputation counts nothing."""
    for block in model_blocks(_scenario(layout)):
        forward = _flops(_runs(block.forward), counted=True)
        assert _flops(_runs(block.backward), counted=True) == pytest.approx(2 * forward)
        assert _flops(_runs(block.backward, "recompute"), counted=True) == 0


@given(layouts)
@settings(max_examples=20, deadline=None)
def test_full_recomputation_repeats_the_forward_and_its_exchanges(layout: dict[str, Any]) -> None:
    for block in model_blocks(_scenario({**layout, "recompute": "full"})):
        again = [one for one in block.backward if one.part == "recompute"]
        if block.kind != "layer":
            assert not again
            continue
        repeated, whole = _flops(_runs(tuple(again))), _flops(_runs(block.forward))
        sent = [(one.kind, one.axis, one.size_bytes) for one in again if isinstance(one, Exchange)]
        forth = [(one.kind, one.axis, one.size_bytes) for one in block.forward if isinstance(one, Exchange)]
        assert sent == forth[: len(sent)]
        if layout["framework"] != "pytorch":  # whose checkpoints stop before the last product
            assert repeated == pytest.approx(whole)
            assert sent == forth
        assert 0.6 * whole < repeated <= whole * (1 + 1e-12)


@given(layouts)
@settings(max_examples=20, deadline=None)
def test_tensor_parallel_ranks_hold_the_model_once_and_its_replicated_parameters_each(
    layout: dict[str, Any],
) -> None:
    def elements(blocks: tuple[Block, ...], replicated: bool) -> int:
        return sum(p.numel for block in blocks for p in block.parameters if p.replicated is replicated)

    split = model_blocks(_scenario(layout))
    whole = model_blocks(_scenario({**layout, "tp": 1}))
    vocabulary = 2 * 128 * layout["tp"] * 1024  # padding
    for replicated, times in ((False, layout["tp"]), (True, 1)):
        held, all_of_it = times * elements(split, replicated), elements(whole, replicated)
        assert all_of_it <= held <= all_of_it + vocabulary


@given(layouts)
@settings(max_examples=20, deadline=None)
def test_more_tensor_parallelism_never_keeps_more(layout: dict[str, Any]) -> None:
    def kept(tp: int) -> list[float]:
        return [block.activation_bytes for block in model_blocks(_scenario({**layout, "tp": tp}))[1:-1]]

    assert all(b <= a * (1 + 1e-12) for a, b in zip(kept(1), kept(4), strict=True))
    assert all(block.working_bytes >= 0 for block in model_blocks(_scenario(layout)))


@pytest.mark.parametrize("name", models())
def test_catalogue_models_have_gradients_of_all_their_parameters(name: str) -> None:
    made = scenario(model=name, batch={"sequence_length": 128, "global_batch": 32})
    for block in model_blocks(made):
        done = sorted(index for run in _runs(block.backward) for index in run.gradients)
        assert done == list(range(len(block.parameters))), block.name
    if isinstance(made.model, Transformer):
        layers = [block for block in model_blocks(made) if block.kind == "layer"]
        assert len(layers) == made.model.layers
