"""The waterfall: every instant of a step has one item, and it is the right one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import Builder, Toy

from simulator.analysis import causes
from simulator.analysis.utilisation import utilisation
from simulator.analysis.waterfall import ledger, waterfall, weights
from simulator.timeline import DeviceKind, HostKind, Lane, Timeline

PEAK = 100.0


def items(timeline: Timeline, lane: int | None = None, peak: float = PEAK) -> dict[str, float]:
    """Seconds by item, all steps together; of one lane or the mean over all."""
    peaks = np.full(len(timeline.ranks), peak)
    book = ledger(timeline, peaks)
    weight = weights(timeline, peaks) if lane is None else np.eye(len(timeline.ranks))[lane]
    seconds = np.einsum("l,lsi->i", weight, book.seconds)
    return {
        name: value for name, value in zip(book.names, seconds.tolist(), strict=True) if abs(value) > 1e-12
    }


# ------------------------------------------------------------------------------------- properties

durations = st.floats(0.0, 5.0).map(lambda value: round(value, 3))
operation = st.one_of(
    st.tuples(st.just("work"), st.lists(durations, min_size=3, max_size=3),
              st.sampled_from([DeviceKind.COMPUTE, DeviceKind.RECOMPUTE, DeviceKind.OPTIMIZER]),
              st.sampled_from([0.0, 0.5, 3.0])),
    st.tuples(st.just("collective"), durations, st.sampled_from(["dp", "tp", "ep"])),
    st.tuples(st.just("wait"), st.sampled_from(["dp", "tp", "ep", "copy"])),
    st.tuples(st.just("copy"), durations),
    st.tuples(st.just("block"), st.lists(durations, min_size=3, max_size=3),
              st.sampled_from([HostKind.STALL, HostKind.LOADER, HostKind.GARBAGE_COLLECTION,
                               HostKind.CHECKPOINT, HostKind.FRAMEWORK])),
    st.tuples(st.just("sync"), st.sampled_from(["compute", "dp", "tp"])),
    st.tuples(st.just("step")),
)  # fmt: skip


def run(program: list[tuple], ranks: int = 3, *, host: float = 1.0, moving: float = 1.0) -> Timeline:
    """Run a random program; `host` and `moving` scale what hosts and collectives take."""
    toy = Toy(ranks)
    toy.work(1.0)
    for op, *rest in program:
        if op == "work":
            toy.work(rest[0][:ranks], rest[1], launch=host * rest[2], model_flops=7.0)
        elif op == "collective":
            toy.collective(moving * rest[0], rest[1], launch=host * 0.25)
        elif op == "wait":
            toy.wait(rest[0])
        elif op == "copy":
            toy.work(rest[0], DeviceKind.COPY, stream="copy")
        elif op == "block":
            toy.block(host * np.array(rest[0][:ranks]), rest[1])
        elif op == "sync":
            toy.sync(rest[0])
        else:
            toy.work(0.5)
            toy.end_step()
    toy.work(0.5)
    toy.end_step()
    return toy.timeline()


programs = st.lists(operation, max_size=25)


@given(programs)
@settings(max_examples=60, deadline=None)
def test_items_of_every_lane_and_step_add_up_to_the_step(program: list[tuple]) -> None:
    timeline = run(program)
    book = ledger(timeline, np.full(3, PEAK))
    wall = timeline.steps[:, :, 1] - timeline.steps[:, :, 0]
    np.testing.assert_allclose(book.seconds.sum(axis=2), wall, rtol=0, atol=1e-9)


@given(programs)
@settings(max_examples=60, deadline=None)
def test_idle_items_add_up_to_what_no_compute_covers(program: list[tuple]) -> None:
    timeline = run(program)
    busy = utilisation(timeline)
    idle = sum(
        value
        for name, value in items(timeline).items()
        if name not in (causes.MODEL, causes.BELOW_PEAK, causes.RECOMPUTE, causes.OPTIMIZER)
    )
    assert idle == pytest.approx(float((busy.window_s - busy.compute_s).mean()), abs=1e-9)


@given(programs)
@settings(max_examples=60, deadline=None)
def test_a_host_that_takes_no_time_is_never_blamed(program: list[tuple]) -> None:
    found = items(run(program, host=0.0))
    host = {causes.LAUNCH, causes.STALL, causes.LOADER, causes.GARBAGE, causes.CHECKPOINT}
    assert not found.keys() & host
    assert causes.UNEXPLAINED not in found


@given(programs)
@settings(max_examples=60, deadline=None)
def test_one_rank_waits_for_nobody_and_free_collectives_expose_nothing(
    program: list[tuple],
) -> None:
    assert causes.WAITING not in items(run(program, ranks=1))
    assert not [name for name in items(run(program, moving=0.0)) if name.startswith("exposed")]


@given(programs)
@settings(max_examples=60, deadline=None)
def test_a_toy_run_leaves_nothing_unexplained(program: list[tuple]) -> None:
    assert causes.UNEXPLAINED not in items(run(program))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_even_spans_that_make_no_sense_add_up(data: st.DataObject) -> None:
    """Random rows, blockers in rings, host spans anywhere: the sum holds."""
    build = Builder(2)
    clock = [0.0, 0.0]
    count = data.draw(st.integers(1, 12))
    for _ in range(count):
        rank = data.draw(st.integers(0, 1))
        gap, length = data.draw(st.tuples(durations, durations))
        start = clock[rank] + gap
        clock[rank] = start + length
        build.device(
            rank, start, clock[rank], issued_s=data.draw(st.sampled_from([np.nan, start, start - 1])),
            ready_s=data.draw(st.sampled_from([np.nan, start, start - 0.5])),
            blocker=data.draw(st.integers(-1, 2 * count - 1)),
        )  # fmt: skip
        side = data.draw(durations)
        build.device(
            rank, side, side + data.draw(durations), data.draw(st.sampled_from(["dp", "copy", "pp-recv"])),
            data.draw(st.sampled_from([DeviceKind.COLLECTIVE, DeviceKind.COPY, DeviceKind.RECV])),
            issued_s=side, ready_s=side, blocker=data.draw(st.integers(-1, 2 * count - 1)),
        )  # fmt: skip
        at = data.draw(durations)
        build.host(rank, at, at + data.draw(durations), data.draw(st.sampled_from(list(HostKind))))
    last = max(clock) + 1
    timeline = build.timeline([0.0, last / 3, last])
    book = ledger(timeline, np.full(2, PEAK))
    ran = np.isin([0, 1], timeline.device.rank)
    np.testing.assert_array_equal(book.known, ran)
    wall = np.where(ran[:, None], np.diff([0.0, last / 3, last])[None], 0.0)
    np.testing.assert_allclose(book.seconds.sum(axis=2), wall, atol=1e-9)


# --------------------------------------------------------------------------------- who held the GPU


def test_model_flops_at_peak_and_what_the_kernels_take_longer() -> None:
    build = Builder()
    build.device(0, 0, 10, model_flops=600.0, alone_s=8.0, busy_s=9.5, fault_s=0.5)
    assert items(build.timeline([0, 10])) == pytest.approx(
        {causes.MODEL: 6.0, causes.BELOW_PEAK: 2.0, causes.CONTENTION: 1.0, causes.SLOW_GPUS: 0.5,
         causes.LAUNCH: 0.5}
    )  # fmt: skip


def test_a_stall_inside_a_run_of_launches_is_named() -> None:
    build = Builder()
    build.device(0, 0, 10, busy_s=4.0)
    build.host(0, 0, 1)
    build.host(0, 1, 6, HostKind.STALL)
    assert items(build.timeline([0, 10])) == pytest.approx(
        {causes.BELOW_PEAK: 4.0, causes.STALL: 5.0, causes.LAUNCH: 1.0}
    )


def test_only_the_excess_of_a_stall_over_the_hosts_lead_counts() -> None:
    toy = Toy(1)
    toy.work(3.0)
    toy.block(5.0, HostKind.STALL)
    toy.work(1.0)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx({causes.BELOW_PEAK: 4.0, causes.STALL: 2.0})


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (HostKind.LOADER, causes.LOADER),
        (HostKind.GARBAGE_COLLECTION, causes.GARBAGE),
        (HostKind.CHECKPOINT, causes.CHECKPOINT),
        (HostKind.FRAMEWORK, causes.LAUNCH),
    ],
)
def test_what_the_host_did_in_a_gap_names_it(kind: HostKind, item: str) -> None:
    toy = Toy(1)
    toy.work(1.0)
    toy.block(4.0, kind)
    toy.work(1.0)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx({causes.BELOW_PEAK: 2.0, item: 3.0})


def test_waiting_for_a_slower_rank_and_moving_bytes_are_apart() -> None:
    toy = Toy(2)
    toy.work([2.0, 5.0])
    toy.collective(1.5, "tp")
    toy.wait("tp")
    toy.work(1.0)
    toy.end_step()
    fast, slow = items(toy.timeline(), 0), items(toy.timeline(), 1)
    assert fast == pytest.approx({causes.BELOW_PEAK: 3.0, causes.WAITING: 3.0, causes.exposed("tp"): 1.5})
    assert slow == pytest.approx({causes.BELOW_PEAK: 6.0, causes.exposed("tp"): 1.5})


def test_communication_behind_compute_is_not_exposed() -> None:
    toy = Toy(2)
    toy.work(1.0)
    toy.collective(3.0, "dp")
    toy.work(2.0)
    toy.wait("dp")
    toy.work(1.0, DeviceKind.OPTIMIZER)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx(
        {causes.BELOW_PEAK: 3.0, causes.exposed("dp"): 1.0, causes.OPTIMIZER: 1.0}
    )


def test_a_wait_is_traced_through_the_collectives_queued_before() -> None:
    """The bucket waited for stood behind two others on its stream, the first held up by a rank."""
    toy = Toy(2)
    toy.work([1.0, 2.0])
    toy.collective(4.0)
    toy.collective(2.0)
    toy.collective(1.0)
    toy.wait("dp")
    toy.work(1.0, DeviceKind.OPTIMIZER)
    toy.end_step()
    assert items(toy.timeline(), 0) == pytest.approx(
        {
            causes.BELOW_PEAK: 1.0,
            causes.WAITING: 1.0,
            causes.exposed("dp"): 7.0,
            causes.OPTIMIZER: 1.0,
        }
    )


def test_a_collective_issued_late_is_the_hosts_doing() -> None:
    toy = Toy(2)
    toy.work(1.0)
    toy.block(4.0, HostKind.STALL)
    toy.collective(1.0)
    toy.wait("dp")
    toy.work(1.0, DeviceKind.OPTIMIZER)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx(
        {
            causes.BELOW_PEAK: 1.0,
            causes.STALL: 3.0,
            causes.exposed("dp"): 1.0,
            causes.OPTIMIZER: 1.0,
        }
    )


def test_a_host_that_synchronises_with_a_collective_waits_for_communication() -> None:
    """The gradient norm's all-reduce: what follows its end is the pipeline filling again."""
    toy = Toy(2)
    toy.work([1.0, 1.5])
    toy.collective(2.0)
    toy.sync("dp")
    toy.work(1.0, DeviceKind.OPTIMIZER, launch=0.25)
    toy.end_step()
    assert items(toy.timeline(), 0) == pytest.approx(
        {causes.BELOW_PEAK: 1.0, causes.WAITING: 0.5, causes.exposed("dp"): 2.0, causes.SYNC: 0.25,
         causes.OPTIMIZER: 1.0}
    )  # fmt: skip


def test_launching_after_the_host_waited_for_the_gpu_is_synchronisation() -> None:
    toy = Toy(1)
    toy.work(2.0, launch=0.1)
    toy.sync()
    toy.work(0.5, launch=0.3)
    toy.work(0.5, launch=1.0)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx(
        {causes.BELOW_PEAK: 3.0, causes.SYNC: 0.3, causes.LAUNCH: 0.6}
    )


def test_a_receive_is_bubble_until_its_sender_is_ready() -> None:
    build = Builder((Lane(0, 0, 0), Lane(1, 0, 1)))
    build.device(0, 0, 3)
    sent = build.device(0, 3, 4, "pp-send", DeviceKind.SEND, ready_s=3, issued_s=0)
    got = build.device(1, 0, 4, "pp-recv", DeviceKind.RECV, ready_s=3, issued_s=0, blocker=sent)
    build.device(1, 4, 6, ready_s=4, issued_s=0.5, blocker=got)
    assert items(build.timeline([0, 6]), 1) == pytest.approx(
        {causes.BELOW_PEAK: 2.0, causes.BUBBLE: 3.0, causes.exposed("pp"): 1.0}
    )


def test_a_collective_that_another_stage_holds_up_is_bubble() -> None:
    """The gradient norm over all stages: the last stage is done first and waits for the first."""
    build = Builder((Lane(0, 0, 0), Lane(1, 0, 1)), ("compute", "world"))
    build.device(0, 0, 5)
    build.device(1, 0, 2)
    norm = build.collective(2, 5, 6, last_rank=0, axis="world")
    build.device(0, 5, 6, "world", DeviceKind.COLLECTIVE, collective=norm, ready_s=5, issued_s=0)
    mine = build.device(1, 2, 6, "world", DeviceKind.COLLECTIVE, collective=norm, ready_s=2, issued_s=0)
    build.device(1, 6, 7, kind=DeviceKind.OPTIMIZER, ready_s=6, issued_s=0, blocker=mine)
    assert items(build.timeline([0, 7]), 1) == pytest.approx(
        {causes.BELOW_PEAK: 2.0, causes.BUBBLE: 3.0, "exposed world communication": 1.0,
         causes.OPTIMIZER: 1.0}
    )  # fmt: skip


def test_a_batch_still_being_copied_is_a_copy() -> None:
    toy = Toy(1)
    toy.work(1.0)
    toy.work(3.0, DeviceKind.COPY, stream="copy")
    toy.wait("copy")
    toy.work(1.0)
    toy.end_step()
    assert items(toy.timeline()) == pytest.approx({causes.BELOW_PEAK: 2.0, causes.COPIES: 2.0})


def test_collectives_on_the_compute_stream_are_all_exposed() -> None:
    build = Builder(2)
    for rank, arrival in enumerate((1.0, 3.0)):
        build.device(rank, 0, arrival)
    row = build.collective(1, 3, 5, 1, axis="tp")
    for rank, arrival in enumerate((1.0, 3.0)):
        build.device(rank, arrival, 5, kind=DeviceKind.COLLECTIVE, collective=row)
    assert items(build.timeline([0, 5]), 0) == pytest.approx(
        {causes.BELOW_PEAK: 1.0, causes.WAITING: 2.0, causes.exposed("tp"): 2.0}
    )


def test_sharded_groups_count_as_data_parallel() -> None:
    for axis in ("shard", "replica", "expert-dp"):
        build = Builder(1)
        row = build.collective(1, 1, 3, 0, axis=axis)
        build.device(0, 0, 1)
        gather = build.device(0, 1, 3, "dp", DeviceKind.COLLECTIVE, collective=row, ready_s=1, issued_s=0)
        build.device(0, 3, 4, ready_s=3, issued_s=0, blocker=gather)
        assert items(build.timeline([0, 4]))[causes.exposed("dp")] == pytest.approx(2.0)


# -------------------------------------------------------------------------------------- averaging


def test_lanes_count_by_the_ranks_that_they_stand_for() -> None:
    build = Builder((Lane(0, 0, 0, multiplicity=3), Lane(3, 0, 0, multiplicity=1)))
    build.device(0, 0, 4, model_flops=400.0)
    build.device(1, 0, 4, model_flops=0.0)
    assert items(build.timeline([0, 4])) == pytest.approx({causes.MODEL: 3.0, causes.BELOW_PEAK: 1.0})


def test_in_a_mixed_fleet_mfu_is_all_flops_over_all_peaks() -> None:
    build = Builder(2)
    build.device(0, 0, 10, model_flops=1000.0)
    build.device(1, 0, 10, model_flops=500.0)
    timeline = build.timeline([0, 10])
    peaks = np.array([100.0, 300.0])
    found = waterfall(ledger(timeline, peaks), weights(timeline, peaks), 0, 10.0)
    assert found[0].mfu_points == pytest.approx(100 * 1500 / (400 * 10))
    assert sum(item.mfu_points for item in found) == pytest.approx(100)


def test_lanes_without_spans_leave_the_rest_to_stand_for_them() -> None:
    build = Builder(2)
    build.device(0, 0, 10, model_flops=500.0)
    timeline = build.timeline([0, 10])
    peaks = np.full(2, PEAK)
    found = waterfall(ledger(timeline, peaks), weights(timeline, peaks), 0, 10.0)
    assert sum(item.seconds for item in found) == pytest.approx(10.0)
    assert found[0].mfu_points == pytest.approx(50)


def test_warm_up_steps_do_not_count() -> None:
    toy = Toy(1)
    toy.work(5.0)
    toy.block(9.0, HostKind.STALL)
    toy.work(1.0)
    toy.end_step()
    toy.work(2.0)
    toy.end_step()
    timeline = toy.timeline()
    peaks = np.full(1, PEAK)
    found = waterfall(ledger(timeline, peaks), weights(timeline, peaks), 1, 2.0)
    assert {item.name: item.seconds for item in found if item.seconds} == {causes.BELOW_PEAK: 2.0}
