"""Context parallelism: the same work whatever the way; a ring hides what the attention beside it covers."""

from __future__ import annotations

from typing import Any

import pytest
from small import scenario, values

from simulator import simulate
from simulator.errors import ScenarioError
from simulator.model import model_blocks
from simulator.model.blocks import Exchange, Kernel, Run
from simulator.model.context_parallel import ways
from simulator.network.collectives import plan
from simulator.network.fabric import build
from simulator.spec import Scenario

MODEL = {"layers": 2, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 8192, "vocab": 32000}
LENGTH = 32768


def of(kind: str, cp: int, **changes: Any) -> Scenario:
    batch = {"sequence_length": LENGTH, "micro_batch": 1, "global_batch": 32 // cp}
    return scenario(model=MODEL, parallelism={"cp": cp, "cp_kind": kind}, batch=batch, **changes)


def exchanged(given: Scenario, way: str) -> list[tuple[str, float]]:
    """(kind, bytes) over cp of one layer, in order."""
    pieces = getattr(model_blocks(given)[1], way)
    return [(p.kind, p.size_bytes) for p in pieces if isinstance(p, Exchange) and p.axis == "cp"]


def cores(given: Scenario) -> list[Kernel]:
    """Attention kernels of one layer's forward."""
    runs = [piece for piece in model_blocks(given)[1].forward if isinstance(piece, Run)]
    return [kernel for run in runs for kernel in run.kernels if kernel.op == "flash2-forward"]


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_shifts_blocks_and_then_their_gradients(cp: int) -> None:
    block = LENGTH / cp * 4 * 2 * 128 * 2  # tokens, heads, keys and values, width, bytes
    given = of("ring", cp)
    assert exchanged(given, "forward") == [("ring-shift", block)] * (cp - 1)
    backward = exchanged(given, "backward")
    assert {kind for kind, _ in backward} == {"ring-shift"}
    assert sum(size for _, size in backward) == pytest.approx(block * (cp - 1 + cp))
    assert backward[-1] == ("ring-shift", block)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_the_ways_do_the_same_scores(cp: int) -> None:
    whole = sum(kernel.flops for kernel in cores(of("ring", 1)))
    for kind in ways():
        assert sum(kernel.flops for kernel in cores(of(kind, cp))) * cp == pytest.approx(whole), kind
    steps = cores(of("ring", cp))
    assert len(steps) == cp
    assert {kernel.flops for kernel in steps} == {whole / cp**2}  # balanced by the two chunks of a rank


def test_all_to_all_moves_queries_keys_values_and_outputs() -> None:
    element = LENGTH // 4 * 128 * 2
    assert exchanged(of("all-to-all", 4), "forward") == [
        ("all-to-all", element * (16 + 2 * 4)), ("all-to-all", element * 16),
    ]  # fmt: skip
    # 4 heads of keys and values on 8 ranks: each is held twice
    assert exchanged(of("all-to-all", 8), "forward")[0] == ("all-to-all", element / 2 * (16 + 2 * 8))


def _exposed_s(kind: str, nvlink: str) -> tuple[float, float]:
    gpu = {"name": "a100-sxm", "nvlink_bandwidth": nvlink}
    given = values(
        model=MODEL, parallelism={"cp": 8, "cp_kind": kind}, run={"steps": 2, "warmup": 1},
        batch={"sequence_length": 65536, "micro_batch": 1, "global_batch": 1},
        cluster={"topology": "dgx-a100", "gpus": 8, "gpu": gpu},
    )  # fmt: skip
    result = simulate(given)
    items = {item.name: item.seconds for item in result.waterfall}
    return items["exposed CP communication"], result.step_time_s


def test_a_ring_shows_only_what_attention_does_not_cover() -> None:
    ring, gathered = (_exposed_s(kind, "300 GB/s")[0] for kind in ("ring", "all-gather"))
    assert ring < 0.4 * gathered
    slow, fast = (_exposed_s("ring", speed)[0] for speed in ("4 GB/s", "300 GB/s"))
    assert slow > 10 * fast


def test_a_shift_puts_its_size_on_every_edge_of_the_ring() -> None:
    given = scenario()
    fabric = build(given.cluster.topology, given.cluster.gpus, given.cluster.gpu)
    size = 2.0**30
    found = plan(fabric, "ring-shift", list(range(8)), size, protocol="ideal")
    inside = fabric.capacity_bytes_per_s[found.links].min()
    assert found.alone_s(fabric.capacity_bytes_per_s) == pytest.approx(size / inside, rel=0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parallelism": {"cp": 2, "cp_kind": "rings"}}, "did you mean 'ring'"),
        ({"parallelism": {"cp": 32, "cp_kind": "all-to-all"}}, "does not divide the heads"),
        ({"parallelism": {"cp": 32}, "batch__sequence_length": 96}, "multiple of 2 x cp"),
        ({"parallelism": {"cp": 2}, "software__attention": "unfused"}, "fused attention"),
    ],
)
def test_what_a_way_cannot_do_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario(**change)
