"""The command line: exit codes, JSON, files that appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import values

from simulator.cli import main, verbs


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, output, error output) of a command."""
    try:
        main(list(arguments))
        code: Any = 0
    except SystemExit as error:
        code = error.code or 0
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(values()), encoding="utf-8")  # JSON is YAML
    return str(file)


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in verbs())


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, out, _ = call(capsys, verb, "--help")
    assert code == 0
    assert "Example" in out or "Commands" in out or "Examples" in out


def test_simulate_prints_a_page_of_80_columns(capsys: pytest.CaptureFixture[str], small: str) -> None:
    code, out, _ = call(capsys, "simulate", small)
    assert code == 0
    assert "MFU" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_simulate_prints_json_with_the_documented_names(
    capsys: pytest.CaptureFixture[str], small: str
) -> None:
    code, out, _ = call(capsys, "simulate", small, "--json")
    result = json.loads(out)
    assert code == 0
    wanted = ("step_time_s", "step_times_s", "mfu", "hfu", "tokens_per_s", "tokens_per_s_per_gpu")
    assert set(wanted) <= set(result)
    assert {"name", "seconds", "mfu_points"} == set(result["waterfall"][0])
    assert {
        "peak_bytes",
        "parameters_bytes",
        "gradients_bytes",
        "optimizer_bytes",
        "activations_bytes",
        "fits",
    } <= set(result["memory"])


def test_a_trace_is_written_whole(capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    code, _, _ = call(capsys, "simulate", small, "--trace", str(trace))
    assert code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert all(event.get("dur", 0) >= 0 for event in events)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_trace_that_cannot_be_written_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], small: str, tmp_path: Path
) -> None:
    code, out, err = call(capsys, "simulate", small, "--trace", str(tmp_path / "no" / "trace.json"))
    assert code == 2
    assert not out
    assert "cannot be written" in err


BAD = [
    ("simulate", "nothing-of-the-kind"),
    ("simulate", "gpt2-xl-ddp", "--set", "parallelism.tpp=2"),
    ("simulate", "gpt2-xl-ddp", "--set", "nonsense"),
    ("simulate", "gpt2-xl-ddp", "--engine", "magic"),
    ("check", "gpt2-xl-ddp", "--set", "batch.global_batch=7"),
    ("simulat",),
    ("list", "model"),
    ("kernel", "gemm", "--gpu", "h1000"),
    ("collective", "all-reduce", "--size", "x"),
    ("collective", "all-reduced"),
    ("collective", "all-reduce", "--nodes", "0"),
    ("collective", "all-reduce", "--nodes", "2", "--group", "5", "--size", "1MiB"),
    ("schedule", "1f1bb"),
    ("cluster", "dgx-h101"),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_exits_with_2_and_says_why(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert not out
    assert "error" in err.lower()
    assert "Traceback" not in err


def test_a_model_that_does_not_fit_is_refused_unless_allowed(
    capsys: pytest.CaptureFixture[str], small: str
) -> None:
    huge = ("--set", "model=llama-2-70b")
    code, _, err = call(
        capsys, "simulate", small, *huge, "--set", "cluster.gpus=8", "--set", "batch.global_batch=64"
    )
    assert code == 2
    assert "out of memory" in err
    code, out, _ = call(
        capsys,
        "simulate",
        small,
        *huge,
        "--set",
        "cluster.gpus=8",
        "--set",
        "batch.global_batch=64",
        "--allow-oom",
    )
    assert code == 0
    assert "HBM" in out


def test_new_writes_a_scenario_that_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    assert call(capsys, "new", str(file))[0] == 0
    assert call(capsys, "check", str(file))[0] == 0
    assert call(capsys, "new", str(file))[0] == 2  # it exists


def test_the_schema_names_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(call(capsys, "schema")[1])
    assert {"model", "cluster", "batch", "parallelism", "faults"} <= set(schema["properties"])


@pytest.mark.parametrize("what", ["models", "gpus", "clusters", "scenarios", "stacks", "faults"])
def test_lists_are_tables_and_json(capsys: pytest.CaptureFixture[str], what: str) -> None:
    assert call(capsys, "list", what)[0] == 0
    assert json.loads(call(capsys, "list", what, "--json")[1])


def test_a_collective_prints_what_nccl_tests_prints(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(
        call(capsys, "collective", "all-reduce", "--nodes", "2", "--size", "1MiB..4MiB", "--json")[1]
    )
    names = {"size_bytes", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "algorithm", "protocol"}
    assert [row["size_bytes"] for row in rows] == [2**20, 2**21, 2**22]
    assert names == set(rows[0])
    for row in rows:
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 2 * 15 / 16)


@pytest.mark.parametrize(
    "name", ["dgx-h100", "leaf-spine-4to1", "llama3-roce-24k", "gb200-nvl72", "torus-2d"]
)
def test_a_cluster_is_drawn_and_described(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    import xml.etree.ElementTree as ET

    picture = tmp_path / "cluster.svg"
    code, out, err = call(capsys, "cluster", name, "--svg", str(picture), "--json")
    assert code == 0, err
    about = json.loads(out)
    text = picture.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert all(layer["name"] in text for layer in about["layers"])
    over = [layer for layer in about["layers"] if (layer["oversubscription"] or 1) > 1.01]
    assert ('class="over"' in text) == bool(over)
