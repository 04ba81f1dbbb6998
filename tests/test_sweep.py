"""Sweeps and comparisons: a grid in order, the same with any number of processes, failures as rows."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from small import values
from test_cli import call

from simulator.study.sweep import Point, to_csv


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(values()), encoding="utf-8")
    return str(file)


BIG = "model.layers=400"
GRID = ("--vary", "overlap.grad_reduce=true,false", "--vary", "batch.micro_batch=2,4,7")


def test_a_sweep_is_the_same_with_one_process_or_two(capsys: pytest.CaptureFixture[str], small: str) -> None:
    one, other = (
        call(capsys, "sweep", small, *GRID, "--json", "--processes", str(count)) for count in (1, 2)
    )
    assert one == other
    points = json.loads(one[1])
    assert [point["settings"]["batch.micro_batch"] for point in points] == ["2", "4", "7"] * 2
    failed = [point for point in points if point["error"]]
    assert len(failed) == 2
    assert all("multiple of" in point["error"] for point in failed)


def test_a_sweep_prints_a_table_and_a_csv_file(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.csv"
    code, out, _ = call(capsys, "sweep", small, *GRID, "--csv", str(file))
    assert code == 0
    assert "fastest" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    points = json.loads(call(capsys, "sweep", small, *GRID, "--json")[1])
    assert [row["batch.micro_batch"] for row in rows] == ["2", "4", "7"] * 2
    for row, point in zip(rows, points, strict=True):
        assert row["error"] == point["error"]
        for name in ("step_time_s", "mfu", "tokens_per_s", "peak_bytes", "exposed_s"):
            assert (float(row[name]) if row[name] else None) == point[name]


def test_nothing_exposed_is_a_zero_in_the_csv_file_and_unknown_is_empty() -> None:
    points = [Point({"a": '1,"2"'}, exposed_s=0.0), Point({"a": "x"}, error='no"t, that')]
    rows = list(csv.DictReader(io.StringIO(to_csv(points))))
    assert [(row["a"], row["exposed_s"], row["mfu"], row["error"]) for row in rows] == [
        ('1,"2"', "0.0", "", ""),
        ("x", "", "", 'no"t, that'),
    ]


def test_a_sweep_is_drawn_as_a_page_of_its_own(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    files = [tmp_path / name for name in ("a.html", "b.html")]
    for file in files:
        assert call(capsys, "sweep", small, *GRID, "--plot", str(file))[0] == 0
    text = files[0].read_text(encoding="utf-8")
    assert text == files[1].read_text(encoding="utf-8")
    assert not re.search(r"<(script|link)[^>]+(src|href)=", text)
    assert "batch.micro_batch=4" in text


def test_what_cannot_be_written_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.study.sweep.sweep", lambda *_, **__: pytest.fail("ran"))
    for option in ("--csv", "--plot"):
        code, _, err = call(capsys, "sweep", small, *GRID, option, str(tmp_path / "no" / "file"))
        assert code == 2
        assert "cannot be written" in err


def test_what_does_not_fit_is_a_row_with_the_reason(capsys: pytest.CaptureFixture[str], small: str) -> None:
    code, out, _ = call(capsys, "sweep", small, "--vary", "batch.micro_batch=4,8", "--set", BIG, "--json")
    assert code == 0
    for point in json.loads(out):
        assert "GiB" in point["error"]
        assert small not in point["error"]
        assert point["step_time_s"] is None
    code, out, _ = call(capsys, "sweep", small, "--vary", "batch.micro_batch=4,8", "--set", BIG)
    assert code == 0
    assert "failed [1]" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_comparison_says_where_the_difference_goes(capsys: pytest.CaptureFixture[str], small: str) -> None:
    code, out, _ = call(capsys, "compare", small, "--set", "overlap.grad_reduce=false")
    assert code == 0
    assert "exposed DP communication" in out
    both = json.loads(call(capsys, "compare", small, "--set", "overlap.grad_reduce=false", "--json")[1])
    assert both[1]["step_time_s"] > both[0]["step_time_s"]


def test_every_scenario_is_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "compare", "gpt2-xl-ddp", "slow-node", "slow-nic")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    step = next(line for line in out.splitlines() if line.startswith("step")).split()[1:]
    first, node, apart, nic, apart_nic = map(float, step)
    assert node - first == pytest.approx(apart, abs=0.11)
    assert nic - first == pytest.approx(apart_nic, abs=0.11)


@pytest.mark.parametrize(
    "arguments", [("sweep", "gpt2-xl-ddp", "--vary", "x"), ("compare", "gpt2-xl-ddp")], ids=" ".join
)
def test_bad_sweeps_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert call(capsys, *arguments)[0] == 2
