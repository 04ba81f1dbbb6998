"""Many draws: the same as each by itself, with any number of processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

from simulator.errors import SpecError
from simulator.study.monte_carlo import monte_carlo
from simulator.study.simulate import simulate

FALLING = {"kind": "slow-compute", "fraction": 0.25, "factor": 0.8}


@pytest.mark.parametrize(
    "fault",
    [
        FALLING,
        {"kind": "garbage-collection", "duration": "300 ms", "every_steps": 3, "phase": "private"},
        {"kind": "silicon-spread", "cv": 0.05},
        {"kind": "kernel-jitter", "cv": 0.1},
        {"kind": "host-stall", "fraction": 0.1, "of": "rank", "duration": "200 ms", "at_step": 3},
    ],
)
def test_a_draw_is_the_run_with_its_seed(fault: dict[str, Any]) -> None:
    found = monte_carlo(scenario(faults=[fault], run__engine="lanes"), 4)
    alone = [
        simulate(scenario(faults=[fault], run__engine="lanes", run__seed=seed)).step_time_s
        for seed in found.seeds
    ]
    np.testing.assert_allclose(found.step_time_s, alone, rtol=1e-9)


def test_draws_are_the_same_with_two_processes() -> None:
    drawn = scenario(faults=[FALLING, {"kind": "kernel-jitter", "cv": 0.1}], run__steps=3)
    assert monte_carlo(drawn, 4, processes=2) == monte_carlo(drawn, 4)


def test_a_larger_share_of_slow_nodes_is_never_faster() -> None:
    spread = {"kind": "silicon-spread", "cv": 0.01}
    means = [
        monte_carlo(scenario(faults=[{**FALLING, "fraction": share}, spread]), 8).mean_s
        for share in (0.25, 0.5, 1.0)
    ]
    assert means == sorted(means)


def test_the_reference_names_what_json_has() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/result.md").read_text()
    section = page.partition("## Draws")[2].partition("## ")[0]
    drawn = scenario(faults=[{"kind": "silicon-spread", "cv": 0.01}], run__steps=2, run__warmup=0)
    assert set(re.findall(r"`(\w+)`", section)) - {"n"} == set(monte_carlo(drawn, 2).to_dict())


def test_what_draws_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="nothing is drawn"):
        monte_carlo(scenario(), 4)
