"""Seeded mixes of causes: the planted one comes first, or is worth what it costs with and without."""

from __future__ import annotations

import random
from typing import Any

import pytest

from simulator import load
from simulator.study.worth import worth

SHORT: dict[str, Any] = {
    "name": "mix",
    "model": {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000},
    "cluster": {"topology": "dgx-a100", "gpus": 16},
    "batch": {"sequence_length": 1024, "micro_batch": 8, "global_batch": 128},
    "software": {"launch_queue": 64},
    "run": {"steps": 4, "warmup": 1},
}


def _fault(draw: random.Random) -> dict[str, Any]:
    return draw.choice(
        [
            {"kind": "slow-compute", "node": draw.randrange(2), "factor": draw.uniform(0.5, 0.8)},
            {"kind": "slow-memory", "rank": draw.randrange(16), "factor": draw.uniform(0.3, 0.6)},
            {"kind": "host-stall", "rank": draw.randrange(16), "duration": "400 ms", "every_steps": 1},
            {"kind": "garbage-collection", "duration": "300 ms", "every_steps": 1, "phase": "private"},
            {"kind": "slow-nic", "nic": f"{draw.randrange(2)}:{draw.randrange(4)}", "factor": 0.05},
            {"kind": "kernel-jitter", "cv": draw.uniform(0.3, 0.6)},
        ]
    )


def _values(faults: list[dict[str, Any]], load_time: str | None) -> dict[str, Any]:
    values = {**SHORT, "faults": faults}
    return values if load_time is None else {**values, "dataloader": {"workers": 1, "load_time": load_time}}


def _step_s(faults: list[dict[str, Any]], load_time: str | None = None) -> float:
    from simulator import simulate

    return simulate(_values(faults, load_time), allow_oom=True).step_time_s


@pytest.mark.parametrize("seed", range(25))
def test_a_planted_fault_comes_first_or_is_worth_what_it_costs(seed: int) -> None:
    fault = _fault(random.Random(seed))
    found = worth(load(_values([fault], None)), "shapley", processes=1)
    cause = f"fault 1: {fault['kind']}"
    true = _step_s([fault]) - _step_s([])
    assert max(found.seconds, key=found.seconds.__getitem__) == cause or found.seconds[
        cause
    ] == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("seed", range(25, 33))
def test_a_fault_and_a_slow_loader_share_the_step_as_runs_with_and_without_say(seed: int) -> None:
    draw = random.Random(seed)
    fault, slow = _fault(draw), f"{draw.uniform(150, 400):.0f} ms"
    found = worth(load(_values([fault], slow)), "shapley", processes=1)
    both, only_fault, only_loader, none = (
        _step_s([fault], slow), _step_s([fault]), _step_s([], slow), _step_s([]),
    )  # fmt: skip
    of_fault = (both - only_loader + only_fault - none) / 2
    of_loader = (both - only_fault + only_loader - none) / 2
    total = both - none
    assert found.seconds[f"fault 1: {fault['kind']}"] == pytest.approx(of_fault, abs=0.15 * total)
    assert found.seconds["dataloader"] == pytest.approx(of_loader, abs=0.15 * total)
