"""The reference of results: each name that a result has is explained, and none that it has not."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from small import run

from simulator.analysis.causes import ITEMS
from simulator.analysis.result import SCHEMA_VERSION

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "reference" / "result.md").read_text(encoding="utf-8")


def documented(title: str) -> set[str]:
    """Names in the first column of the table under a heading."""
    section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(title))
    cells = re.findall(r"^\| (`[^|]+) \|", body, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.fixture(scope="module", params=["events", "lanes"])
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    faults = [{"kind": "slow-compute", "node": 1, "factor": 0.8}, {"kind": "kernel-jitter", "cv": 0.05}]
    return run(run__engine=request.param, faults=faults, recompute="full").to_dict()


def test_the_reference_names_what_a_result_has(result: dict[str, Any]) -> None:
    assert documented("The whole") == set(result)
    assert documented("`waterfall`") == set(result["waterfall"][0])
    assert documented("`memory`") == set(result["memory"])
    assert documented("`ranks`") == set(result["ranks"][0])


def test_the_reference_states_the_version() -> None:
    assert f"Version {SCHEMA_VERSION}" in TEXT


def test_a_result_is_plain_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_items_are_parts_of_the_step_and_sum_to_it(result: dict[str, Any]) -> None:
    items, step = result["waterfall"], result["step_time_s"]
    assert sum(item["seconds"] for item in items) == pytest.approx(step, rel=1e-9)
    assert sum(item["mfu_points"] for item in items) == pytest.approx(100, rel=1e-9)
    for item in items:
        assert item["seconds"] >= -1e-9 * step, item["name"]


def test_shares_of_the_peak_are_shares(result: dict[str, Any]) -> None:
    assert 0 < result["mfu"] <= result["hfu"] <= 1
    assert items_share(result, "model FLOPs at peak") == pytest.approx(100 * result["mfu"])
    peak = result["peak_flops_per_gpu_per_s"]
    assert result["model_flops_per_gpu_per_s"] == pytest.approx(result["mfu"] * peak)


def test_rates_times_steps_are_the_batch(result: dict[str, Any]) -> None:
    assert result["samples_per_s"] * result["step_time_s"] == pytest.approx(256)
    assert result["tokens_per_s"] == pytest.approx(1024 * result["samples_per_s"])
    assert result["tokens_per_s_per_gpu"] * result["gpus"] == pytest.approx(result["tokens_per_s"])
    assert math.fsum(result["step_times_s"]) / len(result["step_times_s"]) == pytest.approx(
        result["step_time_s"]
    )


def test_ranks_stand_for_all_gpus_and_never_wait_longer_than_a_step(result: dict[str, Any]) -> None:
    assert sum(rank["multiplicity"] for rank in result["ranks"]) == result["gpus"]
    for rank in result["ranks"]:
        assert 0 <= rank["compute_s"] <= rank["step_s"] * (1 + 1e-9)
        assert 0 <= rank["wait_s"] <= rank["step_s"] * (1 + 1e-9)
        assert rank["lateness_s"] >= 0


def test_the_page_on_the_waterfall_explains_every_item() -> None:
    text = (DOCS / "models" / "waterfall.md").read_text(encoding="utf-8")
    for item in ITEMS:
        assert item in text, item


def items_share(result: dict[str, Any], name: str) -> float:
    return next(item["mfu_points"] for item in result["waterfall"] if item["name"] == name)
