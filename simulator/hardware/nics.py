"""Network adapters: line rate, PCIe slot and latency, by name.

One TOML file a family of adapters in data/nics/; every figure has a source.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from simulator.errors import SpecError, nearest
from simulator.units import parse


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of a network adapter.

    `bandwidth_bytes_per_s`: line rate, one direction. `slot_bandwidth_bytes_per_s`: the port's share
    of its PCIe slot, one direction. `latency_s`: what the adapter adds to a message, one side.
    """

    name: str
    vendor: str
    kind: Literal["infiniband", "roce", "efa", "ethernet", "slingshot"]
    bandwidth_bytes_per_s: float
    slot_bandwidth_bytes_per_s: float
    latency_s: float
    sources: Mapping[str, str] = field(default_factory=dict)


@cache
def _catalogue() -> Mapping[str, Nic]:
    found: dict[str, Nic] = {}
    folder = files("simulator.hardware") / "data" / "nics"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".toml"):
            continue
        for name, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            found[name] = Nic(
                name=name,
                vendor=entry["vendor"],
                kind=entry["kind"],
                bandwidth_bytes_per_s=parse(entry["bandwidth"], "bytes_per_s"),
                slot_bandwidth_bytes_per_s=parse(entry["slot_bandwidth"], "bytes_per_s"),
                latency_s=parse(entry["latency"], "s"),
                sources=entry["sources"],
            )
    return found


def nics() -> tuple[str, ...]:
    """Names of all NICs of the catalogue."""
    return tuple(sorted(_catalogue()))


def nic(name: str) -> Nic:
    """The NIC of that name; SpecError with the nearest name if there is none."""
    catalogue = _catalogue()
    if name not in catalogue:
        raise SpecError.of("nic", f"'{name}': no such NIC{nearest(name, catalogue)}")
    return catalogue[name]
