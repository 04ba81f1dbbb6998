"""Everything an engine needs to run, put together once from a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from simulator.draws import generator, sample
from simulator.engine.loads import loads_of
from simulator.engine.script import Script, scripts
from simulator.errors import SpecError
from simulator.faults import Context, Effect, Factor, Noise, Pause, Resource, Traffic, effects
from simulator.faults.effects import kernel_noise
from simulator.hardware import Stack, stack
from simulator.network.collectives import Activity, plan
from simulator.parallel.mesh import Mesh
from simulator.program.cost import SegmentCost, segment_cost
from simulator.program.instructions import Programs, Segment
from simulator.spec import Gpu, Scenario

if TYPE_CHECKING:
    from simulator.network.fabric import Fabric

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


#: Launches whose noise is drawn at a time: what is worked on stays in the cache.
_ROWS_AT_ONCE: Final = 64


class Costs(dict[Segment, SegmentCost]):
    """The cost of every segment on one kind of GPU."""

    def __init__(self, gpu: Gpu, software: Stack, launch_time_s: float, cuda_graphs: bool):
        super().__init__()
        self._gpu, self._stack = gpu, software
        self._launch_time_s, self._cuda_graphs = launch_time_s, cuda_graphs
        self._alike: dict[tuple[object, ...], SegmentCost] = {}

    def __missing__(self, segment: Segment) -> SegmentCost:
        key = (segment.host_s, *map(id, segment.kernels))  # layers that are alike share their kernels
        cost = self._alike.get(key)
        if cost is None:
            cost = self._alike[key] = segment_cost(
                segment,
                self._gpu,
                self._stack,
                launch_time_s=self._launch_time_s,
                cuda_graphs=self._cuda_graphs,
            )
        self[segment] = cost
        return cost


@dataclass(eq=False)
class Setting:
    """A scenario made ready: programs, mesh, fabric, hardware of each rank, what goes wrong.

    `gpu_of_rank`: index into `gpus`, shape (ranks,). `place`: GPU of the fabric for each rank.
    `loads`: for each varying load ("attention", "experts") factors of shape (steps or 1, micro-batches, ranks).
    """

    scenario: Scenario
    programs: Programs
    mesh: Mesh
    fabric: Fabric
    gpus: tuple[Gpu, ...]
    gpu_of_rank: Ints
    place: Ints
    effects: tuple[Effect, ...]
    stack: Stack
    launch_time_s: float
    scripts: tuple[Script, ...]
    loads: Mapping[str, Callable[[int], Floats]] = field(default_factory=dict)
    _costs: dict[int, Costs] = field(default_factory=dict)
    _noise: dict[tuple[Resource, int, int], Floats | None] = field(default_factory=dict)
    _load_times: dict[int, Floats] = field(default_factory=dict)
    _activities: dict[tuple[str, tuple[int, ...], float, str], Activity] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return self.scenario.run.steps

    @cached_property
    def stage_of_rank(self) -> Ints:
        """Pipeline stage of each rank, shape (ranks,)."""
        return self.mesh.coordinate_array("pp")

    @cached_property
    def number_in_stage(self) -> Ints:
        """Position of each rank among those of its stage, shape (ranks,)."""
        stages = self.stage_of_rank
        result = np.empty_like(stages)
        for stage in range(len(self.scripts)):
            members = stages == stage
            result[members] = np.arange(members.sum())
        return result

    @cached_property
    def node_of_rank(self) -> Ints:
        """Node of each rank, shape (ranks,)."""
        nodes: Ints = self.fabric.node_of[self.place]
        return nodes

    @cached_property
    def data_of_rank(self) -> Ints:
        """Number of the data that each rank is fed, shape (ranks,): TP and PP peers share theirs."""
        axes = ("cp", "ep", "shard", "dp")
        number = np.zeros(self.mesh.ranks, dtype=np.int64)
        for axis in axes:
            size = self.mesh.sizes[self.mesh.axes.index(axis)]
            number = number * size + self.mesh.coordinate_array(axis)
        return number

    @property
    def draws_data(self) -> bool:
        """Whether ranks that are fed other data take other times for it."""
        load = self.scenario.dataloader.load_time
        return bool(self.loads) or (load.mean > 0 and load.cv > 0 and load.kind != "constant")

    @property
    def mfu_precision(self) -> str:
        """The precision whose dense peak MFU is measured against."""
        return self.scenario.precision.partition("-")[0]

    def cost(self, segment: Segment, gpu: int) -> SegmentCost:
        """The segment's cost on the GPU `gpus[gpu]`."""
        return self.costs_of(gpu)[segment]

    def costs_of(self, gpu: int) -> Costs:
        """Costs of segments on the GPU `gpus[gpu]`, worked out when first asked for."""
        if gpu not in self._costs:
            self._costs[gpu] = Costs(
                self.gpus[gpu],
                self.stack,
                self.launch_time_s,
                self.scenario.software.cuda_graphs,
            )
        return self._costs[gpu]

    def activity(self, kind: str, ranks: tuple[int, ...], size_bytes: float, algorithm: str) -> Activity:
        """The collective of `ranks` on this cluster's fabric."""
        key = (kind, ranks, size_bytes, algorithm)
        known = self._activities.get(key)
        if known is None:
            gpus = self.place[np.asarray(ranks)]
            known = self._activities[key] = plan(self.fabric, kind, gpus, size_bytes, algorithm=algorithm)
        return known

    # ------------------------------------------------------------------------------- what goes wrong

    def factors(self, resource: Resource) -> dict[int, list[Factor]]:
        """Factors on a resource by target (rank or link); targets without any are absent."""
        result: dict[int, list[Factor]] = {}
        for effect in self.effects:
            if isinstance(effect, Factor) and effect.resource is resource:
                for target in effect.targets:
                    result.setdefault(target, []).append(effect)
        return result

    def pauses(self) -> dict[int, dict[int, list[Pause]]]:
        """Pauses by rank and step, in order of their position."""
        result: dict[int, dict[int, list[Pause]]] = {}
        for effect in self.effects:
            if isinstance(effect, Pause):
                result.setdefault(effect.rank, {}).setdefault(effect.step, []).append(effect)
        for by_step in result.values():
            for pauses in by_step.values():
                pauses.sort(key=lambda pause: pause.position)
        return result

    def traffic(self) -> list[Traffic]:
        return [effect for effect in self.effects if isinstance(effect, Traffic)]

    def noises(self, resource: Resource) -> list[Noise]:
        return [e for e in self.effects if isinstance(e, Noise) and e.resource is resource]

    def segment_noise(self, resource: Resource, stage: int, step: int) -> Floats | None:
        """Factors on every launch of a stage's step, shape (launches, ranks of the stage); None if all are 1."""
        noises = self.noises(resource)
        if not noises:
            return None
        script = self.scripts[stage].step(step)
        kernels = np.array([item.launches for item in script.launch_items])
        ranks = np.flatnonzero(self.stage_of_rank == stage)
        result = np.empty((len(kernels), len(ranks)), dtype=np.float32)
        for number, noise in enumerate(noises):
            draw = generator(self.scenario.run.seed, f"noise:{resource}", noise.stream, stage, step)
            cv = (noise.cv / np.sqrt(np.maximum(kernels, 1))[:, None]).astype(np.float32)
            spared = ~np.isin(ranks, noise.targets)
            for start in range(0, len(kernels), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                factors = result[rows] if number == 0 else np.empty_like(result[rows])
                draw.standard_normal(out=factors, dtype=np.float32)
                kernel_noise(cv[rows], factors)
                factors[:, spared] = 1.0
                if number:
                    result[rows] *= factors
        return result  # type: ignore[return-value]  # half the memory of doubles, and drawn twice as fast

    def noise_of_rank(self, resource: Resource, rank: int, step: int) -> Floats | None:
        """The rank's column of `segment_noise`, shape (launches,)."""
        stage = int(self.stage_of_rank[rank])
        key = (resource, stage, step)
        if key not in self._noise:
            self._noise[key] = self.segment_noise(*key)
        block = self._noise[key]
        return None if block is None else block[:, self.number_in_stage[rank]]

    @cached_property
    def batches_of_stage(self) -> tuple[int, ...]:
        """Batches that a rank of each stage loads for a step."""
        return tuple(self.programs.batches(stage) for stage in range(len(self.programs.roles)))

    def load_time_s(self, rank: int, batch: int) -> float:
        """Time that a worker of the rank needs for its `batch`-th batch."""
        step, number = divmod(batch, self.batches_of_stage[self.stage_of_rank[rank]])
        if step not in self._load_times:
            self._load_times[step] = self.load_times_s(step)
        return float(self._load_times[step][number, rank])

    def load_times_s(self, step: int) -> Floats:
        """Time a worker needs for each batch of a step, shape (micro-batches, ranks)."""
        data = self.data_of_rank
        shape = (self.programs.micro_batches, int(data.max()) + 1)
        rng = generator(self.scenario.run.seed, "loader", step)
        times = np.asarray(sample(self.scenario.dataloader.load_time, rng, shape), np.float64)[:, data]
        for noise in self.noises(Resource.LOADER):
            draw = generator(self.scenario.run.seed, "noise:loader", noise.stream, step)
            block = draw.standard_normal(shape)[:, data]
            targets = list(noise.targets)
            times[:, targets] *= kernel_noise(noise.cv, block[:, targets])
        return times


def build_setting(scenario: Scenario, programs: Programs, mesh: Mesh, fabric: Fabric) -> Setting:
    """Put a scenario's parts together; raises SpecError for places that the cluster does not have."""
    place = np.array(scenario.parallelism.rank_map or range(mesh.ranks), dtype=np.int64)
    software = stack(scenario.software.framework)
    setting = _setting(scenario, programs, mesh, fabric, place, software)
    setting.loads = loads_of(scenario, mesh, programs.micro_batches)
    return setting


def _setting(
    scenario: Scenario, programs: Programs, mesh: Mesh, fabric: Fabric, place: Ints, software: Stack
) -> Setting:
    gpus, gpu_of_rank = _gpus(scenario, fabric.node_of[place])
    return Setting(
        scenario=scenario,
        programs=programs,
        mesh=mesh,
        fabric=fabric,
        gpus=gpus,
        gpu_of_rank=gpu_of_rank,
        place=place,
        effects=effects_of(scenario, mesh, fabric, place),
        stack=software,
        launch_time_s=(
            software.launch_time_s
            if scenario.software.launch_time_s is None
            else scenario.software.launch_time_s
        ),
        scripts=scripts(programs),
    )


def _gpus(scenario: Scenario, node_of_rank: Ints) -> tuple[tuple[Gpu, ...], Ints]:
    cluster = scenario.cluster
    gpus = [cluster.gpu]
    index = np.zeros(len(node_of_rank), dtype=np.int64)
    for node, gpu in cluster.node_gpus.items():
        if gpu not in gpus:
            gpus.append(gpu)
        index[node_of_rank == node] = gpus.index(gpu)
    return tuple(gpus), index


def effects_of(scenario: Scenario, mesh: Mesh, fabric: Fabric, place: Ints) -> tuple[Effect, ...]:
    """What all faults do; raises SpecError for places that the cluster does not have."""
    return tuple(effect for one in effects_by_fault(scenario, mesh, fabric, place) for effect in one)


def effects_by_fault(scenario: Scenario, mesh: Mesh, fabric: Fabric, place: Ints) -> list[tuple[Effect, ...]]:
    """What each fault does, in the order of the scenario."""
    found = []
    for number, fault in enumerate(scenario.faults):
        context = Context(
            mesh.ranks, fabric.node_of[place], fabric, scenario.run.steps, scenario.run.seed, number
        )
        try:
            found.append(effects(fault, context))
        except SpecError as error:
            raise SpecError([finding.under(f"faults[{number}]") for finding in error.findings]) from error
    return found
