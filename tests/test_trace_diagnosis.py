"""Profiler traces are diagnosed: gaps by what the host did, figures that add up, text that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kineto_files import call, kernel, real, write
from small import values
from test_cli import call as run

from simulator.analysis import causes
from simulator.analysis.host_gaps import host_gaps
from simulator.cli.diagnose import is_trace
from simulator.formats.kineto_timeline import read_traces
from simulator.study.trace_diagnosis import diagnose_traces

KERNELS = [kernel("gemm", 1000.0 * n, 100, 7, n) for n in range(1, 4)]


@pytest.mark.parametrize(
    ("doing", "cause"),
    [
        (call("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1100, 900, cat="user_annotation"),
         causes.LOADER),
        (call("cudaDeviceSynchronize", 1100, 900), causes.SYNC),
        (call("aten::add", 1100, 900, cat="cpu_op"), causes.LAUNCH),
        (call("cudaLaunchKernel", 1100, 900, 2), causes.LAUNCH),
        (call("<built-in function collect>", 1100, 900, cat="python_function"), causes.GARBAGE),
        (call("torch.save", 1100, 900, cat="user_annotation"), causes.CHECKPOINT),
    ],
)  # fmt: skip
def test_a_gap_goes_to_what_the_host_did_and_the_rest_is_a_stall(
    tmp_path: Path, doing: dict[str, object], cause: str
) -> None:
    found = host_gaps(read_traces(write(tmp_path / "a.json", [*KERNELS, doing])))
    assert found.seconds[cause][0] == pytest.approx(900e-6)
    assert found.seconds[causes.STALL][0] == pytest.approx(900e-6)
    assert sum(values[0] for values in found.seconds.values()) == pytest.approx(found.lengths_s.sum())
    assert len(found.evidence[cause]) == 1


def test_mfu_is_told_where_model_gpu_and_tokens_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "a.json", KERNELS))
    options = ["--model", "gpt2-xl", "--gpu", "a100-sxm", "--tokens-per-step", "8"]
    code, out, _ = run(capsys, "diagnose", path, *options, "--json")
    plain = json.loads(out)
    assert code == 0
    assert plain["mfu"] == pytest.approx(plain["step_predicted_s"] / plain["step_s"])
    assert run(capsys, "diagnose", path, *options, "--fail-if", "mfu<0.99")[0] == 1
    assert run(capsys, "diagnose", path, *options[:4])[0] == 2


def test_damage_exits_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [', encoding="utf-8")
    code, out, err = run(capsys, "diagnose", str(path))
    assert (code, out) == (2, "")
    assert "a.json:1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "low", "high"), [("a100-ddp-2ranks", 0.70, 0.80), ("v100-single", 0.0, 0.05)]
)
def test_real_traces_are_read_as_people_read_them(
    name: str, low: float, high: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = real(f"{name}-rank0.json.gz")
    if path is None:
        pytest.skip("the real traces are not at hand")
    found = diagnose_traces(path)
    assert low <= found.idle.share <= high
    if low:
        assert found.causes[0].cause == causes.LAUNCH
        assert found.causes[0].seconds > 0.5 * found.step_s
    code, out, _ = run(capsys, "diagnose", str(path))
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_scenario_written_as_json_is_no_trace(tmp_path: Path) -> None:
    scenario, trace = tmp_path / "scenario.json", write(tmp_path / "trace.json", KERNELS)
    scenario.write_text(json.dumps(values()), encoding="utf-8")
    assert not is_trace(str(scenario))
    assert is_trace(str(trace))
    assert is_trace(str(tmp_path))
