"""Worth of causes: what re-runs without them gain, and how two planted causes share a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import run, scenario, values
from test_cli import call

from simulator import simulate
from simulator.parallel.schedules.base import schedules
from simulator.study.worth import METHODS, worth

NODE = {"kind": "slow-compute", "node": 2, "factor": 0.7}
MEMORY = {"kind": "slow-memory", "node": 1, "factor": 0.8}
MIX = {"faults": [NODE, MEMORY], "recompute": "full", "run": {"steps": 3, "warmup": 1}}


SHAPES: dict[str, dict[str, Any]] = {
    "data parallel": {},
    "pipeline": {"parallelism": {"pp": 2, "tp": 8, "dp": 2}, "recompute": "full", "batch__global_batch": 32},
    "sharded": {"parallelism": {"sharding": "fsdp"}},
    "documents": {
        "batch__documents": {"distribution": "exponential", "mean": 300},
        "run__steps": 1,
        "run__warmup": 0,
    },
    "lanes": {"run__engine": "lanes", "faults": [{"kind": "kernel-jitter", "cv": 0.2}]},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["cumulative", "shapley"])
def test_worths_add_up_to_the_gap_between_the_formula_and_the_step(shape: str, method: str) -> None:
    changes = {"run": {"steps": 2, "warmup": 1}, "dataloader": {"workers": 1, "load_time": "90 ms"}}
    loaded = scenario(**{**changes, **SHAPES[shape]})
    found = worth(loaded, method, processes=1)
    result = simulate(loaded, allow_oom=True)
    assert found.step_s == pytest.approx(result.step_time_s, rel=1e-9)
    assert found.predicted_s == pytest.approx(result.mfu * result.step_time_s, rel=1e-6)
    assert sum(found.seconds.values()) == pytest.approx(found.all_s, abs=1e-9)
    assert found.all_s + found.remainder_s == pytest.approx(found.gap_s)
    if shape != "documents":  # whose attention the formula counts in full
        assert found.remainder_s == pytest.approx(0.0, abs=1e-9 * found.step_s)


def test_worths_do_not_depend_on_the_order_in_which_faults_are_written() -> None:
    few = {"run": {"steps": 2, "warmup": 1}}
    one = worth(scenario(faults=[NODE, MEMORY], **few), "shapley", processes=1)
    other = worth(scenario(faults=[MEMORY, NODE], **few), "shapley", processes=1)
    assert one.seconds["fault 1: slow-compute"] == pytest.approx(other.seconds["fault 2: slow-compute"])
    assert one.seconds["fault 2: slow-memory"] == pytest.approx(other.seconds["fault 1: slow-memory"])
    assert one.seconds["fault 1: slow-compute"] > one.seconds["fault 2: slow-memory"]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_there_or_does_nothing_is_worth_nothing(method: str) -> None:
    nothing = {"kind": "slow-compute", "node": 1, "factor": 1.0}
    found = worth(scenario(faults=[nothing], run={"steps": 2, "warmup": 1}), method, processes=1)
    assert found.seconds["fault 1: slow-compute"] == 0.0
    assert found.seconds["launches"] == 0.0  # the host is far ahead here
    assert not {"dataloader", "checkpoints", "recomputation", "pipeline bubble"} & set(found.seconds)


def test_two_faults_on_one_rank_share_what_either_would_cost() -> None:
    twins = [{"kind": "host-stall", "rank": 3, "duration": "200 ms", "every_steps": 1} for _ in range(2)]
    loaded = scenario(faults=twins, software__launch_queue=64, run={"steps": 3, "warmup": 1})
    found = worth(loaded, "shapley", processes=1)
    first, second = (found.seconds[f"fault {number}: host-stall"] for number in (1, 2))
    assert first == pytest.approx(second, rel=0.05)


def test_gpus_of_two_kinds_leave_a_remainder_that_no_cause_explains() -> None:
    mixed = {"topology": "dgx-a100", "gpus": 32, "node_gpus": {1: "h100-sxm"}}
    loaded = scenario(cluster=mixed, run={"steps": 2, "warmup": 1})
    found = worth(loaded, "cumulative", processes=1)
    assert found.remainder_s > 0
    assert found.gap_s == pytest.approx(found.all_s + found.remainder_s)


def test_cumulative_worths_add_up_and_processes_change_nothing() -> None:
    one = worth(scenario(**MIX), "cumulative", processes=1)
    assert sum(one.seconds.values()) == pytest.approx(one.all_s, abs=1e-9)
    assert worth(scenario(**MIX), "cumulative", processes=2) == one


def test_a_single_worth_is_the_difference_with_and_without() -> None:
    changes = {"faults": [NODE], "run": {"steps": 3, "warmup": 1}}
    found = worth(scenario(**changes), "single", processes=1)
    clean = run(run={"steps": 3, "warmup": 1}).step_time_s
    assert found.seconds["fault 1: slow-compute"] == pytest.approx(run(**changes).step_time_s - clean)


def test_the_report_shows_worths_when_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(values(faults=[NODE], run={"steps": 3, "warmup": 1})), encoding="utf-8")
    code, out, _ = call(capsys, "diagnose", str(file), "--worth", "cumulative")
    assert code == 0
    assert "fault 1: slow-compute" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = call(capsys, "diagnose", str(file), "--worth", "single", "--json")
    assert json.loads(out)["worth"]["method"] in METHODS
    assert call(capsys, "diagnose", str(file), "--worth", "double")[0] == 2


@pytest.mark.parametrize("schedule", schedules())
def test_without_its_causes_every_schedule_takes_what_the_formula_says(schedule: str) -> None:
    parallelism = {"pp": 2, "tp": 4, "dp": 4, "schedule": schedule}
    loaded = scenario(parallelism=parallelism, batch__global_batch=128, run={"steps": 2, "warmup": 1})
    found = worth(loaded, "cumulative", processes=1)
    assert found.remainder_s == pytest.approx(0.0, abs=1e-9 * found.step_s)
    assert found.seconds["pipeline bubble"] > 0
