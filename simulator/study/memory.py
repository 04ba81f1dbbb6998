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
    mesh = build_mesh(parallelism)
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


def check_memory(scenario: Scenario, allow_oom: bool = False) -> StageMemory:
    """The fullest stage's memory. Raises SpecError if it does not fit, unless `allow_oom`."""
    worst = max(memory_by_stage(scenario), key=lambda stage: stage.peak_bytes)
    gpus = (scenario.cluster.gpu, *scenario.cluster.node_gpus.values())
    capacity = min(gpu.memory_bytes for gpu in gpus)
    if worst.peak_bytes > capacity and not allow_oom:
        parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in worst.items if size)
        advice = "; ".join(advise(scenario))
        raise SpecError.of(
            "",
            f"out of memory: stage {worst.stage} needs {show_bytes(worst.peak_bytes)} of "
            f"{show_bytes(capacity)} ({parts}); {advice}; or simulate it anyway with --allow-oom",
        )
    return worst


def advise(scenario: Scenario) -> list[str]:
    """Changes that would save memory, those that cost least first."""
    parallelism = scenario.parallelism
    found = []
    if parallelism.dp > 1 and parallelism.sharding == "ddp":
        found.append("shard the optimizer (parallelism.sharding: zero-1) or all (fsdp)")
    if scenario.recompute.kind == "none":
        found.append("recompute (recompute: selective, then full)")
    if not scenario.offload.layers:
        found.append("send activations to the host (offload.layers)")
    if scenario.batch.micro_batch > 1:
        found.append("a smaller batch.micro_batch")
    found.append("more parallelism.tp or parallelism.pp")
    return found
