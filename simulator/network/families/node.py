"""Nodes: GPUs, NVLink, PCIe switches, CPU sockets and NICs, and the ways between them.

All nodes of a fabric look alike, so the inside of one is worked out once, as a few small tables.

NVLink comes in four kinds. `switch`: each GPU has one up and one down link to an NVSwitch that never
blocks. `mesh`: the hybrid cube mesh of eight V100. `pairs`: bridges between GPUs 0-1, 2-3, ...
`none`. Where NVLink does not lead, traffic takes PCIe: up to the PCIe switch, to the CPU socket, over
to the other socket, and down again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from simulator.hardware.nics import Nic, nic
from simulator.network.families.parameters import (
    Family,
    checked,
    choice,
    quantity,
    text,
    whole,
    wholes,
)
from simulator.network.links import Grid, Ints, LinkTableBuilder
from simulator.spec import Gpu

Path: TypeAlias = list[int]

#: NVLinks between the GPUs of a DGX-1 with V100 (`nvidia-smi topo -m` of that machine; NVIDIA
#: DGX-1 With Tesla V100 System Architecture, WP-08437-002, figure 4): pairs with one link, with two.
_CUBE_MESH: Final = {
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
}
_LINKS_OF_MESH_GPU: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParameters(Family):
    """What families whose GPUs sit in nodes have in common."""

    gpus_per_node: int = whole(8, about="GPUs of a node (of an NVLink domain)")
    gpus_per_host: int = whole(0, least=0, about="GPUs under one operating system; 0: a node's")
    nvlink: str = choice("switch", ("switch", "mesh", "pairs", "none"), about="how NVLink joins GPUs")
    nvlink_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a GPU, one direction; the GPU's own if not given"
    )
    pcie_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a GPU's slot, one direction; the GPU's own if not given"
    )
    gpus_per_pcie_switch: int = whole(2, least=0, about="0: GPUs sit on the CPU's root ports")
    pcie_switch_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="from a PCIe switch to its CPU; a GPU slot's if not given"
    )
    sockets: int = whole(2, about="CPU sockets of a host")
    socket_bandwidth: float = quantity("bytes_per_s", 16e9, about="between two CPU sockets, one direction")
    nics: int = whole(8, least=0, about="NIC ports of a node for the training network")
    nic: str = text("", about="a NIC of the catalogue, which gives line rate, slot and latency")
    nic_bandwidth: float | None = quantity("bytes_per_s", None, about="line rate of a port, one direction")
    nic_slot_bandwidth: float | None = quantity(
        "bytes_per_s", None, about="of a port's share of its PCIe slot"
    )
    nic_affinity: tuple[int, ...] = wholes(about="NIC of each GPU of a node, for instance [0, 0, 2, ...]")
    nvlink_latency: float = quantity("s", 0.0, zero=True, about="of a hop from GPU to NVSwitch or GPU")
    pcie_latency: float = quantity("s", 0.0, zero=True, about="of a hop over PCIe")
    nic_latency: float | None = quantity("s", None, zero=True, about="of a NIC")

    def node(self, gpu: Gpu) -> Node:
        """Work out the inside of a node. SpecError for parameters that contradict each other."""
        self._check(gpu)
        return _Plan(self, gpu).node()

    @property
    def hosts_per_node(self) -> int:
        return self.gpus_per_node // (self.gpus_per_host or self.gpus_per_node)

    def catalogued_nic(self) -> Nic | None:
        return nic(self.nic) if self.nic else None

    def nic_rate_bytes_per_s(self) -> float:
        """Line rate of a port: given, or the catalogue's."""
        found = self.catalogued_nic()
        rate = self.nic_bandwidth or (found.bandwidth_bytes_per_s if found else 0.0)
        checked((rate > 0 or not self.nics, "nic_bandwidth", "missing: give nic_bandwidth or nic"))
        return rate

    def nic_latency_s(self) -> float:
        if self.nic_latency is not None:
            return self.nic_latency
        found = self.catalogued_nic()
        return found.latency_s if found else 0.0

    def _check(self, gpu: Gpu) -> None:
        per_host = self.gpus_per_host or self.gpus_per_node
        hosts = self.hosts_per_node
        checked(
            (
                self.gpus_per_node % per_host == 0,
                "gpus_per_host",
                f"{per_host}: does not divide gpus_per_node ({self.gpus_per_node})",
            ),
            (
                hosts <= 1 or self.nvlink == "switch",
                "nvlink",
                f"'{self.nvlink}': a node of several hosts needs 'switch'",
            ),
            (
                hosts < 1 or self.nics % max(hosts, 1) == 0,
                "nics",
                f"{self.nics}: does not divide over the node's {hosts} hosts",
            ),
            (
                self.nvlink != "mesh" or self.gpus_per_node in (4, 8),
                "gpus_per_node",
                f"{self.gpus_per_node}: the hybrid cube mesh joins 8 GPUs (or 4, half of it)",
            ),
            (
                self.nvlink != "pairs" or self.gpus_per_node % 2 == 0,
                "gpus_per_node",
                f"{self.gpus_per_node}: expected an even number with nvlink 'pairs'",
            ),
            (
                self.nvlink == "none"
                or bool(self.nvlink_bandwidth or gpu.nvlink_bandwidth_bytes_per_s)
                or self.gpus_per_node == 1,
                "nvlink",
                f"'{self.nvlink}': {gpu.name} has no NVLink; give nvlink_bandwidth or nvlink: none",
            ),
            (
                bool(self.pcie_bandwidth or gpu.pcie_bandwidth_bytes_per_s),
                "pcie_bandwidth",
                f"missing: {gpu.name} names no PCIe bandwidth",
            ),
            (
                not self.nic_affinity or len(self.nic_affinity) == self.gpus_per_node,
                "nic_affinity",
                f"{len(self.nic_affinity)} entries: expected one for each of {self.gpus_per_node} GPUs",
            ),
            (
                all(nic < self.nics for nic in self.nic_affinity),
                "nic_affinity",
                f"{list(self.nic_affinity)}: expected NICs 0 to {self.nics - 1}",
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class WayTable:
    """Local links of a way for each pair of (from, to): shape (a, b, width), -1 where it is over."""

    base: Ints
    stride: Ints

    def links(self, node: Ints, a: Ints, b: Ints) -> Ints:
        """Link numbers of the ways a -> b within each `node`, shape (m, width), -1 where over."""
        pair = a * self.base.shape[1] + b  # rows of a table are taken faster than by two indices
        width = self.base.shape[2]
        links: Ints = self.stride.reshape(-1, width).take(pair, axis=0)
        links *= node[:, None]
        links += self.base.reshape(-1, width).take(pair, axis=0)
        return links


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The inside of a node, and its links once they are in a table.

    `nics_of_gpu`: shape (gpus, k). `peer_of_nic`: the GPU next to each NIC. `nvlink_bytes_per_s`:
    direct NVLink bandwidth between each two GPUs, one direction, shape (gpus, gpus); behind an
    NVSwitch each entry is a GPU's whole bandwidth.
    """

    gpus: int
    nics: int
    hosts: int
    kind: str
    nics_of_gpu: Ints
    peer_of_nic: Ints
    nvlink_bytes_per_s: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    links: tuple[_Link, ...]
    between_gpus: tuple[tuple[Path, ...], ...]
    to_nic: tuple[tuple[Path, ...], ...]
    to_nic_over_nvlink: tuple[tuple[Path, ...], ...]
    from_nic: tuple[tuple[Path, ...], ...]

    def exits(self, rails: int) -> Ints:
        """The NIC by which each GPU reaches each rail: its own, or the nearest of its host, or the
        first. Shape (gpus, rails)."""
        host = self.gpus // self.hosts
        gpu_host = np.arange(self.gpus) // host
        nic = np.arange(self.nics)
        table = np.empty((self.gpus, rails), np.int64)
        for g, r in np.ndindex(self.gpus, rails):
            on_rail = nic[nic % rails == r]
            own = np.isin(on_rail, self.nics_of_gpu[g])
            near = on_rail * self.hosts // self.nics == gpu_host[g]
            table[g, r] = on_rail[np.argmax(2 * own + near)]
        return table

    def lay(self, table: LinkTableBuilder, nodes: int) -> NodeWays:
        """Put the links of `nodes` such nodes into the table; the ways, as link numbers."""
        base, stride = np.full(len(self.links) + 1, -1), np.zeros(len(self.links) + 1, np.int64)
        for kind in dict.fromkeys(link.kind for link in self.links):
            members = [i for i, link in enumerate(self.links) if link.kind == kind]
            first = self.links[members[0]]
            grid = Grid(
                owner="node{}",
                owners=nodes,
                labels=tuple(self.links[i].label for i in members),
                direction=first.direction,
                lower=tuple(self.links[i].lower for i in members),
                upper=tuple(self.links[i].upper for i in members),
            )
            capacity = np.tile([self.links[i].capacity for i in members], nodes)
            start = table.add(grid, first.tier, capacity, first.latency)
            base[members] = start + np.arange(len(members))
            stride[members] = len(members)

        def made(ways: tuple[tuple[Path, ...], ...]) -> WayTable:
            local = _padded(ways)
            return WayTable(base[local], stride[local])

        return NodeWays(
            made(self.between_gpus),
            made(self.to_nic),
            made(self.to_nic_over_nvlink),
            made(self.from_nic),
        )


@dataclass(frozen=True, slots=True, eq=False)
class NodeWays:
    between_gpus: WayTable
    to_nic: WayTable
    to_nic_over_nvlink: WayTable
    from_nic: WayTable


def _padded(ways: tuple[tuple[Path, ...], ...]) -> Ints:
    width = max((len(way) for row in ways for way in row), default=0)
    columns = max((len(row) for row in ways), default=0)
    table = np.full((len(ways), columns, max(width, 1)), -1, np.int64)
    for a, row in enumerate(ways):
        for b, way in enumerate(row):
            table[a, b, : len(way)] = way
    return table


@dataclass(frozen=True, slots=True)
class _Link:
    kind: str  # links of one kind make a grid
    label: str
    direction: str
    lower: str
    upper: str
    tier: str
    capacity: float
    latency: float


class _Plan:
    """Collects the links of one node, then finds the ways."""

    def __init__(self, p: NodeParameters, gpu: Gpu):
        self.p = p
        self.links: list[_Link] = []
        self.number: dict[tuple[str, str, str], int] = {}  # (lower, upper, direction)
        self.nvlink = p.nvlink_bandwidth or gpu.nvlink_bandwidth_bytes_per_s
        self.pcie = p.pcie_bandwidth or gpu.pcie_bandwidth_bytes_per_s
        self.per_host = p.gpus_per_host or p.gpus_per_node
        self.hosts = p.gpus_per_node // self.per_host
        self.direct = np.zeros((p.gpus_per_node, p.gpus_per_node))
        _NVLINK[p.nvlink](self)
        self._add_pcie()
        self._add_nics()

    # ---------------------------------------------------------------------------------- links

    def _add(self, kind: str, label: str, lower: str, upper: str, tier: str, capacity: float) -> None:
        latency = self.p.nvlink_latency if tier == "nvlink" else self.p.pcie_latency
        for direction in ("up", "down"):
            self.number[lower, upper, direction] = len(self.links)
            self.links.append(
                _Link(f"{kind}-{direction}", label, direction, lower, upper, tier, capacity, latency)
            )

    def _add_peer(self, kind: str, a: str, b: str, tier: str, capacity: float) -> None:
        latency = self.p.nvlink_latency if tier == "nvlink" else self.p.pcie_latency
        for tail, head in ((a, b), (b, a)):
            self.number[tail, head, ""] = len(self.links)
            self.links.append(_Link(kind, f"{tail}/{kind}/{head}", "", tail, head, tier, capacity, latency))

    def add_switched(self) -> None:
        for g in range(self.p.gpus_per_node):
            self._add("nvlink", f"gpu{g}/nvlink", f"gpu{g}", "nvswitch", "nvlink", self.nvlink)
        self.direct[:] = self.nvlink
        np.fill_diagonal(self.direct, 0.0)

    def add_direct(self, pairs: Iterable[tuple[int, int, float]]) -> None:
        for a, b, capacity in pairs:
            self._add_peer("nvlink", f"gpu{a}", f"gpu{b}", "nvlink", capacity)
            self.direct[a, b] = self.direct[b, a] = capacity

    def _add_pcie(self) -> None:
        for g in range(self.p.gpus_per_node):
            self._add("pcie", f"gpu{g}/pcie", f"gpu{g}", self._attach(g), "pcie", self.pcie)
        root = self.p.pcie_switch_bandwidth or self.pcie
        for w in range(self._switches() * self.hosts):
            self._add("root", f"pcie{w}/root", f"pcie{w}", f"cpu{self._socket(w)}", "pcie", root)
        for host in range(self.hosts):
            cpus = [f"cpu{host * self.p.sockets + s}" for s in range(self.p.sockets)]
            for i, a in enumerate(cpus):
                for b in cpus[i + 1 :]:
                    self._add_peer("socket", a, b, "socket", self.p.socket_bandwidth)

    def _add_nics(self) -> None:
        found = self.p.catalogued_nic()
        slot = self.p.nic_slot_bandwidth or (found.slot_bandwidth_bytes_per_s if found else 0.0)
        for k in range(self.p.nics):
            capacity = slot or max(self.pcie, self.p.nic_rate_bytes_per_s())
            self._add("slot", f"nic{k}/slot", self._nic_attach(k), f"nic{k}", "pcie", capacity)

    # --------------------------------------------------------------------------------- places

    def _switches(self) -> int:
        """PCIe switches of a host."""
        return -(-self.per_host // self.p.gpus_per_pcie_switch) if self.p.gpus_per_pcie_switch else 0

    def _socket(self, switch: int) -> int:
        host, w = divmod(switch, self._switches())
        return host * self.p.sockets + w * self.p.sockets // self._switches()

    def _attach(self, gpu: int) -> str:
        host, j = divmod(gpu, self.per_host)
        if self._switches():
            return f"pcie{host * self._switches() + j // self.p.gpus_per_pcie_switch}"
        return f"cpu{host * self.p.sockets + j * self.p.sockets // self.per_host}"

    def _nic_attach(self, nic: int) -> str:
        per_host = self.p.nics // self.hosts
        host, i = divmod(nic, per_host)
        kind, of_host = ("pcie", self._switches()) if self._switches() else ("cpu", self.p.sockets)
        return f"{kind}{host * of_host + i * of_host // per_host}"

    def _nics_of_gpu(self) -> Ints:
        if not self.p.nics:
            return np.full((self.p.gpus_per_node, 1), -1, np.int64)
        if self.p.nic_affinity:
            return np.array(self.p.nic_affinity, np.int64)[:, None]
        per_host = self.p.nics // self.hosts
        width = max(1, per_host // self.per_host)
        g = np.arange(self.p.gpus_per_node)
        first = (g // self.per_host) * per_host + (g % self.per_host) * per_host // self.per_host
        return np.asarray(first[:, None] + np.arange(width), np.int64)

    # ----------------------------------------------------------------------------------- ways

    def _pcie_way(self, a: str, b: str) -> Path:
        """Between two places on the PCIe trees of one host."""
        if a == b:
            return []
        way: Path = []
        ends = []
        for place in (a, b):
            switch = place.startswith("pcie")
            ends.append(f"cpu{self._socket(int(place[4:]))}" if switch else place)
        if a != ends[0]:
            way.append(self.number[a, ends[0], "up"])
        if ends[0] != ends[1]:
            way.append(self.number[ends[0], ends[1], ""])
        if b != ends[1]:
            way.append(self.number[b, ends[1], "down"])
        return way

    def _nvlink_way(self, a: int, b: int) -> Path | None:
        """Over NVLink, through one other GPU if need be (as NCCL does in a mesh); None if it cannot."""
        first, last = f"gpu{a}", f"gpu{b}"
        if self.p.nvlink == "switch":
            return [self.number[first, "nvswitch", "up"], self.number[last, "nvswitch", "down"]]
        if self.direct[a, b]:
            return [self.number[first, last, ""]]
        through = np.minimum(self.direct[a], self.direct[:, b])
        if not through.any():
            return None
        middle = f"gpu{int(through.argmax())}"
        return [self.number[first, middle, ""], self.number[middle, last, ""]]

    def _between(self, a: int, b: int) -> Path:
        if a == b:
            return []
        over_nvlink = self._nvlink_way(a, b)
        if over_nvlink is not None:
            return over_nvlink
        first, last = self._attach(a), self._attach(b)
        up, down = self.number[f"gpu{a}", first, "up"], self.number[f"gpu{b}", last, "down"]
        return [up, *self._pcie_way(first, last), down]

    def _to_nic(self, gpu: int, nic: int) -> Path:
        """GPU to NIC over PCIe."""
        first, last = self._attach(gpu), self._nic_attach(nic)
        up, slot = self.number[f"gpu{gpu}", first, "up"], self.number[last, f"nic{nic}", "up"]
        return [up, *self._pcie_way(first, last), slot]

    def _from_nic(self, nic: int, gpu: int) -> Path:
        first, last = self._nic_attach(nic), self._attach(gpu)
        slot, down = self.number[first, f"nic{nic}", "down"], self.number[f"gpu{gpu}", last, "down"]
        return [slot, *self._pcie_way(first, last), down]

    def _same_host(self, gpu: int, nic: int) -> bool:
        return gpu // self.per_host == nic // (self.p.nics // self.hosts)

    def _over_nvlink(self, gpu: int, nic: int, peer: int) -> Path:
        """GPU to the GPU next to the NIC, then PCIe: NCCL's PXN."""
        way = [] if gpu == peer else self._nvlink_way(gpu, peer)
        return self._to_nic(gpu, nic) if way is None else [*way, *self._to_nic(peer, nic)]

    def node(self) -> Node:
        gpus, nics = range(self.p.gpus_per_node), range(self.p.nics)
        own = self._nics_of_gpu()
        peer = np.array([self._peer(own, k) for k in nics], np.int64)
        over = tuple(
            tuple(self._to_nic(g, k) if k in own[g] else self._over_nvlink(g, k, int(peer[k])) for k in nics)
            for g in gpus
        )
        return Node(
            gpus=len(gpus),
            nics=len(nics),
            hosts=self.hosts,
            kind=self.p.nvlink,
            nics_of_gpu=own,
            peer_of_nic=peer,
            nvlink_bytes_per_s=self.direct,
            links=tuple(self.links),
            between_gpus=tuple(tuple(self._between(a, b) for b in gpus) for a in gpus),
            to_nic=tuple(
                tuple(self._to_nic(g, k) if self._same_host(g, k) else over[g][k] for k in nics) for g in gpus
            ),
            to_nic_over_nvlink=over,
            from_nic=tuple(
                tuple(self._from_nic(k, g) if self._same_host(g, k) else [] for g in gpus) for k in nics
            ),
        )

    def _peer(self, own: Ints, nic: int) -> int:
        """The first GPU that the NIC belongs to, or else the first on its host."""
        owners = np.flatnonzero((own == nic).any(axis=1))
        if len(owners):
            return int(owners[0])
        return nic // (self.p.nics // self.hosts) * self.per_host


def _mesh(plan: _Plan) -> None:
    one = plan.nvlink / _LINKS_OF_MESH_GPU
    plan.add_direct(
        (a, b, one * links)
        for links, pairs in _CUBE_MESH.items()
        for a, b in pairs
        if max(a, b) < plan.p.gpus_per_node
    )


def _pairs(plan: _Plan) -> None:
    plan.add_direct((a, a + 1, plan.nvlink) for a in range(0, plan.p.gpus_per_node, 2))


_NVLINK: Final[dict[str, Callable[[_Plan], None]]] = {
    "switch": _Plan.add_switched,
    "mesh": _mesh,
    "pairs": _pairs,
    "none": lambda plan: None,
}
