"""Scenario files: what is read, and how what is wrong is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from small import BASE, values

from simulator import load
from simulator.errors import ScenarioError, TrainsimError
from simulator.scenario import bundled, scenarios, topologies

GOOD = (bundled("scenarios") / "gpt2-xl-ddp.yaml").read_text(encoding="utf-8")


def refused(tmp_path: Path, text: str | bytes) -> list[str]:
    """The lines of the refusal of a file."""
    file = tmp_path / "run.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScenarioError) as caught:
        load(str(file))
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", scenarios())
def test_every_bundled_scenario_loads(name: str) -> None:
    assert load(name).name


def test_topologies_are_bundled() -> None:
    assert {"dgx-a100", "dgx-h100", "leaf-spine-4to1", "two-nodes-explicit"} <= set(topologies())


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
name: x
model: gpt2-xll
cluster: {topology: dgx-a100, gpus: 128, gpuu: 3}
batch: {sequence_length: 1024, micro_batch: "8", global_batch: 1000}
parallelism:
  virtual_stagse: 3
overlap: {bucket_size: 25}
faults:
  - {kind: slow-comput, node: 3}
"""
    lines = refused(tmp_path, text)
    assert [line.split(":")[1] for line in lines] == ["3", "4", "6", "7", "9"]
    assert any("did you mean 'virtual_stages'?" in line for line in lines)
    assert any("did you mean 'slow-compute'?" in line for line in lines)


BAD = {
    "an empty file": ("", "empty"),
    "a list": ("- a\n- b\n", "expected fields"),
    "no YAML": ("model: [gpt2\n", "not YAML"),
    "a key twice": (GOOD + "\nmodel: gpt2\n", "not YAML"),
    "not UTF-8": (b"\xff\xfe\x00", "UTF-8"),
    "an unknown model": (GOOD.replace("model: gpt2-xl", "model: gpt2-xxl"), "did you mean 'gpt2-xl'"),
    "an unknown topology": (GOOD.replace("dgx-a100", "dgx-a1000"), "did you mean 'dgx-a100'"),
    "NaN": (GOOD.replace("cv: 0.1", "cv: .nan"), "cv"),
    "infinity": (GOOD.replace("cv: 0.1", "cv: .inf"), "cv"),
    "a negative time": (GOOD.replace("mean: 120 ms", "mean: -120 ms"), "0 or more"),
    "a time without a unit": (GOOD.replace("mean: 120 ms", "mean: 120"), "no unit"),
    "bits for bytes of nothing": (GOOD.replace("100 MiB", "100 Mx"), "Mx"),
    "a mesh that does not multiply": (GOOD + "\nparallelism: {tp: 2, dp: 128}\n", "expected cluster.gpus"),
    "layers that do not split": (GOOD + "\nparallelism: {pp: 32}\n", "layers_per_stage"),
    "stages that do not add up": (
        GOOD + "\nparallelism: {pp: 2, layers_per_stage: [20, 20]}\n",
        "add up to 48",
    ),
    "a batch that does not divide": (GOOD.replace("global_batch: 1024", "global_batch: 1000"), "multiple of"),
    "heads that do not divide": (GOOD + "\nparallelism: {tp: 8}\n", "does not divide"),
    "experts that are not there": (GOOD + "\nparallelism: {ep: 2}\n", "no experts"),
    "a rank that is not there": (
        GOOD + "\nfaults: [{kind: slow-compute, rank: 128, factor: 0.5}]\n",
        "0 to 127",
    ),
    "a fault without a size": (GOOD + "\nfaults: [{kind: slow-compute, rank: 1}]\n", "factor"),
    "two places": (
        GOOD + "\nfaults: [{kind: slow-compute, rank: 1, node: 2, factor: 0.5}]\n",
        "one way to say where",
    ),
    "a window that ends before it starts": (
        GOOD + "\nfaults: [{kind: slow-compute, rank: 1, factor: 0.5, from_step: 4, to_step: 2}]\n",
        "more than from_step",
    ),
    "too few steps": (GOOD.replace("steps: 10, warmup: 2", "steps: 2, warmup: 2"), "fewer than steps"),
    "a sequence longer than positions": (
        GOOD.replace("sequence_length: 1024", "sequence_length: 2048"),
        "positions",
    ),
    "an unknown schedule": (GOOD + "\nparallelism: {schedule: 1f1bb}\n", "did you mean '1f1b'"),
    "an unknown sharding": (GOOD + "\nparallelism: {sharding: zero-4}\n", "zero-"),
    "a precision that the GPU lacks": (GOOD.replace("precision: bf16", "precision: fp8"), "no fp8 units"),
    "micro-batches for interleaving": (
        GOOD.replace("micro_batch: 8, global_batch: 1024", "micro_batch: 8, global_batch: 1536")
        + "\nparallelism: {pp: 2, schedule: interleaved-1f1b, virtual_stages: 2, dp: 64}\n",
        "multiple of pp",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_with_file_and_line(tmp_path: Path, what: str) -> None:
    text, expected = BAD[what]
    lines = refused(tmp_path, text)
    assert any(expected in line for line in lines), lines
    assert all("run.yaml" in line for line in lines), lines


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    assert any("values" in line for line in refused(tmp_path, bomb))


def test_a_file_within_itself_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "model: &a {b: *a}\n")


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    lines = refused(tmp_path, "# " + "x" * 100_000_000)
    assert any("at most" in line for line in lines)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none.yaml"), "gpt2-xl-dpp"):
        with pytest.raises(ScenarioError):
            load(name)


def test_overrides_set_fields_and_name_themselves_when_wrong() -> None:
    assert load(BASE, {"parallelism.tp": "2", "batch.global_batch": 128}).parallelism.tp == 2
    with pytest.raises(ScenarioError, match="--set"):
        load(BASE, {"parallelism.tp": "two"})
    with pytest.raises(ScenarioError, match="no such entry"):
        load(BASE, {"faults[3].node": 1})


def test_figures_of_a_gpu_can_be_changed() -> None:
    scenario = load(
        values(cluster__gpu={"name": "a100-sxm", "memory": "40 GB", "peak": {"bf16": "200 TFLOP/s"}})
    )
    assert scenario.cluster.gpu.memory_bytes == 40e9
    assert scenario.cluster.gpu.peak_flops_per_s["bf16"] == 200e12


def test_a_rank_map_must_be_a_permutation() -> None:
    with pytest.raises(ScenarioError, match="once"):
        load(values(parallelism={"rank_map": [0] * 32}))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "degraded-link", "link": "spine99/*", "factor": 0.5}, "no link"),
        ({"kind": "slow-compute", "node": 77, "factor": 0.5}, "0 to 3"),
        ({"kind": "slow-nic", "nic": "77:0", "factor": 0.5}, "77"),
    ],
)
def test_a_place_that_the_cluster_lacks_names_the_fault(fault: dict[str, Any], expected: str) -> None:
    from small import setting

    with pytest.raises(TrainsimError, match=r"faults\[0\]") as caught:
        setting(faults=[fault])
    assert expected in str(caught.value)


# ------------------------------------------------------------------------------------------- mutations

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "25 MiB", "-3 ms", "fast", "gpt2", "1e400 s", "400 Gb/s", "random", "fsdp", "zb-v"]),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
)

FULL: dict[str, Any] = {
    **values(
        dataloader={"workers": 2, "load_time": {"distribution": "gamma", "mean": "10 ms", "cv": 0.2}},
        parallelism={"tp": 2, "pp": 2, "schedule": "1f1b", "sharding": "zero-1"},
        faults=[{"kind": "host-stall", "rank": 3, "duration": "40 ms", "at_step": 1}],
        checkpoint={"every_steps": 2, "duration": "1 s"},
        software={"framework": "pytorch", "log_every": 1},
    ),
    "recompute": "none",
    "overlap": {"bucket_size": "25 MiB"},
    "precision": "bf16",
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    """FULL with one to three places changed, dropped or added to."""
    result = copy.deepcopy(FULL)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(result)))
        here: Any = result
        for part in path[:-1]:
            here = here[part]
        action = draw(st.sampled_from(["change", "drop", "add"]))
        if action == "change":
            here[path[-1]] = draw(JUNK)
        elif action == "drop":
            del here[path[-1]]
        elif isinstance(here, dict):
            here[draw(st.text(max_size=6))] = draw(JUNK)
        if not result or not places(result):
            break
    return result


@settings(max_examples=2000)
@given(mutations())
def test_a_mutated_scenario_is_refused_with_file_and_line_or_loads(
    tmp_path_factory: pytest.TempPathFactory, mutated: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "mutated.yaml"
    with file.open("w", encoding="utf-8") as stream:
        YAML(typ="safe", pure=True).dump(mutated, stream)
    try:
        load(str(file))
    except TrainsimError as error:
        for line in str(error).splitlines():
            assert "mutated.yaml" in line or ".yaml" in line, line
