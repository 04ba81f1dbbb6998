"""Who differs: the planted sort is found and named, and healthy clusters accuse nobody."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from small import run
from timelines import Builder, Cluster128, Toy

from simulator.analysis.spread import Spread, spread
from simulator.timeline import DeviceKind


def study(seeds: int, **cluster: Any) -> list[Spread]:
    return [spread(Cluster128(**cluster).timeline(seed)) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("cluster", "seeds"),
    [
        ({}, 120),
        ({"nodes": 32, "spread": 0.03}, 200),
        ({"nodes": 32, "jitter": 0.1}, 200),
        ({"nodes": 32, "gpus_per_node": 4}, 200),
        ({"nodes": 32, "stages": 4}, 100),
    ],
    ids=str,
)
def test_healthy_clusters_accuse_a_machine_once_in_a_hundred_at_most(cluster: Any, seeds: int) -> None:
    accused = [found for found in study(seeds, **cluster) if found.ranks]
    assert len(accused) <= seeds / 100


def test_a_slow_node_among_128_is_found_and_named() -> None:
    found = study(60, slow_nodes=(17,))
    right = [one for one in found if one.sort == "node" and one.nodes == (17,)]
    assert len(right) >= 0.95 * len(found)
    assert np.median([one.excess for one in right]) == pytest.approx(1 / 0.9 - 1, abs=0.01)
    assert set(right[0].ranks) == set(range(136, 144))


def test_a_slow_rank_is_told_from_a_slow_node() -> None:
    found = study(40, nodes=64, slow_ranks=(203,))
    assert sum(one.sort == "rank" and one.ranks == (203,) for one in found) >= 38


def test_a_rank_whose_host_is_late_is_told_from_one_that_computes_longer() -> None:
    found = study(40, nodes=32, late_rank=77, late_s=0.03)
    assert sum(one.sort == "host" and one.ranks == (77,) for one in found) >= 38


def test_imbalance_names_the_stage() -> None:
    found = study(20, nodes=32, stages=4, slow_stage=2)
    assert {one.sort for one in found} == {"stage"}
    assert all("stage 2" in one.text for one in found)


def test_lengths_and_jitter_accuse_nobody_and_are_told_apart() -> None:
    lengths = Counter(one.sort for one in study(40, nodes=32, lengths=0.2))
    jitter = Counter(one.sort for one in study(40, nodes=32, jitter=0.1))
    assert lengths["lengths"] >= 38
    assert jitter["jitter"] >= 38


def test_everyone_alike_is_everyone() -> None:
    toy = Toy(16)
    for _ in range(3):
        toy.work(0.02)
        toy.collective(0.01)
        toy.end_step()
    assert spread(toy.timeline()).sort == "everyone"


def groups(pace: dict[int, float]) -> Spread:
    """Eight groups of two ranks; a group's collectives take 10 ms, times its pace."""
    build = Builder(16)
    for step in range(3):
        for rank in range(16):
            build.device(rank, 0.1 * step, 0.1 * step + 0.05, step=step)
        for group in range(8):
            begin = 0.1 * step + 0.05
            end = begin + 0.01 * pace.get(group, 1.0)
            row = build.collective(begin, begin, end, ideal_s=0.01)
            for rank in (group, group + 8):
                build.device(
                    rank, begin, end, "dp", DeviceKind.COLLECTIVE, collective=row, step=step
                )  # fmt: skip
    return spread(build.timeline([0, 0.1, 0.2, 0.3]))


def test_a_slow_group_names_its_members() -> None:
    found = groups({3: 2.0})
    assert (found.sort, found.ranks, found.nodes) == ("group", (3, 11), (0, 1))
    assert found.excess == pytest.approx(1.0)


def test_a_network_that_is_slow_for_all_accuses_nobody() -> None:
    found = groups(dict.fromkeys(range(8), 2.0))
    assert (found.sort, found.ranks) == ("network", ())
    assert found.excess == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fault", "sort", "nodes"),
    [
        ({"kind": "slow-compute", "node": 2, "factor": 0.9}, "node", {2}),
        ({"kind": "slow-compute", "rank": 13, "factor": 0.9}, "rank", {1}),
        ({"kind": "slow-nic", "nic": "1:0", "factor": 0.2}, "network", set()),
    ],
    ids=str,
)
def test_faults_of_a_simulated_run_are_found(fault: dict[str, Any], sort: str, nodes: set[int]) -> None:
    jitter = [{"kind": "silicon-spread", "cv": 0.01}, {"kind": "kernel-jitter", "cv": 0.02}]
    found = spread(run(faults=[*jitter, fault]).timeline, 2)
    assert (found.sort, set(found.nodes)) == (sort, nodes)
