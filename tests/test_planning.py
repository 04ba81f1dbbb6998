"""Closed forms give the figures that people know, and move the way they must."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import call

from simulator.errors import SpecError
from simulator.planning import ask, questions, swing
from simulator.planning.checkpoint import daly_s, lost, young_s
from simulator.planning.recompute import layer_bytes
from simulator.study.validation import run_set

POSITIVE = st.floats(1e-3, 1e3)


def test_every_statement_of_the_seeds_holds() -> None:
    rows = list(run_set("seeds"))
    assert len(rows) >= 9
    assert [row.name for row in rows if not row.ok] == []


@given(POSITIVE, POSITIVE, st.floats(0.05, 1.0))
def test_the_fleet_equation_solves_for_each_of_its_terms(days: float, scale: float, mfu: float) -> None:
    flops, peak = scale * 1e24, 989e12
    gpus = ask("gpus", flops=flops, days=days, peak=peak, mfu=mfu, margin=0.0).steps[0].value
    count = flops / gpus
    again = ask("duration", flops=flops, gpus=count, peak=peak, mfu=mfu)
    assert again.value == pytest.approx(days)
    hours = ask("gpu-hours", flops=flops, peak=peak, mfu=mfu).value
    assert hours == pytest.approx(count * days * 24)
    assert ask("implied-mfu", flops=flops, hours=hours, peak=peak).value == pytest.approx(mfu)


def test_a_published_figure_names_its_convention() -> None:
    answer = ask(
        "mfu", parameters=6738415616.0, embedding=262144000.0, layers=32.0, hidden=4096.0,
        sequence_length=4096.0, peak=989.4e12, tokens_per_s=9600.0, published=0.46,
    )  # fmt: skip
    assert answer.value == pytest.approx(0.455, abs=0.002)
    assert "full attention" in answer.notes[-1]
    assert "sparse" not in answer.notes[-1]


@given(st.floats(1, 600), st.floats(3600, 1e6))
def test_no_interval_loses_less_than_dalys(cost: float, mttf: float) -> None:
    best = lost(daly_s(cost, mttf), cost, mttf, 0.0)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert lost(factor * young_s(cost, mttf), cost, mttf, 0.0) >= best * 0.98


@given(st.sampled_from([1.0, 2.0, 8.0]), st.booleans())
def test_recomputing_more_keeps_less(tp: float, sequence_parallel: bool) -> None:
    kept = [
        layer_bytes(2048, 4, 6144, 64, tp, mode, sequence_parallel) for mode in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)


def test_an_answer_swings_with_its_input() -> None:
    moved = swing("duration", "mfu", 0.3, 0.5, flops=6.35e24, gpus=16384.0, peak=989e12)
    values = [answer.value for _, answer in moved]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("question", "inputs"),
    [
        ("duration", {"gpus": -1.0, "peak": 1e15, "flops": 1e24}),
        ("duration", {"gpus": 8.0, "peak": 1e15, "mfu": 1.5, "flops": 1e24}),
        ("duration", {"gpus": 8.0, "peak": float("nan"), "flops": 1e24}),
        ("gpus", {"days": 0.0, "peak": 1e15, "flops": 1e24}),
        ("mfu", {"parameters": 1e9, "peak": 1e15}),
        ("durations", {}),
        ("price", {"parameters": 1e9, "peak": 1e15, "price_per_hour": 2.0, "speed": 3.0}),
    ],
)
def test_values_that_cannot_be_are_refused(question: str, inputs: dict[str, float]) -> None:
    with pytest.raises(SpecError):
        ask(question, **inputs)


@pytest.mark.parametrize("name", sorted(questions()))
def test_every_question_prints_its_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    from simulator.cli.plan import _EXAMPLES

    arguments = _EXAMPLES[name].replace("'", '"').split()[1:]
    joined = []
    for part in arguments:  # put quoted parts together again
        if joined and joined[-1].startswith('"') and not joined[-1].endswith('"'):
            joined[-1] += " " + part
        else:
            joined.append(part)
    code, out, err = call(capsys, *(part.strip('"') for part in joined), "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert {"inputs", "formula", "steps", "answer"} <= set(answer)
    assert {"value", "unit"} == set(answer["answer"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "duration", "--gpus", "8"),
        ("plan", "gpus", "--days", "soon", "--flops", "1e24", "--gpu", "h100-sxm"),
        ("plan", "gpus", "--days", "3", "--flops", "1e24", "--gpu", "h1000"),
        ("plan", "gpus", "--days", "3", "--flops", "1e24", "--gpu", "h100-sxm", "--swing", "mfu"),
        ("validate", "seedss"),
    ],
    ids=" ".join,
)
def test_bad_questions_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "error" in err.lower()


def test_validate_prints_the_seeds_as_a_list_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "validate", "seeds", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {"name", "published", "ours", "error", "ok"} <= set(rows[0])
