"""Saved timelines: what is read back is what was saved, and what is no timeline is refused."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from small import scenario
from test_cli import call
from test_perfetto import training

from simulator import simulate
from simulator.analysis.result import lane_peaks
from simulator.analysis.waterfall import ledger, waterfall, weights
from simulator.errors import FileFormatError
from simulator.report.store import Saved, load, save
from simulator.timeline import Timeline


def written(timeline: Timeline) -> bytes:
    stream = io.BytesIO()
    peaks = np.full(len(timeline.ranks), 1e14)
    save(Saved(timeline, peaks, 1, {"mfu": 0.5}), stream)
    return stream.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.npz"
    path.write_bytes(written(training()))
    return path


def test_what_is_read_is_what_was_saved(file: Path) -> None:
    before, saved = training(), load(file)
    after = saved.timeline
    for table in ("device", "host", "collectives", "loader"):
        for column in fields(getattr(before, table)):
            one, other = (getattr(getattr(each, table), column.name) for each in (before, after))
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    np.testing.assert_array_equal(before.steps, after.steps)
    assert (before.ranks, before.streams, before.names) == (after.ranks, after.streams, after.names)
    assert list(before.links) == list(after.links)
    for name, pair in before.links.items():
        np.testing.assert_array_equal(pair, after.links[name])
    assert (saved.warmup, saved.result) == (1, {"mfu": 0.5})


def test_the_same_timeline_is_the_same_bytes() -> None:
    assert written(training()) == written(training())


@pytest.mark.parametrize("engine", ["events", "lanes"])
def test_a_saved_run_has_the_waterfall_of_the_run(tmp_path: Path, engine: str) -> None:
    loaded = scenario(run__engine=engine)
    result = simulate(loaded, allow_oom=True)
    path = tmp_path / "run.npz"
    peaks = lane_peaks(loaded, result.timeline)
    with path.open("wb") as stream:
        save(Saved(result.timeline, peaks, loaded.run.warmup, result.to_dict()), stream)
    saved = load(path)
    weight = weights(saved.timeline, saved.peak_flops_per_s)
    again = waterfall(
        ledger(saved.timeline, saved.peak_flops_per_s), weight, saved.warmup, result.step_time_s
    )
    assert again == result.waterfall
    assert saved.result == json.loads(json.dumps(result.to_dict()))


@pytest.mark.parametrize("keep", [0, 3, 100, -100, -1])
def test_a_part_of_a_file_is_refused(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"run\.npz"):
        load(file)


@pytest.mark.parametrize("place", range(30, 3000, 130))
def test_damage_is_never_another_error(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0xFF
    file.write_bytes(data)
    with contextlib.suppress(FileFormatError):
        load(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    text, other, array = tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.npz"
    text.write_text("{}", encoding="utf-8")
    np.savez(other, something=np.zeros(3))
    with array.open("wb") as stream:
        np.save(stream, np.zeros(3))
    for path in (text, other, array, tmp_path, tmp_path / "missing.npz"):
        with pytest.raises(FileFormatError, match=str(path)):
            load(path)


def changed(file: Path, **arrays: np.ndarray) -> Path:
    with np.load(file) as before:
        np.savez(file, **{**{name: before[name] for name in before.files}, **arrays})
    return file


def test_a_later_version_is_refused_by_its_number(file: Path) -> None:
    with np.load(file) as arrays:
        head = json.loads(arrays["head"].tobytes())
    text = json.dumps({**head, "version": 99}).encode()
    with pytest.raises(FileFormatError, match="version 99"):
        load(changed(file, head=np.frombuffer(text, dtype=np.uint8)))


def test_rows_that_point_nowhere_are_refused(file: Path) -> None:
    ranks = training().device.rank.copy()
    ranks[0] = 99
    with pytest.raises(FileFormatError, match=r"device\.rank"):
        load(changed(file, **{"device.rank": ranks}))


def test_columns_of_different_lengths_are_refused(file: Path) -> None:
    with pytest.raises(FileFormatError, match="differ in length"):
        load(changed(file, **{"host.start_s": np.zeros(1)}))


def test_simulate_saves_a_timeline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    code, out, _ = call(capsys, "simulate", "slow-node", "--save", str(path), "--json")
    assert code == 0
    assert load(path).result == json.loads(out)
    assert [one.name for one in tmp_path.iterdir()] == ["run.npz"]
    assert call(capsys, "simulate", "slow-node", "--save", str(tmp_path / "no" / "run.npz"))[0] == 2
