"""Work beside compute: activations on their way to the host, parts of tensor-parallel products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from small import scenario, values

from simulator import simulate
from simulator.errors import ScenarioError
from simulator.model import model_blocks
from simulator.model.blocks import Exchange, Kernel, Run
from simulator.program.build import build
from simulator.program.instructions import Collective, Copy
from simulator.study.memory import memory_by_stage

GPU = {"name": "a100-sxm"}


def _step(pcie: str, layers: int, **changes: Any) -> tuple[float, float]:
    """(step time, exposed copies)."""
    given = values(
        cluster={"topology": "dgx-a100", "gpus": 8, "gpu": {**GPU, "pcie_bandwidth": pcie}},
        batch={"sequence_length": 1024, "micro_batch": 8, "global_batch": 128},
        offload={"layers": layers}, run={"steps": 2, "warmup": 1}, **changes,
    )  # fmt: skip
    result = simulate(given)
    items = {item.name: item.seconds for item in result.waterfall}
    return result.step_time_s, items["host-device copies"]


def test_offload_saves_its_layers_activations_but_for_two_buffers() -> None:
    activations = []
    for layers in (0, 4, 8):
        made = scenario(offload={"layers": layers})
        activations.append(memory_by_stage(made)[0].activations_bytes)
    one = model_blocks(scenario())[1].activation_bytes
    assert activations[0] - activations[1] == pytest.approx((4 - 2) * one)
    assert activations[1] - activations[2] == pytest.approx(4 * one)


def test_offload_shows_what_the_host_link_cannot_hide() -> None:
    plain, _ = _step("25 GB/s", 0)
    wide, hidden = _step("4000 GB/s", 8)
    assert wide == pytest.approx(plain, rel=0.02)
    assert hidden < 0.01 * plain
    slow, exposed = _step("5 GB/s", 8)
    block = model_blocks(scenario())[1].activation_bytes
    busy = 2 * 8 * 2 * block / 5e9  # two micro-batches, eight layers, out and back
    assert slow > 0.9 * busy
    assert exposed == pytest.approx(slow - plain, rel=0.1)


@pytest.mark.parametrize("engine", ["events", "lanes"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
def test_what_goes_out_comes_back(engine: str, schedule: str) -> None:
    made = scenario(
        offload={"layers": 2}, parallelism={"pp": 2, "schedule": schedule}, run={"steps": 2, "engine": engine}
    )
    for role in build(made)[0].roles:
        copies = [one.name for one in role.body if isinstance(one, Copy) and "load" in one.name]
        assert sorted(name.replace("reload", "offload") for name in copies) == sorted(
            2 * [name for name in copies if name.startswith("offload")]
        )
        assert len(copies) == 2 * 2 * made.micro_batches
    assert simulate(made).step_time_s > 0


def test_a_list_of_layers_is_not_recomputed_in_silence() -> None:
    layers = [{"name": "one", "repeat": 4, "parameters": 10, "forward_time": "1 ms"}]
    with pytest.raises(ScenarioError, match="recompute"):
        scenario(model={"layers": layers}, recompute="full", batch__sequence_length=1)


# --------------------------------------------------------------------------------------- async TP


def _products(overlapped: bool, tp: int = 4) -> tuple[list[Kernel], list[Exchange]]:
    """Matrix products and TP exchanges of one layer's forward."""
    made = scenario(parallelism={"tp": tp, "sequence_parallel": True}, overlap={"tp": overlapped})
    pieces = model_blocks(made)[1].forward
    kernels = [kernel for piece in pieces if isinstance(piece, Run) for kernel in piece.kernels]
    exchanges = [piece for piece in pieces if isinstance(piece, Exchange)]
    return [kernel for kernel in kernels if kernel.op == "gemm"], exchanges


def test_pipelined_products_do_the_same_work_and_move_the_same_bytes() -> None:
    (plain, gathers), (parts, shifts) = _products(False), _products(True)
    assert len(parts) == 4 * len(plain)
    assert sum(one.flops for one in parts) == pytest.approx(sum(one.flops for one in plain))
    wire = sum(one.size_bytes * 3 / 4 for one in gathers)  # (t - 1) / t of a gather's size on each edge
    assert {one.kind for one in shifts} == {"ring-shift"}
    assert sum(one.size_bytes for one in shifts) == pytest.approx(wire)


def test_pipelining_hides_tensor_parallel_exchanges_of_large_products() -> None:
    steps = {}
    for overlapped in (False, True):
        given = values(
            model={"layers": 2, "hidden": 8192, "heads": 64, "ffn": 32768, "vocab": 32000},
            cluster={"topology": "dgx-a100", "gpus": 8}, run={"steps": 2, "warmup": 1},
            parallelism={"tp": 4, "sequence_parallel": True}, overlap={"tp": overlapped},
            batch={"sequence_length": 4096, "micro_batch": 2, "global_batch": 8},
        )  # fmt: skip
        result = simulate(given)
        items = {item.name: item.seconds for item in result.waterfall}
        steps[overlapped] = (result.step_time_s, items["exposed TP communication"])
    assert steps[True][0] < steps[False][0]
    assert steps[True][1] < 0.5 * steps[False][1]


def test_pipelining_needs_sequence_parallelism() -> None:
    with pytest.raises(ScenarioError, match="sequence_parallel"):
        scenario(parallelism={"tp": 2}, overlap={"tp": True})


# ------------------------------------------------------------------------------ gathers of sharded units


def _sharded(sharding: str, micro_batches: int = 2, **changes: Any) -> tuple[list[Collective], float]:
    """(collectives of a step, exposed DP communication)."""
    made = scenario(
        parallelism={"sharding": sharding, **changes.pop("parallelism", {})},
        batch={"sequence_length": 1024, "micro_batch": 2, "global_batch": 2 * 32 * micro_batches},
        run={"steps": 2, "warmup": 1}, **changes,
    )  # fmt: skip
    collectives = [one for one in build(made)[0].roles[0].body if isinstance(one, Collective)]
    items = {item.name: item.seconds for item in simulate(made).waterfall}
    return collectives, items["exposed DP communication"]


def _gathers(collectives: list[Collective]) -> Counter[str]:
    return Counter(one.name for one in collectives if one.kind == "all-gather")


def test_units_are_gathered_again_for_the_backward_only_if_they_are_freed() -> None:
    freed, kept = (
        _gathers(_sharded("fsdp", parallelism={"reshard_after_forward": flag})[0]) for flag in (True, False)
    )
    assert all(freed[f"all-gather layer {i}"] == 2 * 2 for i in range(8))  # forward, backward; micro-batches
    assert all(kept[f"all-gather layer {i}"] == 2 for i in range(8))
    assert freed["all-gather head"] == kept["all-gather head"]  # the root's, which is never freed in between


def test_units_gathered_ahead_hide_behind_compute() -> None:
    exposed = [_sharded("fsdp", overlap={"prefetch": ahead})[1] for ahead in (0, 1, 2)]
    assert exposed[0] > 1.5 * exposed[1]
    assert exposed[1] >= 0.98 * exposed[2]


def test_hybrid_sharding_gathers_in_its_group_and_reduces_between_them() -> None:
    collectives, _ = _sharded("hsdp", parallelism={"shard_group": 8})
    groups = {(one.kind, one.group) for one in collectives if one.size_bytes > 1024}
    assert groups == {("all-gather", "shard"), ("reduce-scatter", "shard"), ("all-reduce", "replica")}
    shard = (
        sum(one.size_bytes for one in collectives if one.kind == "reduce-scatter") / 2
    )  # two micro-batches
    assert sum(
        one.size_bytes for one in collectives if one.kind == "all-reduce" and one.size_bytes > 1024
    ) == (pytest.approx(shard / 8))
