"""The lists of an explicit fabric: vertices and edges as a topology file gives them, ranges counted out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any, Final

from simulator.errors import Finding, SpecError, nearest
from simulator.units import UnitError, parse

KINDS: Final = ("gpu", "nic", "switch", "cpu", "nvswitch", "pcie")
_VERTEX: Final = ("name", "kind", "node", "nic", "bandwidth")
_EDGE: Final = ("from", "to", "bandwidth", "latency", "count", "one_way", "tier")
_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True, slots=True)
class Vertex:
    """`node`: the machine that it is in, "" for a switch outside; `nics`: NICs of a GPU by name."""

    name: str
    kind: str
    node: str = ""
    nics: tuple[str, ...] = ()
    bandwidth_bytes_per_s: float = 0.0

    def under(self, prefix: str) -> Vertex:
        """The vertex in a copy of its node."""
        return replace(
            self,
            name=f"{prefix}/{self.name}",
            node=prefix,
            nics=tuple(f"{prefix}/{nic}" for nic in self.nics),
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of an edge."""

    name: str
    tail: str
    head: str
    bandwidth_bytes_per_s: float
    latency_s: float
    tier: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A cable: both directions unless `one_way`. `count` parallel cables are one of their sum."""

    tail: str
    head: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    tier: str = "network"
    count: int = 1
    one_way: bool = False

    def under(self, prefix: str) -> Edge:
        return replace(self, tail=f"{prefix}/{self.tail}", head=f"{prefix}/{self.head}")

    def links(self) -> list[Link]:
        """Its directed links."""
        ways = [(self.tail, self.head)] + ([] if self.one_way else [(self.head, self.tail)])
        rate = self.bandwidth_bytes_per_s * self.count
        return [Link(f"{a}/{b}", a, b, rate, self.latency_s, self.tier) for a, b in ways]


@dataclass(frozen=True, slots=True)
class Listing:
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]


def read_listing(nodes: Any, edges: Any) -> Listing:
    """Vertices and edges. Raises SpecError with every finding."""
    findings: list[Finding] = []
    vertices = _vertices(nodes, findings)
    names = {vertex.name: vertex for vertex in vertices}
    if len(names) < len(vertices):
        twice = {v.name for v in vertices if sum(o.name == v.name for o in vertices) > 1}
        findings.append(Finding("nodes", f"{', '.join(sorted(twice))}: named twice"))
    for vertex in vertices:
        for nic in vertex.nics:
            if nic not in names:
                findings.append(Finding("nodes", f"{vertex.name}: no such NIC '{nic}'{nearest(nic, names)}"))
    found = _edges(edges, names, findings)
    if not any(vertex.kind == "gpu" for vertex in vertices):
        findings.append(Finding("nodes", "no vertex of kind gpu"))
    if findings:
        raise SpecError(findings)
    return Listing(tuple(vertices), tuple(found))


def _counted(entry: Mapping[str, Any], path: str, findings: list[Finding]) -> Iterator[dict[str, Any]]:
    """An entry for each combination of its ranges `{a..b}`. The first range of one text counts in step
    with an equal first range of another, the second with the second."""
    ranges: dict[tuple[str, int], range] = {}
    for key, text in entry.items():
        for at, found in enumerate(_RANGE.finditer(text) if isinstance(text, str) else ()):
            first, last = int(found[1]), int(found[2])
            if last < first:
                findings.append(Finding(f"{path}.{key}", f"'{found[0]}': expected a range that counts up"))
                return
            ranges[found[0], at] = range(first, last + 1)
    for numbers in product(*ranges.values()):
        chosen = dict(zip(ranges, numbers, strict=True))
        yield {key: _filled(text, chosen) if isinstance(text, str) else text for key, text in entry.items()}


def _filled(text: str, chosen: Mapping[tuple[str, int], int]) -> str:
    turn = count()
    return _RANGE.sub(lambda found: str(chosen[found[0], next(turn)]), text)


def _entries(values: Any, path: str, known: Sequence[str], findings: list[Finding]) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        findings.append(Finding(path, "expected a list of entries"))
        return []
    good = []
    for i, entry in enumerate(values):
        if not isinstance(entry, Mapping):
            findings.append(Finding(f"{path}[{i}]", f"{entry!r}: expected fields (name: value)"))
            continue
        for key in entry:
            if key not in known:
                findings.append(Finding(f"{path}[{i}].{key}", f"unknown key{nearest(str(key), known)}"))
        good += [(i, one) for one in _counted(entry, f"{path}[{i}]", findings)]
    return good


def _vertices(values: Any, findings: list[Finding]) -> list[Vertex]:
    made = []
    for i, entry in _entries(values, "nodes", _VERTEX, findings):
        name, kind = str(entry.get("name", "")), entry.get("kind", "switch")
        if not name:
            findings.append(Finding(f"nodes[{i}].name", "missing"))
        if kind not in KINDS:
            findings.append(Finding(f"nodes[{i}].kind", f"'{kind}': unknown kind{nearest(str(kind), KINDS)}"))
        nics = entry.get("nic", ())
        made.append(
            Vertex(
                name,
                str(kind),
                str(entry.get("node", name.rpartition("/")[0] if kind in ("gpu", "nic") else "")),
                (nics,) if isinstance(nics, str) else tuple(str(nic) for nic in nics),
                _rate(entry, f"nodes[{i}]", findings, needed=False),
            )
        )
    return made


def _rate(entry: Mapping[str, Any], path: str, findings: list[Finding], *, needed: bool = True) -> float:
    if "bandwidth" not in entry:
        if needed:
            findings.append(Finding(f"{path}.bandwidth", "missing"))
        return 0.0
    try:
        rate = parse(entry["bandwidth"], "bytes_per_s")
        if rate <= 0:
            raise UnitError(f"{entry['bandwidth']!r}: expected more than 0")
    except UnitError as error:
        findings.append(Finding(f"{path}.bandwidth", str(error)))
        return 0.0
    return rate


def _edges(values: Any, names: Mapping[str, Vertex], findings: list[Finding]) -> list[Edge]:
    made = []
    for i, entry in _entries(values, "edges", _EDGE, findings):
        path = f"edges[{i}]"
        ends = [str(entry.get(end, "")) for end in ("from", "to")]
        for end, name in zip(("from", "to"), ends, strict=True):
            if name not in names:
                findings.append(Finding(f"{path}.{end}", f"'{name}': no such vertex{nearest(name, names)}"))
        latency = 0.0
        try:
            latency = parse(entry.get("latency", 0), "s")
        except UnitError as error:
            findings.append(Finding(f"{path}.latency", str(error)))
        cables = entry.get("count", 1)
        if isinstance(cables, bool) or not isinstance(cables, int) or cables < 1:
            findings.append(Finding(f"{path}.count", f"{cables!r}: expected a whole number of 1 or more"))
            cables = 1
        rate = _rate(entry, path, findings)
        tier = str(entry.get("tier", _tier(ends[0], ends[1], names)))
        made.append(Edge(ends[0], ends[1], rate, latency, tier, cables, bool(entry.get("one_way", False))))
    return made


def _tier(tail: str, head: str, names: Mapping[str, Vertex]) -> str:
    """What a cable is, by what it joins."""
    kinds = {names[end].kind for end in (tail, head) if end in names}
    if kinds <= {"gpu", "nvswitch"}:
        return "nvlink"
    if kinds & {"cpu", "pcie"} or kinds == {"gpu", "nic"}:
        return "pcie"
    return "nic" if "nic" in kinds else "network"
