"""Memory of a rank against published formulas and measured runs, and what it must never do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import scenario

from simulator.model import model, model_blocks, models
from simulator.model.allocator import allocated, reserved
from simulator.model.flops import parameters
from simulator.model.memory import StageMemory
from simulator.planning.recompute import layer_bytes as published_layer_bytes
from simulator.spec import Transformer
from simulator.study.memory import memory_by_stage

GIB = 2.0**30
GPT = {
    "layers": 4, "hidden": 6144, "heads": 64, "ffn": 24576, "vocab": 51200, "max_positions": 2048,
    "tied_embeddings": True, "dropout": 0.1,
}  # fmt: skip
MEGATRON = {"framework": "megatron", "attention": "unfused"}


def _cut(name: str, layers: int, **more: Any) -> dict[str, Any]:
    """A bundled model with fewer layers."""
    fields = {key: value for key, value in asdict(model(name)).items() if value is not None}
    return {**fields, "layers": layers, **more}


def _fullest(**changes: Any) -> StageMemory:
    return max(memory_by_stage(scenario(**changes)), key=lambda stage: stage.peak_bytes)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (8, False), (8, True)])
def test_a_gpt_layer_keeps_what_korthikanti_counts(mode: str, tp: int, sequence_parallel: bool) -> None:
    batch = {"sequence_length": 2048, "micro_batch": 4, "global_batch": 128}
    layout = {"tp": tp, "sequence_parallel": sequence_parallel}
    made = scenario(model=GPT, parallelism=layout, batch=batch, recompute=mode, software=MEGATRON)
    kept = model_blocks(made)[1].activation_bytes
    published = published_layer_bytes(2048, 4, 6144, 64, tp, mode, sequence_parallel)
    assert kept == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize(
    ("sharding", "published_gb"), [("ddp", 120.0), ("zero-1", 31.4), ("zero-2", 16.6), ("zero-3", 1.9)]
)
def test_zero_spreads_7_5_billion_parameters_as_published(sharding: str, published_gb: float) -> None:
    """Rajbhandari et al. 2020, figure 1: 64 GPUs, 16 bytes a parameter."""
    made = _fullest(
        model={"layers": [{"name": "all", "parameters": 7_500_000_000}]}, cluster__gpus=64,
        cluster__topology="dgx-a100", parallelism={"sharding": sharding}, precision="fp16",
        batch={"micro_batch": 1, "global_batch": 64}, software__gradient_dtype="fp16",
    )  # fmt: skip
    held = made.parameters_bytes + made.gradients_bytes + made.optimizer_bytes
    assert held / 1e9 == pytest.approx(published_gb, abs=0.05)


@pytest.mark.parametrize(
    ("name", "layers", "layout", "measured_gib"),
    [
        ("llama-3-70b", 12, {"pp": 2}, 66.55),
        ("llama-3-70b", 12, {"tp": 4, "sequence_parallel": True}, 39.07),
        ("llama-3.1-405b", 4, {"tp": 2, "sequence_parallel": True}, 81.59),
        ("llama-3.1-405b", 4, {"tp": 8, "sequence_parallel": True}, 38.57),
        ("deepseek-v2", 4, {"pp": 2, "ep": 4}, 44.7),
        ("deepseek-v3", 4, {"ep": 8}, 104.3),
    ],
)
def test_megatron_holds_what_was_measured(
    name: str, layers: int, layout: dict[str, Any], measured_gib: float
) -> None:
    """SimuMax's B200 runs (`torch.cuda.max_memory_allocated`, the fullest rank), as their launch scripts say."""
    changes: dict[str, Any] = {"kv_heads": 16} if "405b" in name else {}
    if "deepseek" in name:
        changes = {"experts": {**_cut(name, layers)["experts"], "dense_layers": [0]}}
    made = _fullest(
        model=_cut(name, layers, **changes), cluster={"topology": "dgx-b200", "gpus": 8},
        parallelism={**layout, "sharding": "zero-1"},
        batch={"sequence_length": 4096, "micro_batch": 1, "global_batch": 32},
        software={"framework": "megatron", "attention": "cudnn", "fused_loss": True},
    )  # fmt: skip
    assert made.allocated_bytes / GIB == pytest.approx(measured_gib, rel=0.005)


def test_a_recomputed_layer_is_whole_while_its_backward_runs() -> None:
    changes: dict[str, Any] = {
        "model": "llama-2-7b",
        "cluster": {"topology": "dgx-h100", "gpus": 8},
        "parallelism": {"sharding": "fsdp"},
        "batch": {"sequence_length": 4096, "micro_batch": 4, "global_batch": 32},
        "software": {"framework": "pytorch", "fused_loss": True},
    }
    full, none = (model_blocks(scenario(**changes, recompute=mode))[1] for mode in ("full", "none"))
    assert full.working_bytes - none.working_bytes == pytest.approx(
        none.activation_bytes - full.activation_bytes
    )
    made = _fullest(**changes, recompute="full")
    assert made.fullest.startswith("layer")
    assert made.working_bytes > 1e9  # less what head and loss have freed


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "pp", "published_gib"),
    [
        (48, 6144, 64, 1, 45.5625),
        (96, 12288, 96, 8, 45.5625),
        (105, 20480, 128, 35, 31.640625),
        (128, 25600, 160, 64, 32.958984375),
    ],
)
def test_states_of_the_layers_are_korthikantis(
    layers: int, hidden: int, heads: int, pp: int, published_gib: float
) -> None:
    """Figure 1's parameters and optimizer, 18 bytes each: of the layers alone, embeddings are not in it."""
    made = model_blocks(
        scenario(
            model={**GPT, "layers": 1, "hidden": hidden, "heads": heads, "ffn": 4 * hidden},
            parallelism__tp=8, batch={"sequence_length": 2048, "global_batch": 32},
        )
    )  # fmt: skip
    held = layers / pp * made[1].numel * 18 / GIB
    assert held == pytest.approx(published_gib, rel=0.002)


SHARDINGS = ("ddp", "zero-1", "zero-2")


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    micro_batch=st.sampled_from([1, 2, 4]),
    framework=st.sampled_from(["pytorch", "megatron", "megatron-deepspeed"]),
    attention=st.sampled_from(["unfused", "flash2"]),
    sequence_parallel=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_more_sharding_recomputation_and_smaller_micro_batches_never_take_more(
    tp: int, pp: int, micro_batch: int, framework: str, attention: str, sequence_parallel: bool
) -> None:
    def held(sharding: str = "ddp", recompute: str = "none", micro: int = micro_batch) -> StageMemory:
        return _fullest(
            parallelism={"tp": tp, "pp": pp, "sharding": sharding, "sequence_parallel": sequence_parallel},
            recompute=recompute, software={"framework": framework, "attention": attention},
            batch={"sequence_length": 1024, "micro_batch": micro, "global_batch": 256},
        )  # fmt: skip

    def states(memory: StageMemory) -> float:
        return memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes

    by_stage = [states(held(sharding)) for sharding in SHARDINGS]
    assert by_stage == sorted(by_stage, reverse=True)
    modes = [held(recompute=mode).allocated_bytes for mode in ("none", "selective", "full")]
    assert modes == sorted(modes, reverse=True)
    assert held(micro=2 * micro_batch).allocated_bytes >= held().allocated_bytes


def test_blocks_hold_every_parameter_once() -> None:
    for name in models():
        made = scenario(model=name, batch={"sequence_length": 1, "global_batch": 32})
        if isinstance(made.model, Transformer):
            held = sum(block.numel for block in model_blocks(made))
            assert held == parameters(made.model).total, name


@given(st.lists(st.integers(1, 40 * 2**20), max_size=30))
def test_segments_hold_their_tensors_and_waste_less_than_one_of_each_kind_and_rounding(
    sizes: list[int],
) -> None:
    total = reserved(sizes)
    taken = sum(allocated(size) for size in sizes)
    assert total % (2 * 2**20) == 0
    assert taken <= total <= 2 * taken + 22 * 2**20 + 2 * 2**20 * len(sizes)


def test_ddp_holds_gradients_twice_and_megatron_once() -> None:
    torch, megatron = (_fullest(software__framework=name) for name in ("pytorch", "megatron"))
    assert torch.buffers_bytes - megatron.buffers_bytes == pytest.approx(
        torch.gradients_bytes, rel=0.2
    )  # less the placeholders that TransformerEngine keeps
