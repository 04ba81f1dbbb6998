"""One meaning: folded and unfolded runs agree, and the lanes engine with the event engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import scenario, setting

from simulator import load
from simulator.engine import events
from simulator.engine.calm import run_calm
from simulator.engine.cast import unfolded
from simulator.engine.choice import Choice, run_lanes
from simulator.engine.fold import fold
from simulator.engine.lane_axes import Axes
from simulator.engine.lane_record import choose
from simulator.engine.setting import Setting
from simulator.network.collectives import Activity
from simulator.study.simulate import make_setting
from simulator.timeline import HostKind, Timeline

TINY = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 8000}

PLACES = st.one_of(
    st.builds(lambda rank: {"rank": rank}, st.integers(0, 7)),
    st.builds(lambda node: {"node": node}, st.just(0)),
    st.just({"fraction": 0.5}),
    st.just({"fraction": 0.3, "of": "rank"}),
)
TIMES = st.sampled_from(
    [{}, {"from_step": 1}, {"at_step": 1}, {"from": "20 ms", "to": "90 ms"}, {"from": "5 ms"}]
)


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    """A fault of any kind on ranks."""
    kind = draw(
        st.sampled_from(
            [
                "slow-compute",
                "slow-memory",
                "slow-host",
                "slow-loader",
                "host-stall",
                "garbage-collection",
                "kernel-jitter",
                "launch-jitter",
                "loader-jitter",
                "silicon-spread",
                "slow-nic",
            ]
        )
    )
    if kind in ("slow-compute", "slow-memory", "slow-host", "slow-loader"):
        return {"kind": kind, "factor": draw(st.sampled_from([0.5, 0.9])), **draw(PLACES), **draw(TIMES)}
    if kind == "host-stall":
        duration = draw(st.sampled_from(["2 ms", "80 ms"]))
        return {"kind": kind, "duration": duration, "at_step": 1, **draw(PLACES)}
    if kind == "garbage-collection":
        phase = draw(st.sampled_from(["common", "private"]))
        return {"kind": kind, "duration": "20 ms", "every_steps": 2, "phase": phase}
    if kind == "slow-nic":
        return {"kind": kind, "nic": f"0:{draw(st.integers(0, 7))}", "factor": 0.5}
    return {"kind": kind, "cv": 0.1}


DOCUMENTS = st.sampled_from(
    [
        {},
        {},
        {"documents": {"distribution": "lognormal", "mean": 90, "cv": 1.0}},
        {"documents": {"lengths": [7, 500]}},
    ]
)


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, Any]:
    """A small run with any parallelism, schedule, sharding and software."""
    nodes = draw(st.sampled_from([1, 2]))
    tp = draw(st.sampled_from([1, 2, 8]))
    pp = draw(st.sampled_from([p for p in (1, 2, 4) if 8 * nodes % (tp * p) == 0]))
    cp = draw(st.sampled_from([c for c in (1, 1, 2) if 8 * nodes % (tp * pp * c) == 0]))
    dp = 8 * nodes // tp // pp // cp
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe"])) if pp > 1 else "1f1b"
    micro_batches = 2 * pp if schedule == "dualpipe" else draw(st.sampled_from([1, 3]))
    return {
        "model": TINY if schedule != "zb-v" else {**TINY, "layers": 8},
        "cluster": {"topology": "dgx-a100", "gpus": 8 * nodes},
        "batch": {"sequence_length": 512, "micro_batch": 2, "global_batch": 2 * dp * micro_batches}
        | draw(DOCUMENTS),
        "parallelism": {
            "tp": tp,
            "cp": cp,
            "cp_kind": draw(st.sampled_from(["ring", "all-gather", "all-to-all"])) if tp < 8 else "ring",
            "pp": pp,
            "sequence_parallel": draw(st.booleans()) and tp > 1,
            "schedule": schedule,
            "sharding": draw(st.sampled_from(["ddp", "zero-1", "zero-2", "fsdp", "hsdp"])),
        },
        "offload": {"layers": draw(st.sampled_from([0, 0, 1, 2]))},
        "overlap": {
            "grad_reduce": draw(st.booleans()),
            "bucket_size": draw(st.sampled_from(["1 MiB", "25 MiB", "1 GiB"])),
        },
        "software": {
            "launch_queue": draw(st.sampled_from([16, 1024])),
            "cuda_graphs": draw(st.booleans()),
            "clip_syncs_host": draw(st.booleans()),
            "log_every": draw(st.sampled_from([0, 2])),
            "defer_grad_sync": draw(st.booleans()),
        },
        "dataloader": {
            "workers": draw(st.sampled_from([0, 1, 4])),
            "load_time": {
                "distribution": draw(st.sampled_from(["constant", "lognormal"])),
                "mean": draw(st.sampled_from(["0 s", "2 ms", "40 ms"])),
                "cv": 0.3,
            },
            "pin_memory": draw(st.booleans()),
        },
        "checkpoint": draw(st.sampled_from([{}, {"every_steps": 2, "duration": "10 ms"}])),
        "faults": draw(st.lists(faults(), max_size=3)),
        "run": {"steps": 3, "warmup": 0, "seed": draw(st.integers(0, 3))},
    }


def made(values: dict[str, Any]) -> Setting:
    return make_setting(scenario(**values))


@settings(max_examples=60)
@given(meshes())
def test_a_folded_run_ends_every_step_of_every_rank_when_the_unfolded_one_does(
    values: dict[str, Any],
) -> None:
    whole = made(values)
    cast = fold(whole)
    one, other = events.run(unfolded(whole)), events.run(cast)
    np.testing.assert_allclose(other.steps[cast.lane_of_rank], one.steps, rtol=0, atol=1e-9)


Rows = dict[tuple[Any, ...], tuple[float, ...]]


def rows_of(play: events.Play) -> tuple[Rows, list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Device rows by (lane, item, step); rows of hosts and of collectives in an order of their own."""
    device: Rows = {(row[0], row[1].index, row[7]): (*row[2:6], *row[9:12]) for row in play.recorder.device}
    host = sorted(play.recorder.host, key=lambda row: (row[0], row[1]))
    collectives = sorted(  # a transfer is named after the end that came first, which may be either
        (row[0].name.removeprefix("send ").removeprefix("recv "), *row[1:5], row[6])
        for row in play.recorder.collectives
    )
    return device, host, collectives


@settings(max_examples=40)
@given(meshes(), st.booleans())
def test_chains_change_no_time(values: dict[str, Any], folded: bool) -> None:
    cast = (fold if folded else unfolded)(made(values))
    plain, ahead = rows_of(events.play(cast, chains=False)), rows_of(events.play(cast))
    assert plain[0].keys() == ahead[0].keys()
    for key, row in plain[0].items():
        np.testing.assert_allclose(ahead[0][key], row, rtol=0, atol=1e-9)
    assert [(row[0], *row[3:]) for row in plain[1]] == [(row[0], *row[3:]) for row in ahead[1]]
    for one, other in zip(plain[1], ahead[1], strict=True):
        np.testing.assert_allclose(other[1:3], one[1:3], rtol=0, atol=1e-9)
    for row, same in zip(plain[2], ahead[2], strict=True):
        assert (row[0], row[5]) == (same[0], same[5])
        np.testing.assert_allclose(same[1:5], row[1:5], rtol=0, atol=2e-9)


class Quiet(Setting):
    """A setting whose collectives take no SMs and no HBM bandwidth."""

    def activity(self, kind: str, ranks: tuple[int, ...], size_bytes: float, algorithm: str) -> Activity:
        found = super().activity(kind, ranks, size_bytes, algorithm)
        return replace(found, sms=0.0, hbm_bytes=0.0)


@settings(max_examples=60)
@given(meshes())
def test_the_lanes_engine_agrees_where_nothing_contends(values: dict[str, Any]) -> None:
    plain = made(values)
    quiet = Quiet(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    cast = unfolded(quiet)
    play = events.play(cast)
    if play.flows.shared:
        return  # links were shared
    steps = np.stack([lane.steps() for lane in play.lanes])
    timeline = run_lanes(quiet, Choice("lanes", "a test"))
    shown = [lane.rank for lane in timeline.ranks]
    np.testing.assert_allclose(timeline.steps, steps[shown], rtol=0, atol=1e-9)
    if len(shown) == quiet.mesh.ranks:
        assert_same_rows(timeline, events.run(cast))


def host_time_s(timeline: Timeline) -> np.ndarray:
    """Seconds by rank and kind of what the host did, shape (ranks, kinds)."""
    host = timeline.host
    result = np.zeros((len(timeline.ranks), len(HostKind)))
    np.add.at(result, (host.rank, host.kind), host.end_s - host.start_s)
    return result


def assert_same_rows(one: Timeline, other: Timeline) -> None:
    """Spans of hosts, loaders and collectives are the same, in whatever order they were recorded."""
    np.testing.assert_allclose(host_time_s(one), host_time_s(other), rtol=0, atol=1e-9)
    tables = [
        (one.loader, other.loader, ("rank", "worker", "batch", "start_s", "end_s")),
        (one.collectives, other.collectives, ("group_size", "size_bytes", "begin_s", "end_s", "first_s")),
    ]
    for mine, theirs, names in tables:
        for name in names:
            first, second = (np.sort(getattr(table, name)) for table in (mine, theirs))
            np.testing.assert_allclose(first, second, rtol=0, atol=1e-9, err_msg=name)


def test_a_collective_has_as_many_members_folded_as_unfolded() -> None:
    whole = setting(parallelism={"tp": 4, "pp": 2}, batch__global_batch=64)
    one, other = events.run(fold(whole)), events.run(unfolded(whole))
    assert set(one.collectives.group_size) == set(other.collectives.group_size)
    assert {2, 4} < set(one.collectives.group_size)


def test_a_host_that_never_blocks_is_seen_launching() -> None:
    timeline = events.run(fold(make_setting(load("launch-bound"))))
    launching = timeline.host.kind == HostKind.LAUNCH
    spent = (timeline.host.end_s - timeline.host.start_s)[launching].sum()
    assert spent > 0.9 * timeline.steps[0, -1, 1]


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "slow-compute", "rank": 21, "factor": 0.7},
        {"kind": "garbage-collection", "rank": 21, "duration": "300 ms", "every_steps": 1},
    ],
)
def test_a_rank_with_a_fault_is_among_those_that_a_lanes_run_shows(fault: dict[str, Any]) -> None:
    faulty = setting(faults=[fault, {"kind": "kernel-jitter", "cv": 0.01}])
    shown = choose(run_calm(faulty, Axes(faulty.mesh)), faulty, 2)
    assert shown[21] == 1
    assert sum(shown.values()) == faulty.mesh.ranks
    assert len(shown) == 2


def test_the_slowest_of_many_chips_is_among_those_that_a_lanes_run_shows() -> None:
    spread = setting(faults=[{"kind": "silicon-spread", "cv": 0.03}])
    shown = choose(run_calm(spread, Axes(spread.mesh)), spread, 2)
    speeds = {factor.targets[0]: factor.factor for factor in spread.effects}
    assert shown[min(speeds, key=lambda rank: speeds[rank])] == 1
    assert sum(shown.values()) == spread.mesh.ranks


def test_a_healthy_data_parallel_job_folds_to_one_lane() -> None:
    assert len(fold(setting()).lanes) == 1


def test_a_slow_node_adds_one_lane() -> None:
    slow = setting(faults=[{"kind": "slow-compute", "node": 1, "factor": 0.8}])
    cast = fold(slow)
    assert sorted(lane.multiplicity for lane in cast.lanes) == [8, 24]


def test_lanes_stand_for_all_ranks() -> None:
    cast = fold(setting(parallelism={"tp": 4, "pp": 2}, batch__global_batch=64))
    assert sum(lane.multiplicity for lane in cast.lanes) == 32


@pytest.mark.parametrize("engine", ["events", "lanes"])
def test_the_same_scenario_and_seed_give_the_same_bytes(engine: str) -> None:
    noisy = {
        "faults": [{"kind": "kernel-jitter", "cv": 0.1}, {"kind": "launch-jitter", "cv": 0.2}],
        "run": {"steps": 3, "warmup": 0, "engine": engine},
    }
    from small import values

    from simulator import simulate

    one, other = (simulate(values(**noisy)).to_dict() for _ in range(2))
    assert one == other
    again = simulate(values(**{**noisy, "run": {**noisy["run"], "seed": 1}})).to_dict()
    assert again["step_times_s"] != one["step_times_s"]


def test_permuting_where_ranks_sit_within_their_nodes_changes_no_step() -> None:
    plain = events.run(fold(setting()))
    turned = [8 * (rank // 8) + (rank + 3) % 8 for rank in range(32)]
    moved = events.run(fold(setting(parallelism={"rank_map": turned})))
    np.testing.assert_allclose(moved.steps[0], plain.steps[0], rtol=1e-12)
