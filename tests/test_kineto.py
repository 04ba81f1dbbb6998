"""Profiler traces: read whole, told apart by generation, clocks aligned, damage named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from kineto_files import call, kernel, real, write

from simulator.analysis.device_time import device_time, stream_idle
from simulator.errors import SpecError
from simulator.formats.kineto_names import device_kind
from simulator.formats.kineto_timeline import read_traces
from simulator.timeline import DeviceKind, HostKind

THREE = [
    kernel("gemm", 100, 100, 7, 1),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 150, 150, 13, 2),
    kernel("gemm", 250, 100, 7, 3),
    *(call("cudaLaunchKernel", 10 * number, 5, number) for number in (1, 2, 3)),
]


def test_three_kernels_give_the_figures_known_by_hand(tmp_path: Path) -> None:
    timeline = read_traces(write(tmp_path / "one.json", THREE))
    time = device_time(timeline)
    assert time.compute_s[0] / time.span_s[0] == pytest.approx(0.8)
    assert time.overlap_share[0] == pytest.approx(2 / 3)
    idle = stream_idle(timeline)
    assert (idle.host_wait_s + idle.kernel_wait_s + idle.other_s)[0] == pytest.approx([50e-6, 0])


def test_packed_and_plain_files_and_a_bare_list_read_alike(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.json", THREE)
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    text = plain.read_text(encoding="utf-8")
    bare = tmp_path / "c.json"
    bare.write_text(text[text.index("[") : text.rindex("]") + 1], encoding="utf-8")
    one, two, three = (read_traces(path) for path in (plain, packed, bare))
    assert np.array_equal(one.device.start_s, two.device.start_s)
    assert np.array_equal(one.device.start_s, three.device.start_s)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    ],
)
def test_every_generation_of_nccl_is_communication(name: str) -> None:
    assert device_kind("kernel", name) == DeviceKind.COLLECTIVE


def test_calls_of_both_vendors_wait_or_issue(tmp_path: Path) -> None:
    events = [
        kernel("Cijk_Ailk_Bljk", 100, 50, 0, 1), call("hipExtModuleLaunchKernel", 0, 5, 1),
        call("hipStreamSynchronize", 10, 140, 2),
    ]  # fmt: skip
    timeline = read_traces(write(tmp_path / "amd.json", events))
    assert timeline.host.kind.tolist() == [HostKind.LAUNCH, HostKind.SYNC]
    assert timeline.device.issued_s[0] == pytest.approx(5e-6)


@pytest.mark.parametrize("ahead", [0.0, 400.0, -1e6])
def test_clocks_are_aligned_at_collectives(tmp_path: Path, ahead: float) -> None:
    def events(shift: float, late: float) -> list[dict[str, object]]:
        return [
            kernel("ncclDevKernel_AllReduce", 1000.0 * n + shift + late, 200 - late, 13, n, **about)
            for n in range(1, 6)
        ]

    about = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
             "In msg nelems": 10, "dtype": "Float", "Collective name": "allreduce"}  # fmt: skip
    write(tmp_path / "r0.json", events(0, 0), 0, 2)
    write(tmp_path / "r1.json", events(ahead, 50), 1, 2)
    timeline = read_traces(tmp_path)
    assert len(timeline.collectives) == 5
    assert timeline.collectives.begin_s - timeline.collectives.first_s == pytest.approx([50e-6] * 5)
    assert timeline.collectives.last_rank.tolist() == [1] * 5
    assert timeline.collectives.size_bytes.tolist() == [40] * 5


def test_profiler_steps_mark_the_steps_and_without_them_there_is_one(tmp_path: Path) -> None:
    marks = [call(f"ProfilerStep#{n}", 100.0 * n, 90, cat="user_annotation") for n in (7, 8)]
    assert read_traces(write(tmp_path / "a.json", THREE)).steps.shape == (1, 1, 2)
    assert read_traces(write(tmp_path / "b.json", THREE + marks)).steps.shape == (1, 2, 2)


def test_what_the_profiler_cut_off_is_left_out(tmp_path: Path) -> None:
    broken = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5, "args": {"stream": 7}}
    assert len(read_traces(write(tmp_path / "a.json", [*THREE, broken])).device) == 3


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", THREE)
    write(tmp_path / "b.json", THREE)
    with pytest.raises(SpecError, match=r"rank of a\.json too"):
        read_traces(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with ''"), (b"\x1f\x8b\x08\x00", "gzip"), (b"hello", "starts with 'h'"),
        (b'{"a": 1}', "no traceEvents"), (b'{"traceEvents": {}}', "expected a list"),
        (b'{"traceEvents": []}', "no GPU events"), (b'{"traceEvents": [{"ph": "X",', "cut off"),
        (b'{"traceEvents": [\n{"ph": X}]}', r"a\.json:2.*damaged JSON"), (b'{"traceEvents": [3]}', "'3'"),
        (b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":"x","dur":1}]}', "could not convert"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_traces(path)


def test_a_file_cut_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.json", THREE).read_bytes()
    packed = gzip.compress(whole)
    for data in (whole, packed):
        for part in range(0, len(data) - 2, 37):
            (tmp_path / "cut.json").write_bytes(data[:part])
            with pytest.raises(SpecError):
                read_traces(tmp_path / "cut.json")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["a100-ddp-2ranks-rank0", "v100-single-rank0", "128ranks-sampled-rank0", "128ranks-sampled-rank1"]
)
def test_real_traces_give_the_figures_of_hta(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hta = pytest.importorskip("hta.trace_analysis")
    path = real(f"{name}.json.gz")
    if path is None:
        pytest.skip("the real traces are not at hand")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")  # it shortens each span by up to 2 us otherwise
    theirs = hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    timeline = read_traces(path)
    ours = device_time(timeline)
    row = theirs.get_temporal_breakdown(visualize=False).iloc[0]
    assert ours.idle_s[0] * 1e6 == pytest.approx(row["idle_time(us)"], rel=0.01)
    assert ours.compute_s[0] * 1e6 == pytest.approx(row["compute_time(us)"], rel=0.01)
    assert ours.other_s[0] * 1e6 == pytest.approx(row["non_compute_time(us)"], rel=0.01)
    if ours.communication_s[0]:
        overlap = theirs.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
        assert 100 * ours.overlap_share[0] == pytest.approx(overlap, rel=0.01)
    idle = stream_idle(timeline)
    for _, one in theirs.get_idle_time_breakdown(ranks=[0], visualize=False)[0].iterrows():
        stream = timeline.streams.index(str(one["stream"]))
        mine = getattr(idle, f"{one['idle_category']}_s")[0, stream] * 1e6
        assert mine == pytest.approx(one["idle_time"], rel=0.01, abs=2)
