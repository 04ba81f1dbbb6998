"""Validation: nothing is dropped in silence, processes do not change figures, short runs give long steps."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.study.simulate import load, simulate
from simulator.study.validation import Row, Task, find_set, run_tasks, summary, validation_sets
from simulator.study.validation.base import table
from simulator.study.validation.cases import stage_layers, step_time_s

#: table -> set, where the names differ; a set's rows are those of all its tables
_SETS = {
    "korthikanti-table4-layer-22B": "korthikanti-table4",
    "korthikanti-table3-5": "korthikanti-2022",
    "sc21-table2-zero3-vs-ptdp": "sc21-table2",
    "nanotron-ultrascale-best": "nanotron",
    "nanotron-tp-scaling-3B": "nanotron",
}
_PUBLISHED = Path(__file__).parents[1] / "validation" / "published"


def _pipeline(stages: int, micro_batches: int, virtual: int = 1) -> dict[str, object]:
    return {
        "model": {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000},
        "cluster": {"topology": "dgx-a100", "gpus": 8},
        "parallelism": {
            "tp": 2,
            "pp": stages,
            "schedule": "interleaved-1f1b" if virtual > 1 else "1f1b",
            "virtual_stages": virtual,
        },
        "batch": {
            "sequence_length": 1024,
            "micro_batch": 1,
            "global_batch": micro_batches * 8 // 2 // stages,
        },
        "software": {"framework": "megatron-2021", "attention": "unfused"},
    }


def test_every_published_table_has_a_set_with_at_least_its_rows() -> None:
    known = validation_sets()
    rows: dict[str, int] = {}
    for file in sorted(_PUBLISHED.glob("*.csv")):
        name = _SETS.get(file.stem, file.stem)
        assert name in known, file.name
        rows[name] = rows.get(name, 0) + len(table("published", file.stem))
    for name, count in rows.items():
        tasks = list(known[name]())
        assert len(tasks) >= count, name


def test_a_row_that_cannot_be_run_says_why() -> None:
    failed = [task() for task in find_set("bloom-tr11-sweeps")() if task.work is None]
    assert failed
    assert all(row.skipped and math.isnan(row.ours) for row in failed)
    (total,) = summary("bloom", failed)
    assert (total.count, total.skipped) == (0, len(failed))


def test_two_processes_give_the_figures_of_one() -> None:
    tasks = list(find_set("korthikanti-table4")())[:4]
    assert run_tasks(tasks, 2) == run_tasks(tasks, 1)


def test_rows_stand_in_the_order_of_the_tasks_whatever_starts_first() -> None:
    tasks = [Task(Row(str(i), 1.0, float("nan")), float, cost=i) for i in range(5)]
    assert [row.name for row in run_tasks(tasks)] == [task.row.name for task in tasks]


@pytest.mark.parametrize(("stages", "count", "virtual"), [(4, 32, 1), (4, 30, 1), (4, 32, 2), (1, 16, 1)])
def test_a_long_pipelines_step_lies_on_the_line_of_two_short_ones(
    stages: int, count: int, virtual: int
) -> None:
    values = _pipeline(stages, count, virtual)
    whole = simulate({**values, "run": {"steps": 1, "warmup": 0}}).step_time_s
    assert step_time_s(values) == pytest.approx(whole, rel=2e-3)


@pytest.mark.parametrize(("layers", "parts"), [(126, 64), (22, 24), (30, 8), (13, 4), (12, 4), (7, 1)])
def test_stages_share_all_layers(layers: int, parts: int) -> None:
    found = stage_layers(layers, parts) or [layers // parts] * parts
    assert sum(found) == layers
    assert len(found) == parts
    assert max(found) - min(found) <= 1


def test_shares_are_compared_in_points() -> None:
    row = Row("bubble", 0.10, 0.11, points=True)
    assert row.error == pytest.approx(0.01)
    assert replace(row, points=False).error == pytest.approx(0.1)


def test_rows_and_totals_as_json_and_as_a_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    file = tmp_path / "bias.html"
    with pytest.raises(SystemExit) as done:
        main(["validate", "korthikanti-table4", "--json", "--plot", str(file), "--processes", "1"])
    assert not done.value.code
    rows = json.loads(capsys.readouterr().out)
    assert {row["metric"] for row in rows} == {"layer forward", "layer backward", "layer combined"}
    assert all(row["gpu"] == "a100-sxm" and row["sequence"] == 2048 for row in rows)
    assert "by GPU" in file.read_text(encoding="utf-8")


def test_scenarios_of_rows_are_ordinary_ones() -> None:
    for name in ("torchtitan-h100", "llama3-405b"):
        for task in find_set(name)():
            values = task.work.args[0]  # type: ignore[union-attr]
            assert load(values, {}).cluster.gpus == task.row.about.gpus
