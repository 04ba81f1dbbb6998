"""Acceptance passes and production is slow: which layer holds the gap"""

from __future__ import annotations

import json
from typing import Any

import pytest
from small import scenario
from test_cli import call

from simulator.report.acceptance_table import elimination
from simulator.study.acceptance_layers import COMMUNICATION, HOST, INPUT, TESTED, TIME, Elimination, eliminate
from simulator.study.simulate import load, simulate


def _eliminate(**changes: Any) -> Elimination:
    return eliminate(scenario(**changes))


_QUICK = {"load_time": "40 ms", "workers": 1, "prefetch_factor": 1}
_H100 = {"cluster__gpu": "h100-sxm", "cluster__topology": "dgx-h100"}


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"dataloader": {"load_time": "2 s", "workers": 1, "prefetch_factor": 1}}, INPUT),
        ({"dataloader": _QUICK, "faults": [{"kind": "slow-loader", "factor": 0.02}]}, INPUT),
        ({"faults": [{"kind": "host-stall", "rank": 3, "duration": "900 ms"}]}, HOST),
        ({"checkpoint__every_steps": 2, "checkpoint__duration": "1 s"}, HOST),
        ({"batch__micro_batch": 2, "batch__global_batch": 64, "overlap__grad_reduce": False}, COMMUNICATION),
        ({"faults": [{"kind": "slow-compute", "node": 2, "factor": 0.6, "from_step": 1}]}, TIME),
        ({"faults": [{"kind": "slow-nic", "node": 1, "factor": 0.05, "from_step": 1}]}, TIME),
        (_H100, TIME),
    ],
    ids=str,
)
def test_the_layer_that_acceptance_cannot_see_is_named(changes: dict[str, Any], layer: str) -> None:
    found = _eliminate(**changes)
    assert found.acceptance.passed
    assert found.holds == layer
    assert "Acceptance passes" in elimination(found)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"kind": "slow-compute", "rank": 9, "factor": 0.5}, "GPU 9 (node 1, local 1)"),
        ({"kind": "slow-nic", "nic": "2:1", "factor": 0.05}, "NIC 2:1"),
    ],
)
def test_what_acceptance_catches_is_said_first(fault: dict[str, Any], named: str) -> None:
    found = _eliminate(faults=[fault])
    assert not found.acceptance.passed
    assert found.holds == TESTED
    assert f"Acceptance catches it already: {named}" in " ".join(elimination(found).split())


def test_hardware_inside_the_thresholds_is_told_from_what_fails() -> None:
    found = _eliminate(
        faults=[{"kind": "slow-compute", "rank": 9, "factor": 0.955}], overlap__grad_reduce=True
    )
    assert found.acceptance.passed
    assert found.layers[TESTED] > 0.02 * found.step_s


def test_layers_and_the_rest_add_up_to_the_step_whatever_is_planted() -> None:
    """What is left is the same whatever was planted, and each plant is worth what a run without it says."""
    stall = {"kind": "host-stall", "rank": 3, "duration": "900 ms"}
    late = {"kind": "slow-compute", "node": 2, "factor": 0.6, "from_step": 1}
    slow = {"load_time": "2 s", "workers": 1, "prefetch_factor": 1}
    calm, both = _eliminate(), _eliminate(faults=[stall, late], dataloader=slow)
    assert both.rest_s == pytest.approx(calm.rest_s, rel=1e-3)
    assert sum(both.layers.values()) + both.rest_s == pytest.approx(both.step_s, rel=1e-9)
    without = simulate(scenario(faults=[stall, late]), allow_oom=True).step_time_s
    assert both.layers[INPUT] == pytest.approx(both.step_s - without, abs=1e-6)


def test_the_bundled_hot_node_is_a_matter_of_time() -> None:
    found = eliminate(load("hot-node", {}))
    assert found.acceptance.passed
    assert found.holds == TIME


def test_diagnose_shows_acceptance_and_refuses_traces(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "diagnose", "launch-bound", "--with-acceptance", "--json")
    assert code == 0
    assert json.loads(out)["with_acceptance"]["holds"] == HOST
    code, out, _ = call(capsys, "diagnose", "launch-bound", "--with-acceptance")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "the host software holds" in " ".join(out.split())
    code, _, err = call(capsys, "diagnose", "traces.json.gz", "--with-acceptance")
    assert code == 2
    assert "expected a scenario" in err
