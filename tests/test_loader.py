"""The dataloader: workers, prefetch, order."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.loader import Loader
from simulator.engine.speed import CONSTANT, Profile


def deliveries(
    loads: list[float], workers: int, depth: int, step_s: float, profile: Profile = CONSTANT
) -> list[float]:
    """When each batch is in the host's hands, if it computes `step_s` after each."""
    loader = Loader(workers, depth, lambda i: loads[i], lambda _: profile, lambda w, b: 1.0)
    now, times = 0.0, []
    for _ in loads:
        now = loader.next(now)
        times.append(now)
        now += step_s
    return times


def brute_force(loads: list[float], workers: int, depth: int, step_s: float) -> list[float]:
    """The same by an event list: each worker has a queue of requests, the consumer takes in order."""
    queues: list[list[int]] = [[] for _ in range(workers)]
    asked = 0
    for _ in range(min(len(loads), workers * depth)):
        queues[asked % workers].append(asked)
        asked += 1
    done: dict[int, float] = {}
    events: list[tuple[float, int, int]] = []
    busy = [False] * workers

    def start(worker: int, now: float) -> None:
        if not busy[worker] and queues[worker]:
            busy[worker] = True
            batch = queues[worker].pop(0)
            heapq.heappush(events, (now + loads[batch], worker, batch))

    for worker in range(workers):
        start(worker, 0.0)
    now, times = 0.0, []
    for batch in range(len(loads)):
        while batch not in done or (events and events[0][0] <= now):
            at, worker, loaded = heapq.heappop(events)
            done[loaded] = at
            busy[worker] = False
            start(worker, at)
        now = max(now, done[batch])
        times.append(now)
        if asked < len(loads):
            queues[asked % workers].append(asked)
            start(asked % workers, now)
            asked += 1
        now += step_s
    return times


@given(
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 3),
    st.floats(0.0, 3.0),
)
@settings(max_examples=100, deadline=None)
def test_the_recurrence_is_what_workers_and_queues_do(
    loads: list[float], workers: int, depth: int, step_s: float
) -> None:
    assert deliveries(loads, workers, depth, step_s) == pytest.approx(
        brute_force(loads, workers, depth, step_s), abs=1e-9
    )


@given(st.floats(0.1, 4.0), st.integers(1, 6), st.floats(0.05, 2.0))
@settings(max_examples=50, deadline=None)
def test_the_step_is_the_load_time_over_workers_exactly_when_that_is_longer(
    load_s: float, workers: int, step_s: float
) -> None:
    batches = 40 * workers
    times = deliveries([load_s] * batches, workers, 2, step_s)
    half = batches // 2 // workers * workers
    mean = (times[half + workers * 10] - times[half]) / (workers * 10)
    assert mean == pytest.approx(max(step_s, load_s / workers), rel=1e-9)


def test_without_workers_every_batch_is_waited_for() -> None:
    assert deliveries([1.0, 1.0, 1.0], 0, 2, 0.5) == [1.0, 2.5, 4.0]


def test_prefetch_hides_a_slow_batch_up_to_its_depth_and_not_beyond() -> None:
    step, workers = 1.0, 2
    for depth in (1, 2, 4):
        hidden = workers * depth * step  # asked for so long before it is due
        for extra, late in ((hidden * 0.9, False), (hidden * 1.3, True)):
            loads = [0.1] * 60
            loads[40] = extra
            times = deliveries(loads, workers, depth, step)
            assert (times[40] - times[39] > step + 1e-9) is late


def test_a_stalled_worker_holds_back_its_own_batches_for_as_long_as_the_stall() -> None:
    loads = [1.0] * 8
    healthy = deliveries(loads, 2, 1, 0.0)
    stalled = deliveries(loads, 2, 1, 0.0, Profile((0.0, 1.5, 3.5), (1.0, 0.0, 1.0)))
    assert np.subtract(stalled, healthy).max() == pytest.approx(2.0)
