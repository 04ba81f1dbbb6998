"""Operation tables of production jobs"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kineto_files import ELSEWHERE, REAL

from simulator.errors import SpecError
from simulator.formats.op_tables import COLUMNS, read_op_table
from simulator.report.job_report import draw, heat_map, report
from simulator.study.job import JobReport, study_job


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
    assert found.replayed_s == pytest.approx(found.traced_s) == pytest.approx(2.1)
    assert found.slowdown == pytest.approx(2.1 / 1.6)
    assert found.by_dp_rank == pytest.approx({"0": 2.1 / 1.6, "1": 1.0})


def test_the_verb_answers_and_refuses_with_exit_2(tmp_path: Path) -> None:
    good = _write(tmp_path / "t.csv", {}, {"start_ts": 1.0, "duration": 2.0})
    run = [sys.executable, "-c", "from simulator.cli import main; main()", "job"]
    assert (
        "Slowdown S" in subprocess.run([*run, str(good)], capture_output=True, text=True, check=True).stdout
    )
    bad = subprocess.run([*run, str(tmp_path / "none.csv")], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


Cost = Callable[[int, int, int, str], float]


def _job(
    path: Path, cost: Cost, dps: int = 3, stages: int = 3, batches: int = 4, virtual: int = 1
) -> JobReport:
    """Micro-batches one after the other through all chunks, forward then backward. `cost` gives seconds by
    dp rank, stage, micro-batch, and operation.
    """
    rows: list[dict[str, object]] = []
    counts: Counter[tuple[int, int, str]] = Counter()

    def add(dp: int, gmc: int, kind: str, start: float, end: float, mb: int = -1) -> None:
        stage = gmc % stages
        seq = counts[dp, stage, kind]
        counts[dp, stage, kind] += 1
        own = {
            "dp_rank": dp,
            "stage": stage,
            "rank": dp * stages + stage,
            "optype": kind,
            "seq_id": seq,
            "mb_id": mb,
        }
        chunk = {"mc": gmc // stages, "gmc": gmc} if mb >= 0 else {"mc": -1, "gmc": -1}
        rows.append(own | chunk | {"start_ts": start, "duration": end - start})

    clock = {(dp, stage): 0.0 for dp in range(dps) for stage in range(stages)}
    for dp in range(dps):
        chunks = range(stages * virtual)
        for kind, order in (("forward", chunks), ("backward", chunks[::-1])):
            for mb in range(batches):
                sent = 0.0
                for place, gmc in enumerate(order):
                    stage = gmc % stages
                    if place:
                        end = max(sent, clock[dp, stage]) + cost(dp, stage, mb, f"{kind}-pp-comm")
                        add(dp, gmc, f"{kind}-recv", clock[dp, stage], end)
                        add(dp, order[place - 1], f"{kind}-send", sent, end)
                        clock[dp, stage] = end
                    begin = clock[dp, stage]
                    sent = clock[dp, stage] = begin + cost(dp, stage, mb, f"{kind}-compute")
                    add(dp, gmc, f"{kind}-compute", begin, sent, mb)
    for stage in range(stages):
        last = max(clock[dp, stage] for dp in range(dps))
        for dp in range(dps):
            end = last + cost(dp, stage, 0, "grads-reduce-scatter")
            add(dp, stage, "grads-reduce-scatter", clock[dp, stage], end)
    return study_job(read_op_table(_write(path / "job.csv", *rows)))


def _usual(kind: str) -> float:
    return {"forward-compute": 0.1, "backward-compute": 0.2}.get(kind, 0.01)


def _slow_worker(dp: int, stage: int, mb: int, kind: str) -> float:
    return _usual(kind) * (2 if (dp, stage) == (1, 2) and kind.endswith("compute") else 1)


def _slow_stage(dp: int, stage: int, mb: int, kind: str) -> float:
    return _usual(kind) * (1.5 if stage == 2 and kind.endswith("compute") else 1)


def _slow_replica(dp: int, stage: int, mb: int, kind: str) -> float:
    return _usual(kind) * (1.5 if dp == 2 and kind.endswith("compute") else 1)


def _slow_transfer(dp: int, stage: int, mb: int, kind: str) -> float:
    return _usual(kind) + (0.5 if kind == "forward-pp-comm" and mb == 1 and stage == 1 else 0)


def _long_documents(dp: int, stage: int, mb: int, kind: str) -> float:
    return _usual(kind) * (1 + (7 * dp + 5 * mb) % 4 if kind.endswith("compute") else 1)


def _long_documents_and_last_stage(dp: int, stage: int, mb: int, kind: str) -> float:
    return _long_documents(dp, stage, mb, kind) * (1.3 if stage == 2 and kind.endswith("compute") else 1)


@pytest.mark.parametrize(
    ("cost", "sort", "says"),
    [
        (lambda dp, stage, mb, kind: _usual(kind), "none", "No straggler"),
        (_slow_worker, "worker", "dp rank 1, stage 2 (rank 5) computes 100% longer"),
        (_slow_stage, "stage", "stage 2 (the last: output layer and loss) computes 50% longer"),
        (_slow_replica, "dp rank", "dp rank 2 computes 50% longer"),
        (_slow_transfer, "communication", "forward-pp-comm"),
        (_long_documents_and_last_stage, "data", "Next: stages out of balance: stage 2"),
        (_long_documents, "data", "Sequence lengths"),
    ],
)
def test_what_was_planted_is_what_the_job_suffers_from(
    tmp_path: Path, cost: Cost, sort: str, says: str
) -> None:
    found = _job(tmp_path, cost)
    assert found.sort == sort
    assert says in found.finding
    assert found.replay_error < 1e-9


def test_the_planted_worker_is_the_hottest_and_worth_the_slowdown(tmp_path: Path) -> None:
    found = _job(tmp_path, _slow_worker)
    assert max(found.by_worker, key=lambda one: found.by_worker[one]) == "1,2"
    assert found.regained["worker"]["1,2"] > 0.9
    assert all(len(line) <= 80 for line in report(found).splitlines())
    assert ElementTree.fromstring(draw(found)).tag.endswith("svg")


def test_virtual_stages_are_chained_by_model_chunk(tmp_path: Path) -> None:
    found = _job(tmp_path, _slow_worker, virtual=2)
    assert found.replay_error < 1e-9
    assert found.sort == "worker"
    assert found.undelayed_s == pytest.approx(found.traced_s)


def test_a_heat_map_of_many_workers_fits_in_80_columns() -> None:
    lines = heat_map(
        {f"{dp},{stage}": 1 + (dp == 77) * (stage == 90) for dp in range(128) for stage in range(96)}
    )
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:1] == ["77"] and "@" in line for line in lines)


def test_an_unknown_type_and_a_send_without_its_compute_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'sleep': expected one of"):
        study_job(read_op_table(_write(tmp_path / "t.csv", {"optype": "sleep"})))
    with pytest.raises(SpecError, match="1 forward-send for 0 forward-compute"):
        study_job(read_op_table(_write(tmp_path / "t.csv", {"optype": "forward-send"})))


@pytest.mark.parametrize(
    ("job", "sort", "names"), [("ST", "stage", "stage 3"), ("AR", "worker", "dp rank 0, stage 0")]
)
def test_real_jobs_replay_and_decompose_as_the_study_found(job: str, sort: str, names: str) -> None:
    pytest.importorskip("pyarrow")
    folder = next((one for one in (REAL, ELSEWHERE) if one.is_dir()), None)
    if folder is None:
        pytest.skip("no production jobs at hand")
    found = study_job(read_op_table(folder / f"straggler-job-{job}.parquet"))
    theirs = json.loads((folder / f"straggler-job-{job}.result.json").read_text(encoding="utf-8"))
    assert found.replay_error < 0.02
    assert found.slowdown == pytest.approx(theirs["blocking_slowdown"], rel=1e-4)
    assert found.by_step == pytest.approx(theirs["blocking_step_slowdown"], rel=1e-4)
    for mine, name in ((found.by_stage, "stage"), (found.by_dp_rank, "dp_rank"), (found.by_optype, "optype")):
        assert mine == pytest.approx(theirs[f"blocking_decompose_by_{name}"], rel=1e-3)
        steps = found.per_step["type" if name == "optype" else name.replace("_", " ")]
        for step, parts in theirs[f"blocking_decompose_by_{name}_per_step"].items():
            assert steps[step] == pytest.approx(parts, rel=1e-3)
    assert found.sort == sort
    assert names in found.finding
