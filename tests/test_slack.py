"""Links that can hold nothing up: shares and steps are the same without them."""

from __future__ import annotations

import numpy as np
import pytest
from small import setting

from simulator.engine import events
from simulator.engine.fold import fold
from simulator.hardware import gpu as find_gpu
from simulator.network import fabric as fabrics
from simulator.network.fabric import Fabric
from simulator.network.fluid import max_min
from simulator.network.slack import never_bind
from simulator.scenario import load_topology, topologies


def built(name: str, gpus: int) -> Fabric:
    topology = load_topology(name)
    return fabrics.build(topology, gpus, find_gpu(topology.gpu))


def shares(fabric: Fabric, source: np.ndarray, target: np.ndarray, idle: np.ndarray) -> np.ndarray:
    indptr, links = fabric.routes(source, target)
    owner = np.repeat(np.arange(len(source)), np.diff(indptr))
    keep = ~idle[links]
    kept = np.concatenate([[0], np.cumsum(np.bincount(owner[keep], minlength=len(source)))])
    ones = np.ones(int(keep.sum()))
    caps = np.full(len(source), np.inf)
    return max_min(fabric.capacity_bytes_per_s, kept, links[keep], ones, caps, np.ones(len(source)))


TREES = sorted(name for name in topologies() if load_topology(name).family != "explicit")


@pytest.mark.parametrize("name", TREES)
def test_links_that_never_bind_change_no_share(name: str) -> None:
    fabric = built(name, 64)
    idle = never_bind(fabric)
    rng = np.random.default_rng(1)
    for _ in range(5):
        pairs = rng.permutation(64).reshape(-1, 2)
        crowd = np.column_stack([rng.integers(0, 64, 40), rng.integers(0, 64, 40)])
        source, target = np.concatenate([pairs, crowd[crowd[:, 0] != crowd[:, 1]]]).T
        whole = shares(fabric, source, target, np.zeros_like(idle))
        np.testing.assert_allclose(shares(fabric, source, target, idle), whole, rtol=1e-9)


def test_an_oversubscribed_uplink_may_bind_and_a_full_one_may_not() -> None:
    thin, full = built("leaf-spine-4to1", 128), built("llama3-roce-24k", 128)
    up = "leaf*/spine/up"
    assert not never_bind(thin)[thin.find_links(up)].any()
    assert never_bind(full)[full.find_links(up)].all()


SLOW_NODE = {
    "cluster": {"topology": "llama3-roce-24k", "gpus": 128},
    "parallelism": {"tp": 8, "pp": 2},
    "batch": {"micro_batch": 1, "global_batch": 32},
    "run": {"steps": 1, "warmup": 0},
}


def test_a_slow_node_does_not_tell_its_neighbours_apart_where_uplinks_are_full() -> None:
    whole = setting(**SLOW_NODE, faults=[{"kind": "slow-compute", "node": 1, "factor": 0.5}])
    few, all_ = fold(whole), fold(whole, all_links=True)
    assert len(few.lanes) < len(all_.lanes)
    one, other = events.run(few), events.run(all_)
    np.testing.assert_allclose(one.steps[few.lane_of_rank], other.steps[all_.lane_of_rank], rtol=0, atol=1e-9)


def test_a_slow_uplink_counts() -> None:
    slow = {"kind": "degraded-link", "link": "leaf0/spine/up", "factor": 0.1}
    healthy, hurt = setting(**SLOW_NODE), setting(**SLOW_NODE, faults=[slow])
    assert events.run(fold(hurt)).steps.max() > events.run(fold(healthy)).steps.max()
