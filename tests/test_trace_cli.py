"""Traces of simulated runs, by the command line: valid whatever engine ran, refused before anything is spoilt."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from small import values
from test_cli import call
from test_perfetto import assert_nested

SMALL = values(
    run__steps=2,
    run__warmup=1,
    dataloader={"workers": 2, "load_time": "5 ms"},
    faults=[{"kind": "slow-compute", "node": 1, "factor": 0.8}],
)


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("engine", ["events", "lanes"])
def test_the_trace_of_a_run_is_valid(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path, engine: str
) -> None:
    file = tmp_path / "trace.json.gz"
    assert call(capsys, "simulate", small, "--engine", engine, "--trace", str(file))[0] == 0
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert_nested(events)
    phases = Counter(event["ph"] for event in events)
    assert phases["s"] == phases["f"]
    categories = {event.get("cat", "").partition(",")[0] for event in events}
    assert {"step", "compute", "collective", "optimizer"} <= categories


def test_the_trace_of_an_event_run_has_hosts_arrows_loader_workers_and_the_network(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    assert call(capsys, "simulate", small, "--engine", "events", "--trace", str(file))[0] == 0
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    threads = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {"loader worker 0", "loader worker 1"} <= threads
    assert "host" in threads
    assert {event["cat"] for event in events if event["ph"] == "s"} == {"launch", "collective"}
    busiest = max(event["args"]["percent"] for event in events if event["ph"] == "C")
    assert 0 < busiest <= 100.001


@pytest.mark.parametrize(
    ("ranks", "message"),
    [("32", "from 0 to 31"), ("0,-1", "from 0 to 31"), ("x", "expected numbers"), ("5", "lane of its own")],
)
def test_ranks_that_cannot_be_shown_leave_no_file(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path, ranks: str, message: str
) -> None:
    file = tmp_path / "trace.json"
    code, _, err = call(capsys, "simulate", small, "--trace", str(file), "--trace-ranks", ranks)
    assert code == 2
    assert message in err
    assert {one.name for one in tmp_path.iterdir()} == {"small.yaml"}
