"""Work on a resource whose speed changes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.speed import step_factor, timed_profile
from simulator.faults import Factor, Resource, Window

windows = st.tuples(st.floats(0, 10), st.floats(0.01, 5)).map(lambda w: Window(w[0], w[0] + w[1]))
factors = st.builds(
    lambda w, f: Factor(Resource.HOST, (0,), tuple(w), f),
    st.lists(windows, min_size=1, max_size=3),
    st.floats(0.1, 1.0),
)


@given(st.lists(factors, max_size=4), st.floats(0, 12), st.floats(0, 12))
@settings(max_examples=100, deadline=None)
def test_work_done_is_the_speed_summed_over_time(faults: list[Factor], start: float, work: float) -> None:
    profile = timed_profile(faults)
    end = profile.finish(start, work)
    edges = sorted({start, end, *(e for e in profile.starts if start < e < end)})
    done = sum((b - a) * profile.at((a + b) / 2) for a, b in itertools.pairwise(edges))
    assert done == pytest.approx(work, abs=1e-9)
    assert end >= start + work - 1e-9


@given(st.lists(factors, max_size=4), st.floats(0, 20))
@settings(max_examples=100, deadline=None)
def test_the_speed_is_the_product_of_the_factors_active_then(faults: list[Factor], at: float) -> None:
    expected = math.prod(
        fault.factor for fault in faults for window in fault.windows if window.start <= at < window.end
    )
    assert timed_profile(faults).at(at) == pytest.approx(expected)


def test_a_stall_delays_work_by_its_length_and_one_without_end_for_ever() -> None:
    stall = Factor(Resource.HOST, (0,), (Window(1.0, 3.0),), 0.0)
    assert timed_profile([stall]).finish(0.5, 1.0) == pytest.approx(3.5)
    assert math.isinf(
        timed_profile([Factor(Resource.HOST, (0,), (Window(1.0, math.inf),), 0.0)]).finish(0.5, 1.0)
    )


def test_windows_in_steps_do_not_mix_with_windows_in_seconds() -> None:
    factor = Factor(Resource.SM, (0,), (Window(2, 4, in_steps=True), Window(0.0, 1.0)), 0.5)
    assert [step_factor([factor], step) for step in range(5)] == [1, 1, 0.5, 0.5, 1]
    assert timed_profile([factor]).at(2.5) == 1.0
