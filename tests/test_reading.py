"""A timeline read in the fixed order: the same of a run, saved or not; figures that add up; any can fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small import run, scenario, values
from test_cli import call

from simulator.analysis import reading
from simulator.analysis.waterfall import weights
from simulator.study.diagnose import diagnose

SHORT = {"run": {"steps": 3, "warmup": 1}}
FAULTY = {
    **SHORT,
    "faults": [{"kind": "host-stall", "rank": 3, "duration": "300 ms", "every_steps": 1}],
    "software__launch_queue": 64,
}
AXES = {"total_s", "overlapped_s", "exposed_s", "waiting_s", "moving_s"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("reading")
    file, saved = folder / "small.yaml", folder / "run.npz"
    file.write_text(json.dumps(values(**FAULTY)), encoding="utf-8")
    return str(file), str(saved)


def test_a_saved_run_reads_as_the_run_itself(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str]
) -> None:
    file, saved = files
    assert call(capsys, "simulate", file, "--save", saved)[0] == 0
    live = json.loads(call(capsys, "diagnose", file, "--json")[1])
    code, out, _ = call(capsys, "diagnose", saved, "--json")
    assert code == 0
    again = json.loads(out)
    for key in set(live) - {"causes", "notes", "worth"}:
        assert (
            again[key] == pytest.approx(live[key])
            if isinstance(live[key], float)
            else again[key] == live[key]
        )
    code, out, _ = call(capsys, "diagnose", saved)
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    for option in (("--set", "run.steps=2"), ("--worth", "single"), ("--gpu", "a100-sxm")):
        assert call(capsys, "diagnose", saved, *option)[0] == 2


def test_idle_gaps_and_work_fill_the_step_and_the_host_fills_the_gaps() -> None:
    found = diagnose(scenario(**FAULTY))
    plain = found.to_dict()
    idle = plain["gpu_idle"]
    assert idle["seconds"] == pytest.approx(idle["share"] * plain["step_s"])
    assert plain["suspects"]["sm_activity"] == pytest.approx(1 - idle["share"])
    assert sum(idle["histogram"]["counts"]) == len(found.idle.lengths_s)
    assert 0 < idle["seconds"] == pytest.approx(sum(plain["gaps"].values()), rel=0.05)
    stall = plain["evidence"]["host stalls"][0]
    assert (stall["rank"], stall["length_s"]) == (3, pytest.approx(0.3))


def test_a_slow_loader_is_seen_at_work() -> None:
    found = diagnose(scenario(dataloader={"workers": 1, "load_time": "900 ms"}, **SHORT))
    assert found.evidence["dataloader wait"][0].name == "wait for the dataloader"
    assert found.evidence["dataloader wait"][0].filled_s == pytest.approx(
        found.host["dataloader wait"], rel=0.01
    )


def test_collectives_are_split_twice_and_an_idle_fabric_gives_its_own_busbw() -> None:
    plain = diagnose(scenario(**SHORT)).to_dict()["collectives"]
    assert plain["total_s"] == pytest.approx(plain["overlapped_s"] + plain["exposed_s"])
    data = plain["dp"]
    assert set(data) >= AXES
    assert data["total_s"] == pytest.approx(data["waiting_s"] + data["moving_s"])
    assert data["busbw_bytes_per_s"] == pytest.approx(data["fabric_busbw_bytes_per_s"], rel=0.01)
    slow = diagnose(scenario(faults=[{"kind": "slow-nic", "nic": "1:2", "factor": 0.2}], **SHORT))
    data = slow.to_dict()["collectives"]["dp"]
    assert data["busbw_bytes_per_s"] < 0.5 * data["fabric_busbw_bytes_per_s"]


def test_a_late_rank_shows_as_waiting_not_as_bytes() -> None:
    healthy = diagnose(scenario(**SHORT)).to_dict()["collectives"]["dp"]
    late = diagnose(scenario(faults=[{"kind": "slow-compute", "node": 2, "factor": 0.7}], **SHORT))
    data = late.to_dict()["collectives"]["dp"]
    assert data["moving_s"] == pytest.approx(healthy["moving_s"], rel=0.1)
    assert data["waiting_s"] > 10 * healthy["waiting_s"]


def test_gaps_are_what_spans_leave_of_the_window() -> None:
    timeline = run(**SHORT).timeline
    part = reading.window(timeline, 1, weights(timeline, np.ones(len(timeline.ranks))))
    idle, gaps = reading.idle(timeline, part)
    busy = reading.busy(timeline, part, tuple(reading.DeviceKind))
    step = float(part.weight @ (part.high_s - part.low_s)) * part.scale
    assert busy + idle.seconds - idle.inside_s == pytest.approx(step)
    assert (gaps[2] > gaps[1]).all()


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("gpu_idle.share>0.001", 1), ("collectives.dp.exposed_s<1e9", 1), ("suspects.rank_spread>0.9", 0),
        ("collectives.xp.total_s>0", 2), ("gpu_idle.shard>0", 2), ("mfu=0.3", 2), ("faults.x<1", 2),
    ],
)  # fmt: skip
def test_any_figure_can_be_failed_on(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], condition: str, code: int
) -> None:
    saved = files[1]
    if not Path(saved).exists():
        assert call(capsys, "simulate", files[0], "--save", saved)[0] == 0
    assert call(capsys, "diagnose", saved, "--fail-if", condition)[0] == code
