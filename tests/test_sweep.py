"""Sweeps and comparisons: a grid in order, the same with any number of processes, failures as rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import values
from test_cli import call


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(values()), encoding="utf-8")
    return str(file)


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
    assert len(file.read_text().splitlines()) == 7


def test_a_comparison_says_where_the_difference_goes(capsys: pytest.CaptureFixture[str], small: str) -> None:
    code, out, _ = call(capsys, "compare", small, "--set", "overlap.grad_reduce=false")
    assert code == 0
    assert "exposed DP communication" in out
    both = json.loads(call(capsys, "compare", small, "--set", "overlap.grad_reduce=false", "--json")[1])
    assert both[1]["step_time_s"] > both[0]["step_time_s"]


@pytest.mark.parametrize(
    "arguments", [("sweep", "gpt2-xl-ddp", "--vary", "x"), ("compare", "gpt2-xl-ddp")], ids=" ".join
)
def test_bad_sweeps_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert call(capsys, *arguments)[0] == 2
