"""Worth of causes: what re-runs without them gain, and how two planted causes share a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import run, scenario, values
from test_cli import call

from simulator.study.worth import METHODS, worth

NODE = {"kind": "slow-compute", "node": 2, "factor": 0.7}
MEMORY = {"kind": "slow-memory", "node": 1, "factor": 0.8}
MIX = {"faults": [NODE, MEMORY], "recompute": "full", "run": {"steps": 3, "warmup": 1}}


def test_shapley_values_add_up_to_what_removing_everything_gains() -> None:
    found = worth(scenario(**MIX, software__log_every=0), "shapley", processes=1)
    assert found.exact or found.runs > 16
    assert sum(found.seconds.values()) == pytest.approx(found.all_s, abs=1e-9)
    assert found.seconds["fault 1: slow-compute"] > found.seconds["fault 2: slow-memory"]


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
