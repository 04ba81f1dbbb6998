"""Routed experts: what is exchanged around them, who holds copies of them, and loads that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import run, scenario, setting

from simulator.errors import SpecError
from simulator.model import model_blocks
from simulator.model.blocks import Exchange
from simulator.parallel.mesh import build_mesh
from simulator.spec import Parallelism

MOE = {
    "layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000,
    "experts": {"count": 8, "top_k": 2, "ffn": 2048},
}  # fmt: skip
TOKENS_BYTES = 8 * 1024 * 1024 * 2  # a micro-batch's hidden states


def _exchanges(**layout: Any) -> list[tuple[str, str, float, str]]:
    block = model_blocks(scenario(model=MOE, parallelism=layout))[1]
    return [
        (piece.kind, piece.axis, piece.size_bytes / TOKENS_BYTES, piece.part)
        for piece in (*block.forward, *block.backward)
        if isinstance(piece, Exchange)
    ]


def test_ranks_that_split_an_expert_gather_its_tokens_and_scatter_its_sums() -> None:
    found = _exchanges(tp=4, ep=2, expert_tp=2, sequence_parallel=True)
    around = [one for one in found if one[1] in ("ep", "expert-tp")]
    sent, gathered = 2 / 4, 2 / 4 * 2
    for part in ("forward", "input"):
        assert [one for one in around if one[3] == part] == [
            ("all-to-all", "ep", sent, part),
            ("all-gather", "expert-tp", gathered, part),
            ("reduce-scatter", "expert-tp", gathered, part),
            ("all-to-all", "ep", sent, part),
        ]


def test_whole_experts_exchange_nothing_over_tp_with_sequence_parallelism() -> None:
    found = _exchanges(tp=4, ep=2, expert_tp=1, sequence_parallel=True)
    assert not [one for one in found if one[1] == "expert-tp"]


@pytest.mark.parametrize("expert_tp", [1, 2, 4])
def test_without_sequence_parallelism_the_layers_output_is_summed_over_tp(expert_tp: int) -> None:
    found = _exchanges(tp=4, ep=2, expert_tp=expert_tp)
    assert [one for one in found if one[1] == "tp" and one[3] == "forward"] == [
        ("all-reduce", "tp", 1.0, "forward")
    ] * 2  # attention and experts
    assert {one[2] for one in found if one[1] == "ep"} == {2 * expert_tp / 4}


def test_ranks_that_hold_the_same_experts_are_those_of_tp_that_do_not_split_them() -> None:
    mesh = build_mesh(Parallelism(tp=4, dp=4, ep=2, expert_tp=2))
    assert mesh.groups("tp")[0].tolist() == [0, 1, 2, 3]
    assert mesh.groups("expert-tp")[:2].tolist() == [[0, 1], [2, 3]]
    assert mesh.groups("ep")[0].tolist() == [0, 4]
    assert mesh.groups("expert-dp")[0].tolist() == [0, 2, 8, 10]
    with pytest.raises(SpecError, match="expert_tp"):
        build_mesh(Parallelism(tp=4, expert_tp=3))


def test_the_fullest_rank_has_the_stated_load_and_the_mean_stays() -> None:
    made = setting(model=MOE, cluster__gpus=16, parallelism={"ep": 4, "tp": 2}, batch__expert_imbalance=1.5)
    loads = made.loads["experts"](0)
    for group in made.mesh.groups("ep"):
        assert loads[:, group].max(axis=1) == pytest.approx(1.5)
        assert loads[:, group].mean(axis=1) == pytest.approx(1.0)
    for group in made.mesh.groups("tp"):
        assert (loads[:, group] == loads[:, group[:1]]).all()
    assert len(np.unique(loads.argmax(axis=1))) > 1


def test_imbalance_costs_time_and_never_model_flops() -> None:
    results = [
        run(
            model=MOE, cluster__gpus=8, parallelism={"ep": 4}, batch__expert_imbalance=imbalance,
            batch__global_batch=64, run={"steps": 2, "warmup": 1},
        )
        for imbalance in (1.0, 1.25, 2.0)
    ]  # fmt: skip
    times = [result.step_time_s for result in results]
    assert times == sorted(set(times))
    products = [result.mfu * result.step_time_s for result in results]
    assert products == pytest.approx([products[0]] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch__expert_imbalance": 1.5}, "1 without parallelism.ep"),
        ({"batch__expert_imbalance": 5.0, "parallelism__ep": 4}, "at most parallelism.ep"),
        ({"parallelism": {"tp": 4, "expert_tp": 3}}, "does not divide tp"),
        (
            {
                "batch__expert_imbalance": 1.5,
                "parallelism__ep": 4,
                "model": {**MOE, "experts": {**MOE["experts"], "capacity_factor": 1.25}},  # type: ignore[dict-item]
            },
            "1 with a capacity factor",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        scenario(**{"model": MOE, **changes})
