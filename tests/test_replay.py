"""Traces replayed: unchanged they give their own times; without a cause, what it was worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kineto_files import call, kernel, real, write

from simulator.analysis import causes
from simulator.analysis.replay import Change, Replay
from simulator.formats.kineto_timeline import read_traces
from simulator.study.trace_diagnosis import worths
from simulator.timeline import DeviceKind

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize("name", ["a100-ddp-2ranks-rank0", "v100-single-rank0", "128ranks-sampled-rank0"])
def test_a_replay_with_nothing_changed_gives_the_traced_times(name: str) -> None:
    path = real(f"{name}.json.gz")
    if path is None:
        pytest.skip("the real traces are not at hand")
    timeline = read_traces(path)
    assert Replay(timeline).run() == pytest.approx(timeline.device.end_s, rel=0.02, abs=1e-9)


def test_a_slow_loader_is_worth_its_time(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 10, 1), kernel("gemm", 15, 100, 7, 1),
        call(LOADER, 20, 480, cat="user_annotation"),
        call("cudaLaunchKernel", 510, 10, 2), kernel("gemm", 525, 100, 7, 2),
    ]  # fmt: skip
    timeline = read_traces(write(tmp_path / "a.json", events))
    assert worths(timeline)[causes.LOADER] == pytest.approx((525 - 115) * 1e-6)


def test_a_wait_of_the_host_keeps_it_and_can_be_taken_away(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 10, 1), kernel("gemm", 15, 100, 7, 1),
        call("cudaStreamSynchronize", 20, 100), call("cudaLaunchKernel", 200, 10, 2), kernel("gemm", 215, 100, 7, 2),
    ]  # fmt: skip
    replay = Replay(read_traces(write(tmp_path / "a.json", events)))
    assert replay.span_s() == pytest.approx(300e-6)
    # the host does as much between, from the wait's begin on: the launch comes at 105, the kernel after the first
    assert replay.span_s(Change(syncs=False)) == pytest.approx(205e-6)
    first = np.array([0])
    assert replay.span_s(Change(instant=first)) == pytest.approx(205e-6)


def test_all_members_of_a_collective_end_later_when_one_comes_later(tmp_path: Path) -> None:
    about = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    for rank, late in ((0, 0), (1, 300)):
        events = [
            call("cudaLaunchKernel", 0, 1, 1), call("cudaLaunchKernel", 2, 1, 2),
            kernel("gemm", 10, 100 + late, 7, 1),
            kernel("ncclDevKernel_AllReduce", 110 + late, 390 - late, 7, 2, **about),
        ]  # fmt: skip
        write(tmp_path / f"r{rank}.json", events, rank, 2)
    timeline = read_traces(tmp_path)
    replay = Replay(timeline)
    assert replay.run() == pytest.approx(timeline.device.end_s)
    slow = np.flatnonzero((timeline.device.rank == 1) & (timeline.device.kind == DeviceKind.COMPUTE))
    assert replay.run(Change(instant=slow)).max() == pytest.approx(200e-6)  # the other's product, the bytes
    assert worths(timeline)[causes.WAITING] == pytest.approx(150e-6)
