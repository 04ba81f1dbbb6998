"""The trace file, judged by the rules of the Trace Event Format and not by the writer's code."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import Builder, Toy

from simulator.report.trace import choose, write_trace
from simulator.timeline import DeviceKind, HostKind, Lane, Timeline


def written(timeline: Timeline, **which: Any) -> list[dict[str, Any]]:
    stream = io.BytesIO()
    write_trace(timeline, stream, choose(timeline, **which), compress=False)
    return json.loads(stream.getvalue())["traceEvents"]


def training(ranks: int = 4, steps: int = 2) -> Timeline:
    toy = Toy(ranks, nodes_of=2)
    for step in range(steps):
        toy.block(0.010, HostKind.LOADER)
        for _ in range(3):
            toy.work(np.linspace(0.02, 0.03, ranks), launch=0.001)
            toy.collective(0.01, launch=0.0001, name="all-reduce bucket 3", size_bytes=25 * 2.0**20)
        toy.wait("dp")
        toy.work(0.005, DeviceKind.OPTIMIZER, launch=0.001)
        toy.end_step()
        toy.build.loader.append((0, step % 2, step, 0.05 * step, 0.05 * step + 0.04))
    toy.build.links["node0/nic0/up"] = (np.array([0.0, 0.03, 0.05]), np.array([0.0, 0.9, 0.0]))
    toy.build.links["spine0/leaf1/down"] = (np.array([0.0, 0.03]), np.array([0.0, 0.5]))
    return toy.timeline()


def assert_nested(events: list[dict[str, Any]]) -> None:
    """On every track each slice is inside the one that it began in: none partially overlaps."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        inside: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while inside and inside[-1] <= start:
                inside.pop()
            assert not inside or end <= inside[-1]
            inside.append(end)


def names(events: list[dict[str, Any]], what: str) -> dict[Any, str]:
    return {
        (event["pid"], event["tid"]) if what == "thread_name" else event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == what
    }


def test_every_slice_lies_on_a_named_thread_of_a_named_process() -> None:
    events = written(training())
    threads, processes = names(events, "thread_name"), names(events, "process_name")
    for event in events:
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in threads
        assert event["pid"] in processes
    assert {"host", "loader worker 0", "stream compute", "stream dp", "nic0/up"} <= set(threads.values())
    assert "rank 3 (node 1)" in processes.values()
    assert "node 0 network" in processes.values()


def test_slices_nest() -> None:
    assert_nested(written(training()))


times = st.floats(0, 0.01).map(lambda value: value / 7)


@given(st.lists(st.tuples(st.integers(0, 1), times, times, st.sampled_from(["compute", "dp"])), max_size=20))
@settings(max_examples=60, deadline=None)
def test_slices_nest_whatever_the_spans_are(spans: list[tuple[int, float, float, str]]) -> None:
    """Overlapping spans of one stream get tracks of their own; rounding never makes an overlap."""
    build = Builder(2)
    build.device(0, 0.0, 0.001)
    clock = 0.0
    for rank, start, length, stream in spans:
        build.device(rank, start, start + length, stream)
        build.device(rank, clock, clock + length, "copy")  # one touches the next
        build.host(rank, start, start + length)
        clock += length
    assert_nested(written(build.timeline([0, 1])))


def test_times_are_exact_to_the_grid() -> None:
    build = Builder(1)
    build.device(0, 1e-6, 3.25e-6, name="forward layer 12")
    event = next(e for e in written(build.timeline([0, 1e-5])) if e.get("name") == "forward layer 12")
    assert (event["ts"], event["dur"]) == (1.0, 2.25)


def test_arrows_start_and_end_inside_slices() -> None:
    events = written(training())
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            around = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] < end for start, end in around)
            arrows[event["cat"], event["id"]].append(event)
    assert {category for category, _ in arrows} == {"launch", "collective"}
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert start["ts"] <= end["ts"]


def test_collective_arrows_lead_from_the_last_to_arrive_to_every_other_member() -> None:
    events = written(training(ranks=4, steps=1))
    starts = [e for e in events if e["ph"] == "s" and e["cat"] == "collective"]
    ends = [e for e in events if e["ph"] == "f" and e["cat"] == "collective"]
    assert {event["pid"] for event in starts} == {4}  # rank 3 computes longest
    assert sorted(event["pid"] for event in ends) == sorted([1, 2, 3] * 3)


def test_every_launched_kernel_has_one_arrow() -> None:
    timeline = training(ranks=2, steps=1)
    ends = [e for e in written(timeline) if e["ph"] == "f" and e["cat"] == "launch"]
    assert len(ends) == len(timeline.device)


def test_a_collective_shows_whom_it_waited_for_and_its_size() -> None:
    found = {event["name"] for event in written(training()) if event["ph"] == "X"}
    assert {"all-reduce bucket 3 25 MiB", "wait for rank 3", "move the bytes", "step 1"} <= found


def test_link_utilisation_is_a_counter_in_percent() -> None:
    counters = [event for event in written(training()) if event["ph"] == "C"]
    nic = [(e["ts"], e["args"]["percent"]) for e in counters if e["name"] == "nic0/up utilisation"]
    assert nic == [(0, 0), (30000, 90), (50000, 0)]
    assert any(event["name"] == "spine0/leaf1/down utilisation" for event in counters)
    busy = [e for e in written(training()) if e["ph"] == "X" and e["cat"] == "nic"]
    assert [(e["ts"], e["dur"]) for e in busy] == [(30000, 20000)]


def test_chosen_ranks_and_steps_only() -> None:
    events = written(training(), ranks=[1], steps=(1, 2))
    assert {e["pid"] for e in events if e["ph"] == "X" and e["cat"] != "nic"} == {2}
    assert {e["args"]["step"] for e in events if "step" in e.get("args", {})} == {1}


def test_a_folded_rank_says_how_many_it_stands_for() -> None:
    build = Builder((Lane(0, 0, 0, multiplicity=120), Lane(120, 15, 0, multiplicity=8)))
    build.device(0, 0, 1)
    build.device(1, 0, 1)
    found = names(written(build.timeline([0, 1])), "process_name").values()
    assert set(found) == {"rank 0 (node 0, and 119 like it)", "rank 120 (node 15, and 7 like it)"}


def test_of_a_big_timeline_the_telling_ranks_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.report.trace.MOST_SPANS", 10)
    toy = Toy(40)
    toy.work(np.where(np.arange(40) == 33, 2.0, 1.0))
    toy.end_step()
    chosen = choose(toy.timeline()).lanes
    assert len(chosen) == 16
    assert {0, 33} <= set(chosen)


def test_gzip_is_the_same_bytes_every_time() -> None:
    timeline = training()
    texts = []
    for _ in range(2):
        stream = io.BytesIO()
        write_trace(timeline, stream, choose(timeline), compress=True)
        texts.append(stream.getvalue())
    assert texts[0] == texts[1]
    assert json.loads(gzip.decompress(texts[0]))["traceEvents"] == written(timeline)


def test_an_empty_timeline_is_a_valid_file() -> None:
    assert all(e["ph"] in "MX" for e in written(Builder(1).timeline([0, 1])))
