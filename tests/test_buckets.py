"""DistributedDataParallel's buckets, to the byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.program.gradients.buckets import assign_buckets

sizes = st.lists(st.integers(1, 200), min_size=1, max_size=40)


@given(sizes, st.integers(1, 100), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_every_parameter_is_in_one_bucket_in_reverse_order(elements: list[int], first: int, cap: int) -> None:
    buckets = assign_buckets([float(x) for x in elements], first, cap)
    flat = [index for bucket in buckets for index in bucket]
    assert flat == list(reversed(range(len(elements))))


@given(sizes, st.integers(1, 100), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_a_bucket_closes_as_soon_as_it_reaches_its_cap(elements: list[int], first: int, cap: int) -> None:
    buckets = assign_buckets([float(x) for x in elements], first, cap)
    for number, bucket in enumerate(buckets):
        limit = min(first, cap) if number == 0 else cap
        filled = [elements[i] for i in bucket]
        assert sum(filled[:-1]) < limit
        assert sum(filled) >= limit or number == len(buckets) - 1
