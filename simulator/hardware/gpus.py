"""The catalogue of accelerators: one TOML file each in data/gpus/, every figure with its source.

Constants of kernels belong to an architecture (data/architectures.toml); a GPU's file may override one.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

from simulator.errors import SpecError, nearest
from simulator.spec import Gpu
from simulator.units import parse

_DATA: Final = files("simulator.hardware") / "data"

#: field of the file -> (field of Gpu, dimension)
_QUANTITIES: Final = {
    "memory": ("memory_bytes", "bytes"),
    "memory_bandwidth": ("memory_bandwidth_bytes_per_s", "bytes_per_s"),
    "clock": ("clock_hz", "hertz"),
    "nvlink_bandwidth": ("nvlink_bandwidth_bytes_per_s", "bytes_per_s"),
    "pcie_bandwidth": ("pcie_bandwidth_bytes_per_s", "bytes_per_s"),
    "l2": ("l2_bytes", "bytes"),
    "power": ("power_w", "watt"),
    "price": ("price_usd_per_hour", "usd_per_hour"),
    "vector_flops": ("vector_flops_per_s", "flops_per_s"),
}


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Constants of each architecture, with `source`."""
    return tomllib.loads((_DATA / "architectures.toml").read_text(encoding="utf-8"))


@cache
def gpus() -> tuple[str, ...]:
    """Names of all accelerators of the catalogue."""
    folder = _DATA / "gpus"
    return tuple(
        sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    )


@cache
def gpu(name: str) -> Gpu:
    """The accelerator of that name; SpecError with the nearest name if there is none."""
    if name not in gpus():
        raise SpecError.of("gpu", f"'{name}': no such GPU{nearest(name, gpus())}")
    entry = tomllib.loads((_DATA / "gpus" / f"{name}.toml").read_text(encoding="utf-8"))
    quantities = {field: parse(entry[key], dimension) for key, (field, dimension) in _QUANTITIES.items()}
    peaks = {precision: parse(text, "flops_per_s") for precision, text in entry["peak_flops"].items()}
    known = architectures()[entry["architecture"]]
    constants = {
        key: float(value)
        for key, value in {**known, **entry.get("constants", {})}.items()
        if isinstance(value, int | float)
    }
    return Gpu(
        name=name,
        peak_flops_per_s=_all_peaks(peaks),
        sms=entry["sms"],
        vendor=entry["vendor"],
        constants=constants,
        sources={**entry["sources"], "constants": known["source"]},
        **quantities,
    )


def _all_peaks(peaks: dict[str, float]) -> dict[str, float]:
    """A precision that the tensor cores lack runs at the next wider one's peak."""
    result = dict(peaks)
    result.setdefault("fp16", result.get("bf16", result["fp32"]))
    result.setdefault("bf16", result["fp32"] if "tf32" not in result else result["fp16"])
    result.setdefault("tf32", result["fp32"])
    return result
