"""`ibnetdiscover`: the switches and adapters of an InfiniBand fabric, port by port."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from simulator.errors import FileFormatError
from simulator.formats.topology_text import Imported, read_text

#: Gb/s of a lane by its speed's name
_LANE_GB_S: Final = {
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10.3,
    "FDR": 14.1,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}
_HEAD = re.compile(r'^(Switch|Ca)\s+\d+\s+"([^"]+)"\s+#\s+"([^"]*)"')
_PORT = re.compile(r'^\[(\d+)\](?:\([^)]*\))?\s+"([^"]+)"\[(\d+)\](?:\([^)]*\))?\s*#\s*(.*)$')
_WIDTH = re.compile(r"(\d+)x(\w+|\?+)")


def read_ibnetdiscover(path: Path, gpu: str = "h100-sxm") -> Imported:
    """The fabric as an explicit list, one GPU assumed behind each adapter. Raises FileFormatError."""
    names, kinds, ports = _read(path, read_text(path))
    guessed = [f"gpu: one {gpu} behind each adapter, on its host's NVSwitch"]
    nodes: list[dict[str, object]] = []
    edges: list[dict[str, object]] = []
    hosts: dict[str, list[str]] = {}
    for guid, kind in kinds.items():
        if kind == "Switch":
            nodes.append({"name": guid, "kind": "switch"})
            continue
        host, _, adapter = names[guid].partition(" ")
        host, adapter = host or guid, adapter.replace(" ", "-") or guid
        nic = f"{host}/{adapter}"
        names[guid] = nic
        member = f"{host}/gpu{len(hosts.setdefault(host, []))}"
        hosts[host].append(member)
        nodes += [{"name": nic, "kind": "nic"}, {"name": member, "kind": "gpu", "nic": nic}]
        edges.append({"from": member, "to": nic, "bandwidth": "63 GB/s"})
    for host, members in hosts.items():
        if len(members) > 1:
            nodes.append({"name": f"{host}/nvswitch", "kind": "nvswitch"})
            edges += [{"from": one, "to": f"{host}/nvswitch", "bandwidth": "450 GB/s"} for one in members]
    unknown = 0
    for (a, b), rates in _cables(ports).items():
        known = [rate for rate in rates if rate]
        unknown += len(rates) - len(known)
        ends = [guid if kinds.get(guid) == "Switch" else names[guid] for guid in (a, b)]
        total = sum(rate or (known[0] if known else 400.0) for rate in rates)
        edges.append({"from": ends[0], "to": ends[1], "bandwidth": f"{total:g} Gb/s"})
    if unknown:
        guessed.append(
            f"speed of {unknown} ports that the dump shows as ???: as their neighbours', or 400 Gb/s"
        )
    if not hosts:
        raise FileFormatError(f"{path}: no adapter (Ca): expected the output of ibnetdiscover")
    source = f"ibnetdiscover ({path.name})"
    return Imported(path.stem, "explicit", gpu, source, {"nodes": nodes, "edges": edges}, tuple(guessed))


def _read(
    path: Path, text: str
) -> tuple[dict[str, str], dict[str, str], list[tuple[str, str, float | None]]]:
    names: dict[str, str] = {}
    kinds: dict[str, str] = {}
    ports: list[tuple[str, str, float | None]] = []
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.match(line)
        if head:
            here = head[2]
            kinds[here], names[here] = head[1], head[3]
            continue
        port = _PORT.match(line)
        if port:
            if not here:
                raise FileFormatError(f"{path}:{number}: a port before any switch or adapter: cut off?")
            ports.append((here, port[2], _rate(port[4])))
        elif line.startswith("["):
            raise FileFormatError(f"{path}:{number}: not a port: {line[:60]!r}: cut off?")
    if not kinds:
        raise FileFormatError(f"{path}: no switch and no adapter: expected the output of ibnetdiscover")
    lost = {peer for _, peer, _ in ports} - set(kinds)
    if lost:
        raise FileFormatError(
            f"{path}: ports lead to {', '.join(sorted(lost)[:3])}, which the dump lacks: cut off?"
        )
    return names, kinds, ports


def _rate(about: str) -> float | None:
    found = _WIDTH.search(about)
    if not found or found[2] not in _LANE_GB_S:
        return None
    return int(found[1]) * _LANE_GB_S[found[2]]


def _cables(ports: list[tuple[str, str, float | None]]) -> dict[tuple[str, str], list[float | None]]:
    """Rates of the cables between each pair; a cable shows at both of its ends."""
    seen: dict[tuple[str, str], list[float | None]] = {}
    for a, b, rate in ports:
        seen.setdefault((a, b), []).append(rate)
    cables: dict[tuple[str, str], list[float | None]] = {}
    for (a, b), rates in seen.items():
        if (b, a) not in cables:
            other = seen.get((b, a), [])
            cables[a, b] = rates if len(rates) >= len(other) else other
    return cables
