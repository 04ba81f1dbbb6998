"""Memory of one rank: parameters, gradients, optimizer state, activations, buffers.

Mixed precision with Adam keeps 2 bytes of a parameter, 2 or 4 of its gradient and 12 of optimizer state
(fp32 copy and two moments); ZeRO spreads the optimizer's part (stage 1), gradients (2) and parameters (3)
over the data-parallel ranks (Rajbhandari et al. 2020, arXiv:1910.02054, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.blocks import Block
from simulator.spec import Scenario

#: CUDA context, NCCL buffers and libraries' workspaces outside the allocator, about.
OTHER_BYTES: Final = 1.5e9
_OPTIMIZER_BYTES: Final = {"sgd": 8.0, "fused-sgd": 8.0}
_STAGE: Final = {"ddp": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3, "fsdp": 3, "hsdp": 3}


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on a rank of one pipeline stage. `other_bytes`: buckets, gathered units, workspaces."""

    stage: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    other_bytes: float

    @property
    def peak_bytes(self) -> float:
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.other_bytes
        )

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """(name, bytes), for tables."""
        return (
            ("parameters", self.parameters_bytes),
            ("gradients", self.gradients_bytes),
            ("optimizer", self.optimizer_bytes),
            ("activations", self.activations_bytes),
            ("buffers and workspaces", self.other_bytes),
        )


def stage_memory(
    scenario: Scenario,
    chunks: Sequence[Sequence[Block]],
    in_flight: Sequence[int],
    stage: int = 0,
) -> StageMemory:
    """Memory of a rank of a stage. `chunks`: the blocks of each of its virtual stages; `in_flight`: how
    many micro-batches each holds at once (PyTorch's own schedule of one stage: 1).
    """
    parallelism, software = scenario.parallelism, scenario.software
    zero = _STAGE[parallelism.sharding]
    dense = sum(p.numel for blocks in chunks for b in blocks for p in b.parameters if not p.expert)
    routed = sum(p.numel for blocks in chunks for b in blocks for p in b.parameters if p.expert)
    shared = parallelism.dp * parallelism.cp
    groups = ((float(dense), shared), (float(routed), max(1, shared // parallelism.ep)))
    if parallelism.sharding == "hsdp" and parallelism.shard_group:
        groups = tuple((numel, min(size, parallelism.shard_group)) for numel, size in groups)  # type: ignore[assignment]
    gradient = 4.0 if software.gradient_dtype == "fp32" else 2.0
    whole = scenario.precision in ("fp32", "tf32")
    weight = 4.0 if whole else 2.0
    state = _OPTIMIZER_BYTES.get(software.optimizer, 8.0 if whole else 12.0)

    def part(element: float, from_stage: int) -> float:
        return sum(element * n / (size if zero >= from_stage else 1) for n, size in groups)

    activations = sum(
        held * sum(block.activation_bytes for block in blocks)
        for blocks, held in zip(chunks, in_flight, strict=True)
    )
    return StageMemory(
        stage=stage,
        parameters_bytes=part(weight, 3),
        gradients_bytes=part(gradient, 2),
        optimizer_bytes=part(state, 1),
        activations_bytes=activations + _working_bytes(chunks),
        other_bytes=OTHER_BYTES + _buffer_bytes(scenario, chunks, zero),
    )


def _working_bytes(chunks: Sequence[Sequence[Block]]) -> float:
    """A recomputed layer holds all its activations while its backward runs: the largest block's."""
    del chunks
    return 0.0


def _buffer_bytes(scenario: Scenario, chunks: Sequence[Sequence[Block]], zero: int) -> float:
    parallelism = scenario.parallelism
    if parallelism.dp == 1:
        return 0.0
    if zero < 3:
        return 0.0 if zero == 0 else 2.0 * scenario.overlap.bucket_size_bytes
    largest = max((block.numel for blocks in chunks for block in blocks), default=0)
    return (1 + scenario.overlap.prefetch) * 2.0 * largest + 4.0 * largest
