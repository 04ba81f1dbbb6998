"""What a data-parallel job does: overlap, buckets, loader, stalls, slow parts. Each from the events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import run, setting

from simulator.analysis.result import Result
from simulator.timeline import DeviceKind, HostKind

COMM = {"cluster__topology": "leaf-spine", "cluster__gpus": 32}


def exposed_s(result: Result) -> float:
    return result.item("exposed DP communication").seconds


def collective_s(result: Result, lane: int = 0) -> float:
    """Seconds a step in which the lane's collectives move bytes."""
    timeline = result.timeline
    device, meetings = timeline.device, timeline.collectives
    mine = (device.rank == lane) & (device.kind == DeviceKind.COLLECTIVE)
    rows = device.collective[mine]
    return float((meetings.end_s[rows] - meetings.begin_s[rows]).sum()) / timeline.steps.shape[1]


# ------------------------------------------------------------------------------------------ overlap


def test_overlap_saves_what_it_hides() -> None:
    on, off = run(), run(overlap__grad_reduce=False)
    assert off.step_time_s > on.step_time_s
    hidden = exposed_s(off) - exposed_s(on)
    contention = on.item("slowed by communication kernels").seconds
    assert off.step_time_s - on.step_time_s == pytest.approx(hidden - contention, rel=0.02)


def test_without_overlap_all_of_the_communication_is_exposed() -> None:
    off = run(overlap__grad_reduce=False)
    assert exposed_s(off) == pytest.approx(collective_s(off), rel=0.02)


def test_bucket_sizes_trace_a_u() -> None:
    sizes = ["256 KiB", "4 MiB", "25 MiB", "2 GiB"]
    times = [run(overlap__bucket_size=size).step_time_s for size in sizes]
    best = times.index(min(times))
    assert 0 < best < len(sizes) - 1
    assert times[0] > times[best]
    assert times[-1] > times[best]


@pytest.mark.parametrize("size", ["1 MiB", "25 MiB", "100 MiB"])
def test_the_last_bucket_is_always_exposed(size: str) -> None:
    result = run(overlap__bucket_size=size)
    timeline = result.timeline
    device = timeline.device
    first = (device.rank == 0) & (device.step == 3)
    work = device.end_s[first & (device.kind == DeviceKind.COMPUTE)].max()
    last = device.end_s[first & (device.kind == DeviceKind.COLLECTIVE)].max()
    assert last > work
    assert exposed_s(result) >= (last - work) * 0.99


def test_accumulation_saves_communication_only_if_the_sync_is_deferred() -> None:
    one = {"batch__micro_batch": 2, "batch__global_batch": 256}
    deferred = run(**one)
    every = run(**one, software__defer_grad_sync=False)
    assert collective_s(every) == pytest.approx(4 * collective_s(deferred), rel=0.2)
    assert every.step_time_s > deferred.step_time_s


def test_communication_kernels_slow_the_compute_beside_them() -> None:
    result = run(**COMM)
    assert result.item("slowed by communication kernels").seconds > 0


def test_cuda_graphs_remove_launch_bound_gaps() -> None:
    model = {"layers": 24, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1000}
    tiny = {
        "model": model,
        "cluster__gpus": 8,
        "batch": {"micro_batch": 1, "global_batch": 8, "sequence_length": 128},
    }
    eager, graphs = run(**tiny), run(**tiny, software__cuda_graphs=True)
    assert eager.item("launch-bound gaps").seconds > 0.2 * eager.step_time_s
    assert graphs.step_time_s < 0.8 * eager.step_time_s


def test_per_tensor_updates_launch_more_than_fused_ones() -> None:
    times = [run(software__optimizer=name).step_time_s for name in ("fused-adamw", "foreach-adamw", "adamw")]
    assert times == sorted(times)


# ------------------------------------------------------------------------------------------- loader


@settings(max_examples=12)
@given(workers=st.integers(1, 6), load_ms=st.integers(20, 900))
def test_a_loader_bounds_the_step_at_load_time_over_workers(workers: int, load_ms: int) -> None:
    steps = {"run": {"steps": 78, "warmup": 18}}  # 60: whole rounds of any number of workers
    free = run(**steps).step_time_s
    bound = load_ms / 1000 / workers
    loaded = run(**steps, dataloader={"workers": workers, "load_time": f"{load_ms} ms"}).step_time_s
    if bound > free:
        assert loaded == pytest.approx(bound, rel=0.01)
    else:
        assert loaded == pytest.approx(free, rel=0.01)


def test_prefetch_hides_a_slow_batch_up_to_its_depth() -> None:
    free = run(run={"steps": 12, "warmup": 2}).step_time_s
    jitter = {"distribution": "gamma", "mean": f"{0.9 * 4 * free:.4f} s", "cv": 0.6}
    waits = [
        run(
            run={"steps": 80, "warmup": 20},
            dataloader={"workers": 4, "prefetch_factor": depth, "load_time": jitter},
        )
        .item("dataloader wait")
        .seconds
        for depth in (1, 2, 16)
    ]
    assert waits[0] > waits[1] > waits[2]


def test_no_workers_load_in_the_step() -> None:
    free = run().step_time_s
    loaded = run(dataloader={"workers": 0, "load_time": "200 ms"}).step_time_s
    assert 0.2 < loaded < 0.2 + free


# ------------------------------------------------------------------------------------------- stalls


def gc(phase: str, steps: int = 100, gpus: int = 128) -> Result:
    """GPT-2 in the small with 300 ms collections every 50 steps."""
    return run(
        cluster__gpus=gpus,
        batch__global_batch=8 * gpus,
        software__launch_queue=64,  # the host leads by a part of a step, as with large models
        run={"steps": steps, "warmup": 0},
        faults=[{"kind": "garbage-collection", "duration": "300 ms", "every_steps": 50, "phase": phase}],
    )


def stretched(result: Result) -> float:
    """Share of steps longer than the shortest by more than a tenth."""
    times = np.array(result.step_times_s)
    return float((times > 1.1 * times.min()).mean())


def test_collections_at_private_phases_stretch_most_steps() -> None:
    private = gc("private")
    assert stretched(private) == pytest.approx(1 - (1 - 1 / 50) ** 128, abs=0.08)


def test_collections_at_a_common_phase_stretch_one_step_in_fifty() -> None:
    assert stretched(gc("common")) == pytest.approx(1 / 50, abs=0.011)


def test_planned_collection_costs_less_than_private() -> None:
    private, common = gc("private"), gc("common")
    assert np.mean(common.step_times_s) < 0.6 * np.mean(private.step_times_s)


@pytest.mark.parametrize("duration_ms", [5, 2000])
def test_a_stall_shows_only_what_exceeds_the_lead_of_the_host(duration_ms: int) -> None:
    steps = {"run": {"steps": 6, "warmup": 0}, "software__log_every": 0, "software__launch_queue": 100_000}
    free = run(**steps)
    stalled = run(
        **steps,
        faults=[
            {"kind": "host-stall", "rank": 5, "duration": f"{duration_ms} ms", "at_step": 3, "at": "forward"}
        ],
    )
    extra = sum(stalled.step_times_s) - sum(free.step_times_s)
    # the host runs ahead without bound here: at step 3 it leads by about three steps less its own time
    assert extra < duration_ms / 1000
    if duration_ms == 5:
        assert extra == pytest.approx(0.0, abs=1e-9)
    else:
        assert extra > 0


def test_a_stall_longer_than_the_lead_grows_one_to_one() -> None:
    def total(duration_ms: int) -> float:
        fault = {"kind": "host-stall", "rank": 5, "duration": f"{duration_ms} ms", "at_step": 3}
        return sum(run(run={"steps": 6, "warmup": 0}, faults=[fault]).step_times_s)

    assert total(3000) - total(2000) == pytest.approx(1.0, abs=1e-6)


def test_a_checkpoint_pauses_the_step_by_its_duration() -> None:
    free = run(run={"steps": 8, "warmup": 0})
    saved = run(run={"steps": 8, "warmup": 0}, checkpoint={"every_steps": 4, "duration": "2 s"})
    extra = sum(saved.step_times_s) - sum(free.step_times_s)
    assert extra == pytest.approx(2.0, rel=0.1)  # the second falls after the last step
    assert (saved.timeline.host.kind == HostKind.CHECKPOINT).any()


# ----------------------------------------------------------------------------------- slow machines


def test_one_slow_node_slows_every_rank_and_never_waits() -> None:
    free = run()
    slow = run(faults=[{"kind": "slow-compute", "node": 2, "factor": 0.8}])
    assert slow.step_time_s > 1.1 * free.step_time_s
    steps = {round(rank.step_s, 6) for rank in slow.ranks}
    assert len(steps) == 1
    by_node = {rank.node == 2: rank for rank in slow.ranks}
    assert by_node[True].wait_s == pytest.approx(0.0, abs=1e-6)
    assert by_node[False].wait_s > 0.05 * slow.step_time_s
    assert by_node[True].compute_s > by_node[False].compute_s


def test_the_slow_nodes_own_collectives_are_the_shortest() -> None:
    slow = run(faults=[{"kind": "slow-compute", "node": 2, "factor": 0.8}])
    device = slow.timeline.device
    spans = device.end_s - device.start_s
    comm = device.kind == DeviceKind.COLLECTIVE
    total = {
        lane.node == 2: spans[comm & (device.rank == i)].sum() for i, lane in enumerate(slow.timeline.ranks)
    }
    assert total[True] < total[False]


@settings(max_examples=10)
@given(factor=st.floats(0.3, 0.95))
def test_a_slower_node_never_makes_the_step_shorter(factor: float) -> None:
    free = run().step_time_s
    slow = run(faults=[{"kind": "slow-compute", "node": 0, "factor": factor}]).step_time_s
    assert slow >= free * (1 - 1e-9)


def test_a_wait_in_one_rank_is_the_lateness_of_another() -> None:
    """512 ranks, 32 layers, one rank 1.3 times slower: the step grows by what it is late."""
    shape = {
        "cluster__gpus": 512,
        "batch": {"sequence_length": 512, "micro_batch": 1, "global_batch": 512},
        "overlap__grad_reduce": False,
    }
    free = run(**shape)
    slow = run(**shape, faults=[{"kind": "slow-compute", "rank": 77, "factor": 1 / 1.3}])
    late = slow.step_time_s - free.step_time_s
    one = next(rank for rank in slow.ranks if rank.rank == 77)
    others = [rank for rank in slow.ranks if rank.rank != 77]
    waits = {round(rank.wait_s, 7) for rank in others}
    assert len(waits) == 1
    growth = one.compute_s - others[0].compute_s
    assert late == pytest.approx(growth, rel=1e-6)
    assert waits.pop() == pytest.approx(growth, rel=0.05)  # the optimizer runs after the meeting


# -------------------------------------------------------------------------------------- the network


def test_halving_a_nic_slows_only_the_collectives_that_cross_it() -> None:
    split = {"parallelism": {"sharding": "hsdp", "shard_group": 8}}  # shards within nodes
    free = run(**split, **COMM)
    slow = run(**split, **COMM, faults=[{"kind": "slow-nic", "nic": "1:3", "factor": 0.5}])

    def by_axis(result: Result) -> dict[str, float]:
        meetings, names = result.timeline.collectives, result.timeline.names
        spent = meetings.end_s - meetings.begin_s
        return {axis: float(spent[meetings.axis == names.index(axis)].max()) for axis in ("shard", "replica")}

    assert by_axis(slow)["shard"] == pytest.approx(by_axis(free)["shard"], rel=0.05)
    assert by_axis(slow)["replica"] > 1.3 * by_axis(free)["replica"]


def test_a_flapping_link_costs_between_nothing_and_a_link_that_is_down() -> None:
    shape = {**COMM, "overlap__grad_reduce": False}
    free = run(**shape).step_time_s
    flap = {
        "kind": "flapping-link",
        "link": "node1/nic0/*",
        "period": "40 ms",
        "down": "20 ms",
        "factor": 0.1,
    }
    flapping = run(**shape, faults=[flap]).step_time_s
    degraded = run(
        **shape, faults=[{"kind": "degraded-link", "link": "node1/nic0/*", "factor": 0.1}]
    ).step_time_s
    assert free < flapping < degraded


def test_background_traffic_on_an_oversubscribed_spine_slows_what_crosses_it() -> None:
    shape = {"cluster__topology": "leaf-spine-4to1", "cluster__gpus": 64, "overlap__grad_reduce": False,
             "batch__global_batch": 512}  # fmt: skip
    free = run(**shape).step_time_s
    busy = run(
        **shape, faults=[{"kind": "background-traffic", "link": "leaf0/spine*", "bandwidth": "10 GB/s"}]
    ).step_time_s
    assert busy > free
    near = {**shape, "cluster__gpus": 32, "batch__global_batch": 256}  # all under one leaf
    alone = run(**near).step_time_s
    assert run(
        **near, faults=[{"kind": "background-traffic", "link": "leaf0/spine*", "bandwidth": "10 GB/s"}]
    ).step_time_s == pytest.approx(alone, rel=1e-9)


FAULTS = [
    {"kind": "slow-compute", "node": 1, "factor": 1.0},
    {"kind": "slow-memory", "rank": 3, "factor": 1.0},
    {"kind": "slow-host", "rank": 3, "factor": 1.0},
    {"kind": "slow-loader", "rank": 3, "factor": 1.0},
    {"kind": "slow-nic", "nic": "1:3", "factor": 1.0},
    {"kind": "degraded-link", "link": "node1/nic0/*", "factor": 1.0},
    {"kind": "host-stall", "rank": 3, "duration": "0 s"},
    {"kind": "garbage-collection", "duration": "0 s", "every_steps": 2},
    {"kind": "kernel-jitter", "cv": 0.0},
    {"kind": "launch-jitter", "cv": 0.0},
    {"kind": "loader-jitter", "cv": 0.0},
    {"kind": "silicon-spread", "cv": 0.0},
    {"kind": "background-traffic", "link": "node1/nic0/up", "bandwidth": "0 B/s"},
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["kind"])
def test_a_fault_of_size_zero_changes_nothing(fault: dict[str, object]) -> None:
    assert run(faults=[fault]).step_times_s == pytest.approx(run().step_times_s, rel=1e-12)


# ----------------------------------------------------------------------------------- packed documents


def test_packed_documents_do_less_attention_and_make_stragglers() -> None:
    long = {"batch": {"sequence_length": 8192, "micro_batch": 1, "global_batch": 32}}
    whole = run(**long)
    documents = {"distribution": "lognormal", "mean": 2000, "cv": 1.5}
    packed = run(**long, batch__documents=documents)
    assert packed.step_time_s < whole.step_time_s
    assert packed.item("waiting for a slower rank").seconds > 0
    assert len({round(rank.compute_s, 6) for rank in packed.ranks}) > 4
    one = run(**long, batch__documents={"distribution": "constant", "mean": 8192})
    assert one.step_times_s == pytest.approx(whole.step_times_s, rel=1e-9)


# --------------------------------------------------------------------------------------- conservation


def test_bytes_on_links_are_what_collectives_send() -> None:
    from simulator.engine import events
    from simulator.engine.cast import unfolded

    made = setting()
    play = events.play(unfolded(made), links=True)
    moved = np.zeros(made.fabric.n_links)
    open_: dict[int, tuple[float, float]] = {}
    for time, number, rate in play.flows.log or []:
        if number in open_:
            since, before = open_[number]
            route = play.flows.routes[number]
            moved[route.links] += route.per_byte * before * (time - since)
        open_[number] = (time, rate)
    wanted = np.zeros_like(moved)
    for item, *_ in play.recorder.collectives:
        work = item.work
        group = tuple(made.mesh.groups(work.group)[0].tolist())
        activity = made.activity(work.kind, group, work.size_bytes, work.algorithm)
        wanted[activity.links] += activity.bytes
    np.testing.assert_allclose(moved, wanted, rtol=1e-6)


def test_the_waterfall_sums_to_the_step_and_the_mfu_stays_below_one() -> None:
    for changes in ({}, {"overlap__grad_reduce": False}, {"cluster__topology": "leaf-spine-4to1"}):
        result = run(**changes)
        assert sum(item.seconds for item in result.waterfall) == pytest.approx(result.step_time_s)
        assert 0 < result.mfu < 1
        assert all(item.seconds >= -1e-12 for item in result.waterfall)


@settings(max_examples=10)
@given(gbits=st.integers(20, 400))
def test_more_bandwidth_never_makes_a_step_longer(gbits: int) -> None:
    topology = {
        "family": "rail-optimised",
        "gpu": "a100-sxm",
        "parameters": {"nics": 8, "nodes_per_leaf": 16},
    }

    def at(rate: int) -> float:
        here = {**topology, "parameters": {**topology["parameters"], "nic_bandwidth": f"{rate} Gb/s"}}
        return run(cluster__topology=here, collective_algorithm="ring").step_time_s

    assert at(2 * gbits) <= at(gbits) * (1 + 1e-9)
