"""Acceptance on the simulated cluster: what it catches, what it names, what it costs"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from small import scenario
from test_cli import call

from simulator.study.acceptance import Acceptance, accept
from simulator.study.simulate import load


def _accept(*faults: dict[str, Any], **changes: Any) -> Acceptance:
    return accept(scenario(faults=list(faults), **changes), burn_s=0.2)


def _shares(found: Acceptance) -> dict[str, float]:
    return {check.name: check.share for check in found.checks}  # of a collective, the largest message


def test_a_healthy_cluster_passes_at_what_it_is_held_against() -> None:
    found = _accept()
    assert found.passed
    assert not found.failing
    assert all(check.share == pytest.approx(1.0) for check in found.checks)


@pytest.mark.parametrize(
    ("fault", "test", "share", "named"),
    [
        ({"kind": "slow-compute", "rank": 11, "factor": 0.8}, "GEMM burn", 0.8, "GPU 11 (node 1, local 3)"),
        ({"kind": "slow-compute", "node": 2, "factor": 0.8}, "GEMM burn", 0.8, "node 2"),
        ({"kind": "slow-memory", "rank": 5, "factor": 0.7}, "HBM stream", 0.7, "GPU 5 (node 0, local 5)"),
        ({"kind": "slow-nic", "nic": "3:2", "factor": 0.5}, "NIC pairs", 0.5, "NIC 3:2"),
        ({"kind": "slow-nic", "nic": "0:0", "factor": 0.5}, "all-node all-reduce", 0.5, "NIC 0:0"),
    ],
)
def test_a_bad_part_is_caught_and_named(fault: dict[str, Any], test: str, share: float, named: str) -> None:
    found = _accept(fault)
    assert not found.passed
    assert _shares(found)[test] == pytest.approx(share, rel=0.02)
    assert found.failing == (named,)


def test_a_slow_link_to_nvswitch_is_its_nodes() -> None:
    found = _accept({"kind": "degraded-link", "link": "node1/gpu*", "factor": 0.5})
    assert _shares(found)["NVLink all-reduce"] < 0.6
    assert "node 1" in found.failing


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_bad_nic_is_among_the_named_whatever_the_number_of_nodes(nodes: int) -> None:
    found = _accept(
        {"kind": "slow-nic", "nic": f"{nodes - 1}:1", "factor": 0.4},
        cluster__gpus=8 * nodes,
        batch__global_batch=64 * nodes,
    )
    assert f"NIC {nodes - 1}:1" in found.failing
    assert len(found.failing) <= 2  # with two nodes, or at the end of an odd row, either end may be it


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "slow-compute", "node": 2, "factor": 0.5, "from_step": 3},
        {"kind": "slow-nic", "nic": "3:2", "factor": 0.5, "from": "10 min"},
        {"kind": "host-stall", "rank": 1, "duration": "1 s"},
        {"kind": "slow-loader", "factor": 0.1},
        {"kind": "kernel-jitter", "cv": 0.1},
    ],
)
def test_what_comes_later_or_is_not_hardware_is_not_seen(fault: dict[str, Any]) -> None:
    assert _accept(fault).passed


def test_the_burn_is_cold() -> None:
    """An H100 keeps 0.87 of its clock under load; a short burn does not know."""
    changes = {"cluster__gpu": "h100-sxm", "cluster__topology": "dgx-h100", "cluster__gpus": 8}
    burn = _accept(**changes).checks[0]
    assert burn.worst > 0.7 * 989.4e12


def test_all_nodes_of_16384_gpus_take_seconds() -> None:
    begin = time.process_time()
    found = accept(load("llama3-405b-16k", {}))
    assert found.passed
    assert found.nodes == 2048
    assert time.process_time() - begin < 20


def test_the_verb_exits_1_on_a_fail_and_0_on_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "accept", "slow-nic", "--burn", "0.1")
    assert code == 1
    assert "Failing: NIC 3:0." in out
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = call(capsys, "accept", "slow-node", "--gemm", "0.75", "--burn", "0.1", "--json")
    assert code == 0
    assert json.loads(out)["passed"] is True
    code, _, err = call(capsys, "accept", "slow-node", "--gemm", "1.5")
    assert code == 2
    assert "gemm" in err
