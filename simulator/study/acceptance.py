"""What acceptance would find on a scenario's cluster: short tests of GPUs, memory, NVLink, NICs, all-reduce.

The tests are programs of their own, run by the event engine on the scenario's fabric with its faults, folded
like any job. They come one after the other from time 0, before the job, with the GPUs still cold: clocks
have not fallen yet, and what starts later is not there. A training job's host and dataloader take no part.
Each figure is held against the same test on the same hardware without faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine import build_setting, events
from simulator.engine.fold import fold
from simulator.engine.setting import Setting, effects_by_fault
from simulator.errors import SpecError
from simulator.faults import Effect, Factor, Resource, Traffic, Window
from simulator.hardware import kernel_cost
from simulator.model.blocks import Kernel
from simulator.network import fabric as fabrics
from simulator.network.activity import BUS_FACTORS
from simulator.network.fabric import Fabric
from simulator.parallel.mesh import Mesh, build_mesh
from simulator.program.instructions import Collective, Instruction, Launch, Programs, Role, Segment
from simulator.spec import Batch, Checkpoint, Cluster, Dataloader, Gpu, Parallelism, Run, Scenario

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: sizes of the collectives; the last is what NIC pairs send
SIZES: Final = (2.0**20, 2.0**26, 2.0**30, 2.0**33)
_ITERATIONS: Final = 5
_GEMM: Final = 8192
_STREAM_BYTES: Final = 2.0**33  # read and written together
#: windows that start later than this after a test's beginning do not matter to it
_HORIZON_S: Final = 120.0
_HARDWARE: Final = (Resource.SM, Resource.HBM, Resource.LINK)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The least share of what the same healthy hardware does.

    The usual ones: Azure's health checks of H100 nodes (github.com/Azure/azurehpc-health-checks) want 380 of
    400 Gb/s of a NIC and 460 GB/s of NVLink all-reduce where healthy nodes give some 480. Across many nodes,
    and where chips differ, a tenth is common.
    """

    gemm: float = 0.95
    hbm: float = 0.95
    nvlink: float = 0.95
    nic: float = 0.95
    all_reduce: float = 0.90

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 < value <= 1:
                raise SpecError.of(one.name.replace("_", "-"), f"{value:g}: expected above 0, to 1")


@dataclass(frozen=True, slots=True)
class Check:
    """One test. Figures are in `unit` ("FLOP/s" or "bytes/s") of the worst place, the median, and the healthy.

    `share`: the least of measured over healthy; `failing`: GPUs, nodes or NICs by name, the worst first.
    `size_bytes`: of the message, None for tests that send none.
    """

    name: str
    unit: str
    worst: float
    median: float
    healthy: float
    share: float
    needed: float
    failing: tuple[str, ...] = ()
    size_bytes: float | None = None

    @property
    def passed(self) -> bool:
        return self.share >= self.needed

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"passed": self.passed}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """All tests of a cluster. `duration_s`: how long they took, in simulated time."""

    scenario: str
    gpus: int
    nodes: int
    duration_s: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of what failed, each once. NVLink and all-reduce only blame where no single part did."""
        return tuple(dict.fromkeys(name for check in self.checks for name in check.failing))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {
            "scenario": self.scenario,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "duration_s": self.duration_s,
        }
        checks = [check.to_dict() for check in self.checks]
        return plain | {"passed": self.passed, "failing": list(self.failing), "checks": checks}


def accept(scenario: Scenario, thresholds: Thresholds | None = None, *, burn_s: float = 2.0) -> Acceptance:
    """Run acceptance on a scenario's cluster. `burn_s`: how long the GEMMs run, in seconds.

    Raises SpecError for a burn that is not above 0, and for places that the cluster does not have.
    """
    if not (np.isfinite(burn_s) and burn_s > 0):
        raise SpecError.of("--burn", f"{burn_s:g}: expected seconds above 0")
    least = thresholds or Thresholds()
    bench = _Bench(scenario)
    checks = [bench.gemm(burn_s, least.gemm), bench.hbm(least.hbm)]
    if bench.per_node > 1:
        checks += bench.all_reduce("NVLink all-reduce", "tp", least.nvlink)
    if bench.nodes > 1:
        checks.append(bench.nic_pairs(least.nic))
        checks += bench.all_reduce("all-node all-reduce", "world", least.all_reduce)
    fabric = bench.fabric
    return Acceptance(scenario.name, fabric.n_gpus, fabric.n_nodes, bench.clock_s, tuple(checks))


def cold(cluster: Cluster) -> Cluster:
    """The cluster with clocks that have not fallen under load yet."""

    def of(gpu: Gpu) -> Gpu:
        return replace(gpu, constants={**gpu.constants, "sustained_clock": 1.0})

    return replace(
        cluster, gpu=of(cluster.gpu), node_gpus={node: of(gpu) for node, gpu in cluster.node_gpus.items()}
    )


def present(effects: Iterable[Effect]) -> list[Effect]:
    """What acceptance can meet: factors on SMs, HBM and links, and others' traffic, that do not start in a
    later step. Windows in seconds stay; they are the clock's.
    """
    found: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Traffic) or (
            isinstance(effect, Factor) and effect.resource in _HARDWARE and effect.factor != 1.0
        ):
            windows = tuple(
                Window(0, np.inf, in_steps=True) if window.in_steps else window
                for window in effect.windows
                if not window.in_steps or window.start <= 0
            )
            if windows:
                found.append(replace(effect, windows=windows))
    return found


def effects_on_cluster(scenario: Scenario) -> tuple[Fabric, list[tuple[Effect, ...]], Ints]:
    """The scenario's fabric, what each of its faults does there, and the GPU of each rank."""
    cluster = scenario.cluster
    fabric = fabrics.build(cluster.topology, cluster.gpus, cluster.gpu, seed=scenario.run.seed)
    mesh = build_mesh(scenario.parallelism, int((fabric.node_of == 0).sum()))
    place = np.array(scenario.parallelism.rank_map or range(mesh.ranks), dtype=np.int64)
    return fabric, effects_by_fault(scenario, mesh, fabric, place), place


@dataclass(eq=False)
class _Bench:
    """The cluster under test. `clock_s`: time since the first test began."""

    scenario: Scenario
    clock_s: float = 0.0
    fabric: Fabric = field(init=False)
    effects: list[Effect] = field(init=False)  # places are GPUs

    def __post_init__(self) -> None:
        self.fabric, by_fault, place = effects_on_cluster(self.scenario)
        self.effects = [_moved(effect, place) for one in by_fault for effect in present(one)]
        sizes = np.bincount(self.fabric.node_of)
        self.per_node = int(sizes.max())
        whole = np.flatnonzero(sizes == self.per_node)  # a node that is only partly used sits groups out
        self.nodes = len(whole)
        order = np.argsort(self.fabric.node_of, kind="stable")
        self.by_node = order[np.isin(self.fabric.node_of[order], whole)].reshape(self.nodes, self.per_node)

    # ------------------------------------------------------------------------------------ the tests

    def gemm(self, burn_s: float, needed: float) -> Check:
        """Large GEMMs in the job's precision on every GPU."""
        flops, moved = 2.0 * _GEMM**3, 2.0 * 3 * _GEMM**2
        kernel = Kernel("gemm", "gemm", flops, moved, (_GEMM, _GEMM, _GEMM, 1), self.scenario.precision)
        one_s = kernel_cost(kernel, cold(self.scenario.cluster).gpu).duration_s
        count = max(10, round(burn_s / one_s))
        return self._kernels("GEMM burn", "FLOP/s", kernel, count, flops, needed)

    def hbm(self, needed: float) -> Check:
        """A copy that streams through memory on every GPU."""
        kernel = Kernel("stream", "copy", 0.0, _STREAM_BYTES)
        return self._kernels("HBM stream", "bytes/s", kernel, 10, _STREAM_BYTES, needed)

    def _kernels(self, name: str, unit: str, kernel: Kernel, count: int, work: float, needed: float) -> Check:
        place = np.arange(self.fabric.n_gpus)
        body = (Launch(Segment(name, (kernel,) * count)),)
        seen, healthy = (count * work / times[name] for times in self._both({"dp": len(place)}, place, body))
        share = seen / healthy
        names = self._gpu_names(np.flatnonzero(share < needed), share)
        return _check(name, unit, seen, healthy, share, needed, names)

    def all_reduce(self, name: str, group: str, needed: float) -> list[Check]:
        """By size: in every node at once (group "tp"), or over all GPUs (group "world")."""
        members = self.per_node if group == "tp" else self.by_node.size
        factor = BUS_FACTORS["all-reduce"](members)
        place = self.by_node.ravel()
        body = [
            Collective("all-reduce", group, size, "compute", name=f"{size:.0f}")
            for size in SIZES
            for _ in range(_ITERATIONS)
        ]
        seen, healthy = self._both({"tp": self.per_node, "dp": self.nodes}, place, body)
        checks = []
        for size in SIZES:
            speed, usual = (size * factor / times[f"{size:.0f}"] for times in (seen, healthy))
            share = speed / usual
            low = np.flatnonzero(share < needed)
            nodes = np.unique(self.fabric.node_of[place[low]]).tolist() if group == "tp" else []
            names = tuple(f"node {node}" for node in nodes)
            checks.append(_check(name, "bytes/s", speed, usual, share, needed, names, size))
        return checks

    def nic_pairs(self, needed: float) -> Check:
        """Each GPU's NIC with its peer's on the next node, then on the node before: what fails twice is named."""
        even = self.nodes // 2 * 2
        orders = (np.arange(even), np.roll(np.arange(self.nodes), -1)[:even])
        size = SIZES[-1]
        body = [Collective("send-recv", "cp", size, "compute", name="send") for _ in range(_ITERATIONS)]
        best, seen, healthy = (np.zeros(self.fabric.n_gpus) for _ in range(3))
        for order in orders:
            place = self.by_node[order].ravel()
            sizes = {"tp": self.per_node, "cp": 2, "dp": even // 2}
            times, usual = (one["send"] for one in self._both(sizes, place, body))
            better = usual / times > best[place]
            gpus = place[better]
            best[gpus], seen[gpus], healthy[gpus] = (
                one[better] for one in (usual / times, size / times, size / usual)
            )
        tested = best > 0
        blamed = np.flatnonzero(tested & (best < needed))
        names = self._nic_names(blamed[np.argsort(best[blamed], kind="stable")])
        return _check(
            "NIC pairs", "bytes/s", seen[tested], healthy[tested], best[tested], needed, names, size
        )

    # ---------------------------------------------------------------------------------- how they run

    def _both(
        self, sizes: Mapping[str, int], place: Ints, body: Sequence[Instruction]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Seconds by name of work and rank: as it is, and without faults. The clock moves on."""
        now = [_later(effect, self.clock_s) for effect in self.effects]
        seen, taken_s = self._run(sizes, place, body, now)
        self.clock_s += taken_s
        return seen, self._run(sizes, place, body, [])[0]

    def _run(
        self, sizes: Mapping[str, int], place: Ints, body: Sequence[Instruction], effects: list[Effect]
    ) -> tuple[dict[str, Floats], float]:
        setting = self._setting(sizes, place, body)
        setting.effects = tuple(_on_ranks(effects, place, self.fabric.n_gpus))
        cast = fold(setting)
        timeline = events.run(cast)
        device, met = timeline.device, timeline.collectives
        taken = device.end_s - device.start_s
        if len(met):  # a collective's time is the bytes', not the wait for the last
            at = np.maximum(device.collective, 0)
            taken = np.where(device.collective >= 0, (met.end_s - met.begin_s)[at], taken)
        times = {}
        for number in np.unique(device.name).tolist():
            rows = device.name == number
            total = np.bincount(device.rank[rows], weights=taken[rows], minlength=len(timeline.ranks))
            count = np.bincount(device.rank[rows], minlength=len(timeline.ranks))
            times[timeline.names[number]] = (total / np.maximum(count, 1))[cast.lane_of_rank]
        return times, float(timeline.steps[:, -1, 1].max())

    def _setting(self, sizes: Mapping[str, int], place: Ints, body: Sequence[Instruction]) -> Setting:
        axes = ("tp", "cp", "ep", "shard", "dp", "pp")
        mesh = Mesh(axes, tuple(sizes.get(axis, 1) for axis in axes))
        test = replace(
            self.scenario,
            cluster=cold(self.scenario.cluster),
            parallelism=Parallelism(rank_map=tuple(place.tolist())),
            batch=Batch(1, mesh.ranks),
            dataloader=Dataloader(),
            checkpoint=Checkpoint(),
            faults=(),
            run=Run(steps=1, warmup=0, seed=self.scenario.run.seed),
        )
        return build_setting(test, Programs((Role(0, tuple(body)),), 1), mesh, self.fabric)

    # --------------------------------------------------------------------------------------- names

    def _gpu_names(self, gpus: Ints, share: Floats) -> tuple[str, ...]:
        """Whole nodes as such, single GPUs with theirs; the worst first."""
        ordered = gpus[np.argsort(share[gpus], kind="stable")]
        counts = np.bincount(self.fabric.node_of[gpus], minlength=self.fabric.n_nodes)
        whole = counts == np.bincount(self.fabric.node_of, minlength=self.fabric.n_nodes)
        names = []
        for gpu in ordered.tolist():
            node = int(self.fabric.node_of[gpu])
            alone = f"GPU {gpu} (node {node}, local {self.fabric.local_rank[gpu]})"
            names.append(f"node {node}" if whole[node] else alone)
        return tuple(dict.fromkeys(names))

    def _nic_names(self, gpus: Ints) -> tuple[str, ...]:
        """NICs of GPUs in order; whole nodes as such."""
        nodes = self.fabric.node_of[gpus]
        whole = np.bincount(nodes, minlength=self.fabric.n_nodes) == self.per_node
        pairs = zip(gpus.tolist(), nodes.tolist(), strict=True)
        return tuple(
            dict.fromkeys(f"NICs of node {node}" if whole[node] else self._nic(gpu) for gpu, node in pairs)
        )

    def _nic(self, gpu: int) -> str:
        node = int(self.fabric.node_of[gpu])
        nics = (
            self.fabric.nic_of[gpu][self.fabric.nic_of[gpu] >= 0].tolist() if self.fabric.nic_of.size else []
        )
        return "NIC " + ", ".join(f"{node}:{nic}" for nic in nics) if nics else f"links of node {node}"


def _check(
    name: str,
    unit: str,
    seen: Floats,
    healthy: Floats,
    share: Floats,
    needed: float,
    failing: tuple[str, ...],
    size: float | None = None,
) -> Check:
    worst = int(share.argmin())
    return Check(
        name, unit, float(seen[worst]), float(np.median(seen)), float(healthy[worst]), float(share[worst]),
        needed, failing, size,
    )  # fmt: skip


def _moved(effect: Effect, place: Ints) -> Effect:
    """Targets of a job's ranks as GPUs."""
    if isinstance(effect, Factor) and effect.resource is not Resource.LINK:
        return replace(effect, targets=tuple(place[list(effect.targets)].tolist()))
    return effect


def _on_ranks(effects: Iterable[Effect], place: Ints, gpus: int) -> list[Effect]:
    """Targets that are GPUs as the ranks of a test."""
    rank_of = np.full(gpus, -1)
    rank_of[place] = np.arange(len(place))
    found: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Factor) and effect.resource is not Resource.LINK:
            ranks = rank_of[list(effect.targets)]
            effect = replace(effect, targets=tuple(ranks[ranks >= 0].tolist()))  # noqa: PLW2901
        found.append(effect)
    return found


def _later(effect: Effect, clock_s: float) -> Effect:
    """The effect as seen by a test that begins at `clock_s`."""
    if not isinstance(effect, Factor | Traffic):
        return effect
    windows = tuple(
        one if one.in_steps else Window(max(0.0, one.start - clock_s), one.end - clock_s)
        for one in effect.windows
        if one.in_steps or (one.end > clock_s and one.start < clock_s + _HORIZON_S)
    )
    return replace(effect, windows=windows)
