"""What people met, from its inputs. Each test names the public report that it follows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator import simulate
from simulator.analysis.result import Result
from simulator.engine.flows import Route
from simulator.hardware import gpu
from simulator.network.collectives import plan
from simulator.network.fabric import build
from simulator.network.fluid import max_min
from simulator.program.instructions import Collective
from simulator.spec import Topology
from simulator.study.simulate import load, make_setting
from simulator.timeline import DeviceKind


def listed(
    forward_s: float, backward_s: float, *, layers: int = 1, parameters: int = 1000, kernels: int = 4
) -> dict[str, object]:
    """A network with measured times, a sample."""
    return {
        "name": "measured",
        "kernels_per_layer": kernels,
        "layers": [
            {
                "name": "layer",
                "repeat": layers,
                "parameters": parameters,
                "forward_time": f"{forward_s} s",
                "backward_time": f"{backward_s} s",
            }
        ],
    }


# ------------------------------------------------------------------------------- pytorch issue 48880


@pytest.mark.parametrize(
    ("cap", "sizes"),
    [
        ("25 MiB", [2_052_000, 28_852_224, 15_853_824]),
        ("35 MiB", [2_052_000, 38_297_600, 6_408_448]),
    ],
)
def test_ddp_buckets_of_resnet_18_are_exact_to_the_byte(cap: str, sizes: list[int]) -> None:
    scenario = load(
        {
            "model": "resnet-18",
            "cluster": {"topology": "dgx-a100", "gpus": 8},
            "batch": {"micro_batch": 32, "global_batch": 256},
            "overlap": {"bucket_size": cap},
        },
        {},
    )
    body = make_setting(scenario).programs.roles[0].body
    reduced = [one.size_bytes for one in body if isinstance(one, Collective) and one.group == "dp"]
    assert reduced == sizes


# --------------------------------------------------------------------------------- NVIDIA/nccl 820


def test_two_gpus_on_one_nic_share_it_while_other_rails_run_free() -> None:
    topology = Topology(
        "two nodes",
        "rail-optimised",
        {
            "nics": 8,
            "nic_bandwidth": "200 Gb/s",
            "nodes_per_leaf": 16,
            "nic_affinity": (0, 0, 2, 3, 4, 5, 6, 7),
            "rail_local": False,
        },
    )
    fabric = build(topology, 16, gpu("a100-sxm"))
    rails = [plan(fabric, "all-reduce", [k, 8 + k], 5.313e9, algorithm="ring") for k in range(8)]
    routes = [
        Route(i, one.links, one.bytes / one.size_bytes, one.rate_cap_per_s * one.size_bytes)
        for i, one in enumerate(rails)
    ]
    rates = max_min(
        fabric.capacity_bytes_per_s,
        np.cumsum([0, *(len(route.links) for route in routes)]),
        np.concatenate([route.links for route in routes]),
        np.concatenate([route.per_byte for route in routes]),
        np.array([route.cap_bytes_per_s for route in routes]),
        np.ones(8),
    )
    times = [5.313e9 / rate + one.latency_s for rate, one in zip(rates, rails, strict=True)]
    assert times[:2] == pytest.approx([0.439, 0.439], rel=0.12)
    assert times[2:] == pytest.approx([0.277] * 6, rel=0.12)


# ------------------------------------------------------------------------------ cosmos-framework 161


def accumulated(steps: int, *, deferred: bool) -> Result:
    """Two nodes of eight, sharded within and replicated between, over 100 Gb/s Ethernet.

    A micro-batch takes 10.8 s with its gathers inside the node, the all-reduce 11.4 s, as reported.
    """
    ethernet = {
        "family": "leaf-spine",
        "gpu": "a100-sxm",
        "parameters": {"nics": 1, "nic_bandwidth": "100 Gb/s", "nodes_per_leaf": 4},
    }
    return simulate(
        {
            "model": listed(3.204, 6.408, parameters=34_900_000_000),
            "cluster": {"topology": ethernet, "gpus": 16},
            "batch": {"micro_batch": 1, "global_batch": 16 * steps},
            "parallelism": {"sharding": "hsdp", "shard_group": 8},
            "software": {"defer_grad_sync": deferred, "gradient_clipping": False},
            "run": {"steps": 3, "warmup": 1},
        },
        allow_oom=True,
    )


def test_accumulation_saves_nothing_unless_the_sync_is_deferred() -> None:
    one = accumulated(1, deferred=True).step_time_s
    reduce = one - 10.8
    assert reduce == pytest.approx(11.4, rel=0.05)
    every = accumulated(4, deferred=False).step_time_s
    once = accumulated(4, deferred=True).step_time_s
    assert every == pytest.approx(88.8, rel=0.05)
    assert once == pytest.approx(54.6, rel=0.05)


# ---------------------------------------------------------------------------------------- marin 9205


def collected(faults: list[dict[str, object]]) -> float:
    """704 GPUs; steps of 16.7 s, the loss read each step. Mean step.

    How many launches a step has decides how far the host leads; not reported, 20,000 assumed.
    """
    return simulate(
        {
            "model": listed(16.7 / 4 / 80 / 3, 2 * 16.7 / 4 / 80 / 3, layers=80, kernels=32),
            "cluster": {"topology": "dgx-h100", "gpus": 704},
            "batch": {"micro_batch": 1, "global_batch": 4 * 704},
            "software": {"log_every": 1, "gradient_clipping": False},
            "faults": faults,
            "run": {"steps": 100, "warmup": 0},
        },
        allow_oom=True,
    ).step_time_s


def test_collections_at_phases_of_their_own_cost_704_ranks_what_planned_ones_do_not() -> None:
    free = collected([])
    duration = {"duration": "1.465 s", "cv": 0.01}
    private = collected([{"kind": "garbage-collection", "every_steps": 265, "phase": "private", **duration}])
    planned = collected([{"kind": "garbage-collection", "every_steps": 100, "phase": "common", **duration}])
    assert private - free == pytest.approx(0.675, rel=0.25)
    assert planned - free == pytest.approx(0.015, rel=0.25)


# ---------------------------------------------------------------------------------------- gsplat 1058


def test_a_loader_at_the_edge_makes_one_step_in_four_wait() -> None:
    def at(load_ms: float) -> Result:
        return simulate(
            {
                "model": listed(0.0031, 0.0062),
                "cluster": {"topology": "dgx-a100", "gpus": 8},
                "batch": {"micro_batch": 1, "global_batch": 8},
                "dataloader": {"workers": 4, "load_time": f"{load_ms} ms"},
                "software": {"gradient_clipping": False, "launch_queue": 16},
                "run": {"steps": 100, "warmup": 20},
            }
        )

    memory, decoded = at(0), at(4 * 13.9)
    assert memory.step_time_s == pytest.approx(0.0094, rel=0.05)
    assert decoded.step_time_s == pytest.approx(0.0139, rel=0.02)
    times = np.array(decoded.step_times_s)
    assert (times > 1.5 * np.median(times)).mean() == pytest.approx(0.25, abs=0.02)


# ---------------------------------------------------------------------------------------- traceml 252


def test_wall_time_names_nobody_but_arrival_at_the_collectives_does() -> None:
    result = simulate(
        {
            "model": listed(0.003, 0.009, layers=4, parameters=2_000_000),
            "cluster": {"topology": "dgx-a100", "gpus": 8},
            "batch": {"micro_batch": 1, "global_batch": 8},
            "software": {"log_every": 1},
            "faults": [
                {"kind": "host-stall", "rank": 1, "duration": "200 ms", "at": "backward", "every_steps": 1}
            ],
            "run": {"steps": 5, "warmup": 1, "fold": False},
        }
    )
    walls = [rank.step_s for rank in result.ranks]
    assert max(walls) - min(walls) < 0.005 * max(walls)
    late = {rank.rank: rank.lateness_s for rank in result.ranks}
    assert max(late, key=lambda rank: late[rank]) == 1
    others = [late[rank] for rank in late if rank != 1]
    assert late[1] > 0.01
    assert max(others) < 0.1 * late[1]


# ---------------------------------------------------------------------------------------- Automodel 635


@pytest.mark.parametrize("blocked_s", [27.34, 0.54])
def test_a_checkpoint_blocks_the_step_for_as_long_as_it_says(blocked_s: float) -> None:
    def total(checkpoint: dict[str, object]) -> float:
        return sum(
            simulate(
                {
                    "model": listed(0.5, 1.0),
                    "cluster": {"topology": "dgx-h100", "gpus": 16},
                    "batch": {"micro_batch": 1, "global_batch": 16},
                    "checkpoint": checkpoint,
                    "run": {"steps": 9, "warmup": 0},
                }
            ).step_times_s
        )

    paused = total({"every_steps": 5, "duration": f"{blocked_s} s"})
    assert paused - total({}) == pytest.approx(blocked_s, rel=0.01)


# ------------------------------------------------------------------------------------ marin 8053


def test_overlapping_spans_add_up_to_more_than_the_step() -> None:
    """Kernel times add up to more than the step, since collectives run beside compute."""
    result = simulate("gpt2-xl-ddp", allow_oom=True)
    device = result.timeline.device
    mine = (device.rank == 0) & (device.kind != DeviceKind.COPY)
    spans = float((device.end_s - device.start_s)[mine].sum()) / result.timeline.steps.shape[1]
    assert spans > result.step_time_s
    assert math.isclose(sum(item.seconds for item in result.waterfall), result.step_time_s)
