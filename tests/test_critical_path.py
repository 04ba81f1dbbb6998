"""The critical path covers its step, and moves with what is on it."""

from __future__ import annotations

import pytest
from small import run

from simulator.analysis.critical_path import critical_path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"overlap__grad_reduce": False},
        {"parallelism": {"pp": 2}, "batch__micro_batch": 2, "batch__global_batch": 256},
        {"faults": [{"kind": "slow-compute", "node": 1, "factor": 0.7}]},
    ],
)
def test_the_path_covers_the_step(changes: dict[str, object]) -> None:
    result = run(**changes)
    path = critical_path(result.timeline)
    start, end = result.timeline.steps[:, -1, 0].min(), result.timeline.steps[:, -1, 1].max()
    assert path.length_s == pytest.approx(end - start, rel=1e-6)
    assert all(link.seconds >= 0 for link in path.links)
    assert sum(path.by_kind().values()) <= path.length_s * (1 + 1e-6)


def test_the_slow_node_is_on_the_path() -> None:
    path = critical_path(run(faults=[{"kind": "slow-compute", "node": 2, "factor": 0.6}]).timeline)
    slow = sum(link.seconds for link in path.links if link.kind == "compute" and 16 <= link.rank < 24)
    assert slow > 0.5 * path.length_s


def test_the_derivative_says_what_a_faster_network_is_worth() -> None:
    path = critical_path(run(overlap__grad_reduce=False).timeline)
    assert path.by_kind()["collective"] > 0.02 * path.length_s
