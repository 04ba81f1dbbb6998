"""Every schedule does each piece of work once, in an order that can be run, with the published bubble and peak."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import values
from test_cli import call

from simulator import simulate
from simulator.errors import SpecError
from simulator.parallel.schedules import Schedule, find_schedule, schedules
from simulator.parallel.schedules.unit_time import UnitTimes, unit_times

PER_MICRO_BATCH = 3  # units: forward, and a backward of two


def _made(name: str, stages: int, rounds: int, chunks: int) -> tuple[Schedule, UnitTimes, int, int]:
    """A schedule with micro-batches enough for its steady state."""
    plan = find_schedule(name)
    virtual = plan.virtual_stages or (chunks if name.startswith("interleaved") else 1)
    micro_batches = 2 * stages * rounds
    return plan, unit_times(plan, stages, micro_batches, virtual), micro_batches, virtual


def _inner_bubble(timed: UnitTimes, stage: int) -> int:
    """Idle time of a stage between its first pass and its last."""
    passes = timed.stages[stage]
    return passes[-1][2] - passes[0][1] - sum(end - start for _, start, end in passes)


#: name -> bubble of a step in units of one chunk's passes, F = I = W = 1, from the papers' formulas
BUBBLES = {
    "gpipe": lambda p, v: (p - 1) * (1 + 2),  # Huang et al. 2019, section 2.3
    "1f1b": lambda p, v: (p - 1) * (1 + 2),  # Narayanan et al. 2021, section 2.2.1
    "interleaved-1f1b": lambda p, v: (p - 1) * (1 + 2),  # of a chunk, a v-th: section 2.2.2
    "zb-h1": lambda p, v: (p - 1) * (1 + 1 - 1),  # Qi et al. 2023, table 2: (p - 1)(F + B - W)
    "dualpipe": lambda p, v: (p // 2 - 1) * (3 + 2 - 3),  # DeepSeek-V3, table 2
}  # fmt: skip


def test_every_schedule_has_its_formula_here() -> None:
    assert set(schedules()) == {*BUBBLES, "zb-h2", "zb-v"}


@pytest.mark.parametrize("name", sorted(schedules()))
@given(half=st.integers(1, 4), rounds=st.integers(1, 4), chunks=st.integers(1, 3))
def test_every_piece_is_done_once_and_nobody_waits_for_ever(
    name: str, half: int, rounds: int, chunks: int
) -> None:
    stages = 2 * half
    plan, timed, micro_batches, virtual = _made(name, stages, rounds, chunks)
    done: Counter[tuple[str, int, int]] = Counter()
    for stage, passes in enumerate(timed.stages):
        for action, _, _ in passes:
            part = plan.position(stage, action.chunk, stages, virtual) % plan.parts(stages, virtual)
            for kind in {"B": "IW"}.get(action.kind, action.kind):
                done[kind, part, action.micro_batch] += 1
    assert set(done.values()) == {1}
    assert len(done) == 3 * plan.parts(stages, virtual) * micro_batches


@pytest.mark.parametrize("name", sorted(schedules()))
@given(half=st.integers(1, 4), rounds=st.integers(1, 4), chunks=st.integers(1, 3))
def test_bubbles_and_peaks_are_the_published_ones(name: str, half: int, rounds: int, chunks: int) -> None:
    stages = 2 * half
    plan, timed, micro_batches, virtual = _made(name, stages, rounds, chunks)
    work = PER_MICRO_BATCH * micro_batches * virtual // plan.copies
    assert all(sum(end - start for _, start, end in passes) == work for passes in timed.stages)
    if name in BUBBLES:
        assert timed.length - work == BUBBLES[name](stages, virtual)
    else:  # no bubble but the way of the first micro-batch down the stages
        assert timed.length - work == stages - 1
        assert all(_inner_bubble(timed, stage) == 0 for stage in range(stages))
    assert plan.peak is not None
    for stage in range(stages):
        held = sum(plan.in_flight(stage, stages, micro_batches, virtual)) * plan.copies / virtual
        assert held == pytest.approx(plan.peak(stage, stages, micro_batches, virtual))


@pytest.mark.parametrize(
    ("stages", "micro_batches", "said"), [(3, 8, "even"), (4, 6, "2 x pp"), (4, 9, "even")]
)
def test_dualpipe_says_what_it_needs(stages: int, micro_batches: int, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        find_schedule("dualpipe").order(0, stages, micro_batches, 2)


# ------------------------------------------------------------------------------------- in simulations

MOE = {
    "layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 8192,
    "experts": {"count": 32, "top_k": 4, "ffn": 2048},
}  # fmt: skip


def _run(name: str, **changes: object) -> dict[str, float]:
    given = values(
        model=MOE, cluster={"topology": "dgx-h100", "gpus": 32}, run={"steps": 2, "warmup": 1},
        parallelism={"pp": 4, "ep": 8, "schedule": name, "sharding": "zero-1"},
        batch={"sequence_length": 4096, "global_batch": 128, "micro_batch": 1}, **changes,
    )  # fmt: skip
    result = simulate(given, allow_oom=True)
    items = {item.name: item.seconds for item in result.waterfall}
    return {
        "step": result.step_time_s,
        "bubble": items["pipeline bubble"],
        "experts": items["exposed EP communication"],
        "parameters": result.memory.parameters_bytes,
    }


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2)])
def test_the_bubble_of_a_simulated_step_is_the_formula(name: str, chunks: int) -> None:
    """Layers of 10 ms forward and 20 ms backward; transfers of nothing; a backward that is not split."""
    layers = [
        {"name": "l", "repeat": 8, "parameters": 1000, "forward_time": "10 ms", "backward_time": "20 ms"}
    ]
    result = simulate(
        {
            "model": {"name": "even", "layers": layers}, "run": {"steps": 2, "warmup": 1},
            "cluster": {"topology": "dgx-a100", "gpus": 4}, "batch": {"global_batch": 8, "micro_batch": 1},
            "parallelism": {"pp": 4, "schedule": name, "virtual_stages": chunks},
        }
    )  # fmt: skip
    forward, backward = 2 * 10e-3, 2 * 20e-3  # of a stage
    bubble = {
        "gpipe": 3 * (forward + backward),
        "1f1b": 3 * (forward + backward),
        "interleaved-1f1b": 3 * (forward + backward) / 2,
    }[name]
    assert result.step_time_s == pytest.approx(8 * (forward + backward) + bubble, rel=0.02)


def test_dualpipe_hides_all_to_alls_and_holds_parameters_twice() -> None:
    plain, both = _run("1f1b"), _run("dualpipe")
    assert both["experts"] < 0.5 * plain["experts"]
    assert both["bubble"] < 0.4 * plain["bubble"]
    assert both["step"] < 0.9 * plain["step"]
    assert both["parameters"] == pytest.approx(2 * plain["parameters"], rel=0.02)


def test_zero_bubble_schedules_come_in_the_order_of_their_papers() -> None:
    bubbles = {name: _run(name)["bubble"] for name in ("1f1b", "zb-h1", "zb-v")}
    assert bubbles["1f1b"] > bubbles["zb-h1"] > bubbles["zb-v"] > 0
    assert all(math.isfinite(one) for one in bubbles.values())


def test_gradients_are_reduced_after_the_backward_that_completes_them() -> None:
    """GPipe's last backward is of the first micro-batch."""
    from simulator.program.build import build
    from simulator.program.instructions import Collective, Launch
    from simulator.study.simulate import load

    programs, _ = build(load(values(parallelism={"pp": 2, "schedule": "gpipe"}), {}))
    body = programs.roles[0].body
    reduced = [i for i, one in enumerate(body) if isinstance(one, Collective) and one.group == "dp"]
    before = [one.micro_batch for one in body[: reduced[0]] if isinstance(one, Launch)]
    assert before[-1] == 0


# ------------------------------------------------------------------------------------------- drawings


@pytest.mark.parametrize("name", sorted(schedules()))
def test_every_schedule_is_printed_and_drawn(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    svg = tmp_path / "a.svg"
    code, out, _ = call(capsys, "schedule", name, "--pp", "4", "--micro-batches", "8", "--svg", str(svg))
    assert code == 0
    assert out.count("stage ") >= 4
    boxes = [box for box in ElementTree.parse(svg).iter() if box.get("class") == "box"]
    timed = unit_times(find_schedule(name), 4, 8, find_schedule(name).virtual_stages or 1)
    assert len(boxes) == sum(len(stage) for stage in timed.stages)
