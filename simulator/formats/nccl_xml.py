"""NCCL's topology dump (NCCL_TOPO_DUMP_FILE): the XML of one machine."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from simulator.errors import FileFormatError
from simulator.formats.topology_text import Imported, read_text

#: GB/s of one NVLink by compute capability, as NCCL takes it (NVIDIA/nccl, src/graph/topo.h)
_LINK_GB_S: Final = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
_GPU: Final = {70: "v100-sxm", 80: "a100-sxm", 86: "a40", 90: "h100-sxm", 100: "b200-sxm"}
_NVSWITCH: Final = "0x068000"


def read_nccl_xml(path: Path) -> Imported:
    """The machine as a node of a rail-optimised cluster. Raises FileFormatError."""
    text = read_text(path)
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise FileFormatError(f"{path}: entities and document types are no part of NCCL's dumps")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        line, column = error.position
        raise FileFormatError(
            f"{path}:{line}:{column + 1}: not XML: {error.msg.partition(':')[0]}"
        ) from error
    if root.tag != "system":
        raise FileFormatError(f"{path}: <{root.tag}>: expected <system>, as NCCL writes it")
    gpus = root.findall(".//gpu")
    if not gpus:
        raise FileFormatError(f"{path}: no <gpu>: expected NCCL's topology dump")
    nets = root.findall(".//net")
    order = sorted(gpus, key=lambda gpu: int(gpu.get("dev", "0")))
    sm = int(order[0].get("sm", "80"))
    kind, links = _nvlink(order)
    guessed = [] if sm in _GPU else [f"gpu: none known with sm {sm}, a100-sxm assumed"]
    parameters: dict[str, object] = {"gpus_per_node": len(order), "nvlink": kind, "nics": len(nets)}
    if kind == "switch":
        rate = _LINK_GB_S.get(sm, 20.0)
        parameters["nvlink_bandwidth"] = f"{links * rate * 1.25:g} GB/s"
        guessed.append(
            "nvlink_bandwidth: NCCL's figure a link is what it reaches; 1.25 times that is the line rate"
        )
    if nets:
        speed = max(float(net.get("speed", "0")) for net in nets)
        if speed <= 0:
            speed = 200000.0
            guessed.append("nic_bandwidth: no speed in the dump, 200 Gb/s assumed")
        parameters["nic_bandwidth"] = f"{speed / 1000:g} Gb/s"
        parameters["nic_affinity"] = _affinity(root, order, nets)
    parameters["sockets"] = max(1, len(root.findall("cpu")))
    source = f"NCCL topology dump ({path.name})"
    return Imported(path.stem, "rail-optimised", _GPU.get(sm, "a100-sxm"), source, parameters, tuple(guessed))


def _nvlink(gpus: list[ET.Element]) -> tuple[str, int]:
    found = [gpu.findall("nvlink") for gpu in gpus]
    if not any(found):
        return "none", 0
    most = max(sum(int(link.get("count", "1")) for link in links) for links in found)
    if any(link.get("tclass") == _NVSWITCH for links in found for link in links):
        return "switch", most
    peers = max(len(links) for links in found)
    return ("pairs" if peers == 1 else "mesh"), most


def _affinity(root: ET.Element, gpus: list[ET.Element], nets: list[ET.Element]) -> list[int]:
    """NIC of each GPU: the one with which it shares most of its way from the root, in turn among equals."""
    parent = {child: node for node in root.iter() for child in node}

    def way(element: ET.Element) -> list[ET.Element]:
        found = [element]
        while found[-1] in parent:
            found.append(parent[found[-1]])
        return found[::-1]

    ways = [way(net) for net in nets]
    taken = [0] * len(nets)
    result = []
    for gpu in gpus:
        mine = way(gpu)
        shared = [sum(a is b for a, b in zip(mine, other, strict=False)) for other in ways]
        best = min(range(len(nets)), key=lambda i: (-shared[i], taken[i], i))
        taken[best] += 1
        result.append(best)
    return result
