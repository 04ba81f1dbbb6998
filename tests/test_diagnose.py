"""Diagnosis: the planted cause comes first, or is worth what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import run, scenario, values
from test_cli import call

from simulator.study.diagnose import diagnose

LEAD = {"software__launch_queue": 64}
PLANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "slow node": ("faults", {"faults": [{"kind": "slow-compute", "node": 2, "factor": 0.7}]}, {}),
    "slow memory": ("faults", {"faults": [{"kind": "slow-memory", "rank": 5, "factor": 0.5}]}, {}),
    "slow host": ("faults", {"faults": [{"kind": "slow-host", "rank": 3, "factor": 0.05}]}, {}),
    "stall": (
        "faults",
        {**LEAD, "faults": [{"kind": "host-stall", "rank": 3, "duration": "300 ms", "at_step": 4}]},
        LEAD,
    ),
    "collections": (
        "faults",
        {
            **LEAD,
            "faults": [
                {"kind": "garbage-collection", "duration": "60 ms", "every_steps": 2, "phase": "private"}
            ],
        },
        LEAD,
    ),
    "slow NIC": ("faults", {"faults": [{"kind": "slow-nic", "nic": "1:2", "factor": 0.1}]}, {}),
    "degraded link": (
        "faults",
        {"faults": [{"kind": "degraded-link", "link": "node1/nic0/*", "factor": 0.1}]},
        {},
    ),
    "silicon": ("faults", {"faults": [{"kind": "silicon-spread", "cv": 0.04}]}, {}),
    "jitter": ("faults", {"faults": [{"kind": "kernel-jitter", "cv": 0.3}]}, {}),
    "two nodes": ("faults", {"faults": [{"kind": "slow-compute", "nodes": [1, 2], "factor": 0.8}]}, {}),
    "loader": ("dataloader", {"dataloader": {"workers": 2, "load_time": "300 ms"}}, {}),
    "no workers": ("dataloader", {"dataloader": {"workers": 0, "load_time": "200 ms"}}, {}),
    "no overlap": ("gradient communication without overlap", {"overlap__grad_reduce": False}, {}),
    "recomputation": ("recomputation", {"recompute": "full"}, {}),
    "checkpoints": ("checkpoints", {"checkpoint": {"every_steps": 2, "duration": "500 ms"}}, {}),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_cause_is_worth_what_it_costs(plant: str) -> None:
    cause, planted, clean = PLANTS[plant]
    if cause == "faults":
        cause = f"fault 1: {planted['faults'][0]['kind']}"
    found = diagnose(scenario(**planted), allow_oom=True)
    true = run(**planted).step_time_s - run(**clean).step_time_s
    worth = {one.cause: one.seconds for one in found.causes}
    assert cause in worth, worth
    assert found.causes[0].cause == cause or worth[cause] == pytest.approx(true, rel=0.1)


def test_a_slow_node_is_named() -> None:
    found = diagnose(scenario(faults=[{"kind": "slow-compute", "node": 2, "factor": 0.8}]))
    assert found.spread["node"] == 2
    assert found.spread["sort"] == "node"
    assert "node 2" in found.spread["text"]


def test_seconds_to_explain_and_the_formula_make_the_step() -> None:
    found = diagnose(scenario())
    assert found.step_predicted_s + found.to_explain_s == pytest.approx(found.step_s)
    assert found.mfu == pytest.approx(found.step_predicted_s / found.step_s)


def test_the_report_reads_in_80_columns_and_fails_when_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(values()), encoding="utf-8")
    code, out, _ = call(capsys, "diagnose", str(file))
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = call(capsys, "diagnose", str(file), "--json", "--fail-if", "mfu<0.99")
    assert code == 1
    wanted = {"step_predicted_s", "step_s", "to_explain_s", "gpu_idle", "gaps", "collectives", "optimizer_s"}
    assert wanted | {"suspects", "spread", "causes"} <= set(json.loads(out))
    assert call(capsys, "diagnose", str(file), "--fail-if", "mfoo<1")[0] == 2
