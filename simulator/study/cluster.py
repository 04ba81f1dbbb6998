"""What a cluster's network is worth: layers, bisection, ports, busbw of the groups that training uses."""

from __future__ import annotations

from typing import Any, Final

from simulator.errors import SpecError
from simulator.hardware import gpu as find_gpu
from simulator.network import fabric as fabrics
from simulator.network.activity import BUS_FACTORS
from simulator.network.collectives import plan
from simulator.network.fabric import Fabric
from simulator.scenario import load_topology
from simulator.spec import Gpu

SIZES: Final = {"1 MiB": 2.0**20, "64 MiB": 2.0**26, "1 GiB": 2.0**30}


def fabric_of(name: str, gpus: int | None) -> tuple[Fabric, Gpu]:
    """A bundled or given topology, built. Raises SpecError for what cannot be."""
    topology = load_topology(name)
    gpu = find_gpu(topology.gpu)
    count = _default_gpus(topology.parameters) if gpus is None else gpus
    return fabrics.build(topology, count, gpu), gpu


def describe(name: str, gpus: int | None) -> dict[str, Any]:
    """Plain figures for a table or JSON. Raises SpecError for what cannot be built."""
    fabric, gpu = fabric_of(name, gpus)
    layers = [
        {
            "name": layer.name,
            "switches": layer.switches,
            "ports_down": layer.down_ports,
            "ports_up": layer.up_ports,
            "oversubscription": layer.oversubscription,
        }
        for layer in fabric.layers
    ]
    ports = sum(layer.switches * (layer.down_ports + layer.up_ports) for layer in fabric.layers)
    cables = sum(layer.switches * layer.up_ports for layer in fabric.layers)
    return {
        "name": fabric.name,
        "family": fabric.family,
        "gpu": gpu.name,
        "gpus": fabric.n_gpus,
        "nodes": fabric.n_nodes,
        "layers": layers,
        "bisection_bytes_per_s": fabric.bisection_bytes_per_s,
        "switch_ports": ports,
        "optics": 2 * cables,  # a module at each end of a cable between switches; nodes use copper
        "sizes": list(SIZES),
        "busbw": _busbw(fabric),
    }


def _default_gpus(parameters: Any) -> int:
    nodes = parameters.get("nodes")
    if isinstance(nodes, tuple):
        return sum(isinstance(one, dict) and one.get("kind") == "gpu" for one in nodes)
    return 32 * int(parameters.get("gpus_per_node", 8))


def _busbw(fabric: Fabric) -> list[dict[str, Any]]:
    node = [gpu for gpu in range(fabric.n_gpus) if fabric.node_of[gpu] == fabric.node_of[0]]
    rail = [gpu for gpu in range(fabric.n_gpus) if fabric.local_rank[gpu] == 0]
    groups = {"one node": node, "one rail": rail, "all GPUs": list(range(fabric.n_gpus))}
    rows = []
    for name, members in groups.items():
        if len(members) < 2:
            continue
        try:
            times = [
                plan(fabric, "all-reduce", members, size).alone_s(fabric.capacity_bytes_per_s)
                for size in SIZES.values()
            ]
        except SpecError:
            continue
        factor = BUS_FACTORS["all-reduce"](len(members))
        speeds = [size / time * factor for size, time in zip(SIZES.values(), times, strict=True)]
        rows.append({"group": f"{name} ({len(members):,})", "bytes_per_s": speeds})
    return rows
