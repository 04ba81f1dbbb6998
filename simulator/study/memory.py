"""Does a scenario fit in memory? The worst pipeline stage, and what to change if not."""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.model.memory import StageMemory, stage_memory
from simulator.parallel.mesh import build_mesh
from simulator.parallel.schedules import find_schedule
from simulator.parallel.stages import stage_blocks
from simulator.spec import Scenario
from simulator.units import show_bytes


def memory_by_stage(scenario: Scenario) -> tuple[StageMemory, ...]:
    """Memory of a rank of every pipeline stage."""
    parallelism = scenario.parallelism
    plan = find_schedule(parallelism.schedule)
    virtual = plan.virtual_stages or parallelism.virtual_stages
    stages = parallelism.pp
    chunks = stage_blocks(scenario)
    mesh = build_mesh(parallelism, _gpus_per_node(scenario))
    sharded = parallelism.sharding in ("fsdp", "zero-3", "hsdp")
    groups = {
        False: mesh.size("shard" if sharded else "dp"),
        True: mesh.size("expert-shard" if sharded else "expert-dp"),
    }
    communicators = 1 + sum(mesh.size(axis) > 1 for axis in ("tp", "cp", "ep", "pp", "dp", "replica"))
    return tuple(
        stage_memory(
            scenario,
            chunks[stage],
            plan.in_flight(stage, stages, scenario.micro_batches, virtual),
            stage,
            groups,
            communicators,
        )
        for stage in range(stages)
    )


def _gpus_per_node(scenario: Scenario) -> int:
    given = scenario.cluster.topology.parameters.get("gpus_per_node")
    return given if isinstance(given, int) else 8


def capacity_bytes(scenario: Scenario) -> float:
    """HBM of the smallest GPU."""
    return min(gpu.memory_bytes for gpu in (scenario.cluster.gpu, *scenario.cluster.node_gpus.values()))


def check_memory(scenario: Scenario, allow_oom: bool = False) -> StageMemory:
    """The fullest stage's memory. Raises SpecError if it does not fit, unless `allow_oom`."""
    worst = max(memory_by_stage(scenario), key=lambda stage: stage.peak_bytes)
    capacity = capacity_bytes(scenario)
    if worst.peak_bytes > capacity and not allow_oom:
        parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in worst.items if size)
        raise SpecError.of(
            "",
            f"out of memory: stage {worst.stage} needs {show_bytes(worst.peak_bytes)} of "
            f"{show_bytes(capacity)} ({parts}); {_advice(scenario)}; or simulate it anyway with --allow-oom",
        )
    return worst


def _advice(scenario: Scenario) -> str:
    """Changes that make it fit, each tried."""
    from simulator.study.fit import enough

    found = enough(scenario)
    if not found:
        return "no two changes together would let it fit (trainsim memory tries more)"
    return f"what would fit: {', or '.join(found[:6])} (trainsim memory prices them)"
