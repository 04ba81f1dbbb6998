"""The cluster of a scenario: topology and GPUs, by name, by path or inline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import Finding, ScenarioError, SpecError, nearest
from simulator.hardware import gpu as find_gpu
from simulator.scenario.bundled import bundled, topologies
from simulator.scenario.source import read
from simulator.spec import Gpu, Topology
from simulator.units import UnitError, parse

_TOPOLOGY: Final = ("name", "family", "gpu", "source", "parameters")

#: figure of a GPU in a scenario -> (field, dimension)
FIGURES: Final = {
    "memory": ("memory_bytes", "bytes"),
    "memory_bandwidth": ("memory_bandwidth_bytes_per_s", "bytes_per_s"),
    "nvlink_bandwidth": ("nvlink_bandwidth_bytes_per_s", "bytes_per_s"),
    "pcie_bandwidth": ("pcie_bandwidth_bytes_per_s", "bytes_per_s"),
    "clock": ("clock_hz", "hertz"),
    "l2": ("l2_bytes", "bytes"),
    "power": ("power_w", "watt"),
    "price": ("price_usd_per_hour", "usd_per_hour"),
}


def load_topology(name: str | Path) -> Topology:
    """A topology by its bundled name or the path of its file. Raises ScenarioError."""
    path = Path(name)
    if str(name) in topologies():
        path = bundled("topologies") / f"{name}.yaml"
    elif path.suffix not in (".yaml", ".yml") and not path.exists():
        message = f"'{name}': no such topology{nearest(str(name), topologies())}"
        raise ScenarioError(Finding("cluster.topology", message))
    source = read(path)
    try:
        return topology_of(source.values, default_name=path.stem)
    except SpecError as error:
        raise source.refuse(error.findings) from error


def topology_of(values: Mapping[str, Any], default_name: str = "inline") -> Topology:
    """A topology from its fields. Raises SpecError with paths below the topology."""
    findings = [
        Finding(str(key), f"unknown key{nearest(str(key), _TOPOLOGY)}")
        for key in values
        if key not in _TOPOLOGY
    ]
    for key in ("name", "family", "gpu", "source"):
        if key in values and not isinstance(values[key], str):
            findings.append(Finding(key, f"{values[key]!r}: expected text"))
    if "family" not in values:
        findings.append(Finding("family", "missing"))
    parameters = values.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        findings.append(Finding("parameters", "expected fields (name: value)"))
    if findings:
        raise SpecError(findings)
    return Topology(
        name=values.get("name", default_name),
        family=values["family"],
        parameters={str(key): _frozen(value) for key, value in parameters.items()},
        gpu=values.get("gpu", ""),
        source=values.get("source", ""),
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    if isinstance(value, Mapping):
        return {str(key): _frozen(one) for key, one in value.items()}
    return value


def gpu_of(value: str | Mapping[str, Any]) -> Gpu:
    """A GPU by name, or by name with figures that differ. Raises SpecError, paths below the GPU."""
    if isinstance(value, str):
        return _named(value, "")
    findings = []
    name = value.get("name")
    if not isinstance(name, str):
        raise SpecError.of("name", "missing: the GPU that the figures differ from")
    found = _named(name, "name")
    changes: dict[str, Any] = {}
    for key, figure in value.items():
        try:
            if key == "name":
                continue
            if key == "peak":
                changes["peak_flops_per_s"] = _peaks(found, figure)
            elif key in FIGURES:
                field, dimension = FIGURES[key]
                changes[field] = _positive(parse(figure, dimension), figure)
            elif key == "sms":
                if isinstance(figure, bool) or not isinstance(figure, int) or figure < 1:
                    raise UnitError(f"{figure!r}: expected a whole number of 1 or more")
                changes["sms"] = figure
            else:
                findings.append(
                    Finding(str(key), f"unknown key{nearest(str(key), (*FIGURES, 'peak', 'sms'))}")
                )
        except UnitError as error:
            findings.append(Finding(str(key), str(error)))
    if findings:
        raise SpecError(findings)
    assert all(key in {field.name for field in fields(Gpu)} for key in changes)
    return replace(found, name=f"{name} (changed)" if changes else name, **changes)


def _named(name: str, path: str) -> Gpu:
    try:
        return find_gpu(name)
    except SpecError as error:
        raise SpecError.of(path, error.findings[0].message) from error


def _peaks(gpu: Gpu, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise UnitError(f"{value!r}: expected precisions with their peaks (bf16: 989 TFLOP/s)")
    peaks = dict(gpu.peak_flops_per_s)
    for precision, text in value.items():
        if precision not in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4"):
            raise UnitError(f"'{precision}': no such precision")
        peaks[str(precision)] = _positive(parse(text, "flops_per_s"), text)
    return peaks


def _positive(value: float, text: object) -> float:
    if value <= 0:
        raise UnitError(f"{text!r}: expected more than 0")
    return value
