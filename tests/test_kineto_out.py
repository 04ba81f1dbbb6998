"""Simulated runs written as profiler traces: HTA loads them and finds our own figures; so do we."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small import values
from test_cli import call

from simulator.analysis.device_time import device_time, stream_idle
from simulator.formats.kineto_timeline import read_traces
from simulator.report import store
from simulator.timeline import Timeline

SMALL = values(run__steps=2, run__warmup=1, faults=[{"kind": "slow-compute", "node": 1, "factor": 0.8}])


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Timeline]:
    """A folder of traces, and the timeline that it shows."""
    scenario, folder, saved = tmp_path / "small.yaml", tmp_path / "traces", tmp_path / "run.npz"
    scenario.write_text(json.dumps(SMALL), encoding="utf-8")
    options = ["--trace", str(folder), "--trace-format", "kineto", "--save", str(saved)]
    assert call(capsys, "simulate", str(scenario), *options)[0] == 0
    return folder, store.load(saved).timeline


def test_what_is_written_reads_back_with_the_same_figures(written: tuple[Path, Timeline]) -> None:
    folder, simulated = written
    back = read_traces(folder)
    assert [lane.rank for lane in back.ranks] == [lane.rank for lane in simulated.ranks]
    ours = device_time(simulated, np.ones(len(simulated.device), dtype=np.bool_))
    theirs = device_time(back)
    for name in ("span_s", "idle_s", "compute_s", "communication_s", "overlapped_s"):
        assert getattr(theirs, name) == pytest.approx(getattr(ours, name), rel=0.01, abs=20e-6)
    assert set(back.collectives.group_size) == set(simulated.collectives.group_size)


@pytest.mark.filterwarnings("ignore")
def test_hta_loads_them_and_agrees(written: tuple[Path, Timeline]) -> None:
    hta = pytest.importorskip("hta.trace_analysis")
    folder, simulated = written
    theirs = hta.TraceAnalysis(trace_dir=str(folder))
    every = np.ones(len(simulated.device), dtype=np.bool_)
    ours, idle = device_time(simulated, every), stream_idle(simulated, every)
    breakdown = theirs.get_temporal_breakdown(visualize=False).sort_values("rank")
    assert breakdown["rank"].tolist() == [lane.rank for lane in simulated.ranks]
    for column, figure in (("idle", ours.idle_s), ("compute", ours.compute_s), ("kernel", ours.span_s)):
        assert breakdown[f"{column}_time(us)"].to_numpy() == pytest.approx(figure * 1e6, rel=0.01, abs=20)
    overlap = theirs.get_comm_comp_overlap(visualize=False).sort_values("rank")["comp_comm_overlap_pctg"]
    assert overlap.to_numpy() == pytest.approx(100 * ours.overlap_share, rel=0.01, abs=0.2)
    ranks = [lane.rank for lane in simulated.ranks]
    table = theirs.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]
    for _, one in table.iterrows():
        lane, stream = ranks.index(int(one["rank"])), (int(one["stream"]) - 7) // 6
        mine = getattr(idle, f"{one['idle_category']}_s")[lane, stream] * 1e6
        assert mine == pytest.approx(one["idle_time"], rel=0.01, abs=50)


def test_a_format_without_a_folder_or_an_unknown_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "simulate", "gpt2-xl-ddp", "--trace-format", "kineto")[0] == 2
    assert call(capsys, "simulate", "gpt2-xl-ddp", "--trace-format", "vcd")[0] == 2
    file = tmp_path / "file"
    file.touch()
    options = ["--trace", str(file), "--trace-format", "kineto"]
    assert call(capsys, "simulate", "gpt2-xl-ddp", *options, "--set", "run.steps=2")[0] == 2
