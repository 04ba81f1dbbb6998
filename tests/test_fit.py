"""What a scenario that does not fit should change: each change is true, helps, and has its price."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small import scenario

from simulator import load, simulate
from simulator.cli import main
from simulator.errors import SpecError
from simulator.study.fit import Change, fit
from simulator.study.memory import memory_by_stage

#: too much for 40 GB as it is
TIGHT: dict[str, Any] = {
    "name": "tight",
    "model": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 50304},
    "cluster": {"topology": "dgx-a100", "gpus": 8, "gpu": "a100-sxm-40g"},
    "batch": {"sequence_length": 2048, "micro_batch": 8, "global_batch": 128},
    "run": {"steps": 1, "warmup": 0},
}


def _again(change: Change) -> dict[str, Any]:
    return {path: str(value) for path, value in change.settings.items()}


def test_every_change_that_fits_has_the_memory_and_the_time_that_it_says() -> None:
    found = fit(load(TIGHT))
    assert not found.fits
    good = [change for change in found.changes if change.fits]
    assert good
    for change in good:
        changed = load(TIGHT, _again(change))
        assert max(s.peak_bytes for s in memory_by_stage(changed)) == change.peak_bytes
        assert change.peak_bytes < found.memory.peak_bytes
    times = [change.step_time_s or 0.0 for change in good]
    assert times == sorted(times)
    assert simulate(load(TIGHT, _again(good[0]))).step_time_s == pytest.approx(times[0])


def test_a_smaller_micro_batch_beats_recomputing_until_its_kernels_are_too_small() -> None:
    found = fit(load(TIGHT, {"parallelism.sharding": "zero-1"})).micro_batches
    assert [change.settings["batch.micro_batch"] for change in found] == [1, 2, 4, 8, 16]
    modes = [change.settings["recompute"] for change in found]
    assert modes == sorted(modes, key=["none", "selective", "full"].index)
    assert (modes[0], modes[-1]) == ("none", "full")
    best = min(found, key=lambda change: change.step_time_s or 0.0)
    assert best.settings["recompute"] == "none"
    assert best.settings["batch.micro_batch"] != 1


def test_changes_are_combined_where_none_is_enough() -> None:
    found = fit(load(TIGHT, {"batch.sequence_length": "16384", "batch.micro_batch": "4"}), run=False)
    enough = [change for change in found.changes if change.fits]
    assert enough
    assert all(len({path.partition(".")[2] for path in change.settings}) > 1 for change in enough)


def test_out_of_memory_names_changes_that_fit() -> None:
    with pytest.raises(SpecError) as refused:
        simulate(TIGHT)
    first = str(refused.value).partition("what would fit: ")[2].partition(", or ")[0]
    changes = dict(one.split("=") for one in first.split())
    assert simulate(load(TIGHT, changes)).memory.fits  # type: ignore[union-attr]


def test_the_verb_prints_margin_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as code:
        main(["memory", "gpt2-xl-ddp", "--no-run", "--json"])
    assert not code.value.code
    about = json.loads(capsys.readouterr().out)
    assert about["fits"]
    assert about["margin_bytes"] == pytest.approx(about["capacity_bytes"] - about["peak_bytes"])
    assert {"recompute": "full"} in [change["settings"] for change in about["changes"]]
    with pytest.raises(SystemExit):
        main(["memory", "gpt2-xl-ddp", "--no-run"])
    out = capsys.readouterr().out
    assert "margin" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_list_of_layers_is_not_told_to_recompute() -> None:
    made = scenario(
        model={"layers": [{"name": "all", "parameters": 1_000_000, "activation_bytes": 1e9}]},
        batch={"micro_batch": 4, "global_batch": 128},
    )
    found = fit(made, run=False)
    assert not found.micro_batches
    assert not any("recompute" in change.settings for change in found.changes)
