"""The catalogue of accelerators: whole, sourced, dense."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

import pytest

from simulator.errors import SpecError
from simulator.hardware import gpu, gpus
from simulator.hardware.gpus import architectures

NOT_FIGURES = {"vendor", "architecture", "sources", "constants"}
ASKED_FOR = {
    *("v100-sxm", "a100-sxm", "a100-sxm-40g", "a100-pcie", "a40", "h100-sxm", "h100-pcie", "h100-nvl"),
    *("h200-sxm", "h800-sxm", "h20", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm-96g-500w"),
    *("mi250x", "mi300x", "tpu-v4", "tpu-v5p", "trainium2"),
}


def entry(name: str) -> dict[str, object]:
    path = files("simulator.hardware") / "data" / "gpus" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def unsourced(entry: dict[str, object]) -> set[str]:
    figures = set(entry) - NOT_FIGURES | set(entry.get("constants", {}))
    return {figure for figure in figures if not str(entry.get("sources", {}).get(figure, "")).strip()}


def test_the_catalogue_holds_the_accelerators_people_train_on() -> None:
    assert set(gpus()) >= ASKED_FOR


@pytest.mark.parametrize("name", gpus())
def test_every_figure_has_a_source(name: str) -> None:
    assert not unsourced(entry(name))
    assert re.search(r"20\d\d", entry(name)["sources"]["price"]), "a price has a date"


def test_an_entry_without_a_source_is_noticed() -> None:
    bare = entry("h100-sxm")
    del bare["sources"]["l2"]
    assert unsourced(bare) == {"l2"}


@pytest.mark.parametrize("name", sorted(architectures()))
def test_constants_of_an_architecture_say_where_they_come_from(name: str) -> None:
    assert architectures()[name]["source"].strip()


@pytest.mark.parametrize("name", gpus())
def test_narrower_types_are_never_slower_and_clocks_never_rise_under_load(name: str) -> None:
    found = gpu(name)
    peaks = [found.peak_flops_per_s[p] for p in ("fp32", "bf16", "fp8", "fp4") if p in found.peak_flops_per_s]
    assert peaks == sorted(peaks)
    assert 0.5 <= found.constants["sustained_clock"] <= 1.0


def test_peaks_are_dense() -> None:
    """NVIDIA's data sheets print twice as much, with sparsity."""
    assert gpu("h100-sxm").peak_flops_per_s["bf16"] == pytest.approx(989.4e12)
    assert gpu("a100-sxm").peak_flops_per_s["bf16"] == pytest.approx(312e12)
    assert gpu("b200-sxm").peak_flops_per_s["bf16"] == pytest.approx(2250e12)


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="h100-sxm"):
        gpu("h100-smx")
