"""Operation tables of production jobs"""

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.formats.op_tables import COLUMNS, read_op_table
from simulator.study.job import study_job


def _write(path: Path, *rows: dict[str, object]) -> Path:
    lines = [",".join(COLUMNS)]
    base: dict[str, object] = dict.fromkeys(COLUMNS, 0) | {"optype": "forward-compute", "duration": 1.0}
    lines += [",".join(str((base | row)[name]) for name in COLUMNS) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_step_lasts_from_its_first_start_to_its_last_end(tmp_path: Path) -> None:
    table = read_op_table(_write(tmp_path / "t.csv", {}, {"start_ts": 2.5}, {"step": 7, "duration": 0.5}))
    assert table.step_seconds() == {0: 3.5, 7: 0.5}


@pytest.mark.parametrize(
    ("column", "value"), [("duration", -1), ("stage", "x"), ("step", 1.5), ("start_ts", "nan")]
)
def test_a_bad_value_is_named_with_its_row(tmp_path: Path, column: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"row 2: {column}"):
        read_op_table(_write(tmp_path / "t.csv", {}, {column: value}))


def test_missing_columns_and_empty_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step\n1\n")
    with pytest.raises(SpecError, match="columns missing"):
        read_op_table(tmp_path / "t.csv")
    with pytest.raises(SpecError, match="no rows"):
        read_op_table(_write(tmp_path / "e.csv"))


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"nothing")
    with pytest.raises(SpecError, match="Parquet"):
        read_op_table(tmp_path / "t.parquet")


def test_a_slow_rank_holds_the_job_and_the_whole_slowdown(tmp_path: Path) -> None:
    gather = {"optype": "params-all-gather", "duration": 0.1}
    rows: list[dict[str, object]] = [{"duration": 2.0}, {"rank": 1, "dp_rank": 1}]
    rows += [gather | {"start_ts": 2.0}, gather | {"rank": 1, "dp_rank": 1, "start_ts": 1.0, "duration": 1.1}]
    found = study_job(read_op_table(_write(tmp_path / "t.csv", *rows)))
    assert found.replayed_s == pytest.approx(2.1)
    assert found.slowdown == pytest.approx(2.1 / 1.6)
    assert found.by_dp_rank == pytest.approx({"0": 2.1 / 1.6, "1": 1.0})


def test_the_verb_answers_and_refuses_with_exit_2(tmp_path: Path) -> None:
    good = _write(tmp_path / "t.csv", {}, {"start_ts": 1.0, "duration": 2.0})
    run = [sys.executable, "-c", "from simulator.cli import main; main()", "job"]
    assert (
        "slowdown S" in subprocess.run([*run, str(good)], capture_output=True, text=True, check=True).stdout
    )
    bad = subprocess.run([*run, str(tmp_path / "none.csv")], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
