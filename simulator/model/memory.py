"""Memory of one rank: parameters, gradients, optimizer state, activations, what works in between, buffers.

Mixed precision with Adam keeps 2 bytes of a parameter, 2 or 4 of its gradient and 12 of optimizer state
(fp32 copy and two moments); ZeRO spreads the optimizer's part (stage 1), gradients (2) and parameters (3)
over the data-parallel ranks (Rajbhandari et al. 2020, arXiv:1910.02054, section 3). FSDP's shards are fp32
themselves: 4 bytes of a parameter, 4 of its gradient, 8 of state.

The peak is looked for block by block: while a block's backward runs, the blocks behind it have let go of
what they kept, and its own gradients, its recomputed forward and FSDP's gathered units are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.allocator import reserved
from simulator.model.blocks import Block, Parameter
from simulator.model.offload import buffer_bytes, kept_bytes
from simulator.model.recipes import recipe
from simulator.spec import Scenario

#: The CUDA context with loaded kernels, about (an estimate: it differs by driver and libraries).
CONTEXT_BYTES: Final = 0.5e9
#: A communicator of NCCL: 4 MiB (`NCCL_BUFFSIZE`'s default) for each of up to 32 channels, to send and to
#: receive (NCCL's environment variables; `MAXCHANNELS` in nccl's src/include).
COMMUNICATOR_BYTES: Final = 2.0 * 32 * 4 * 2**20
#: cuBLAS: PyTorch's workspace (aten/src/ATen/cuda/CublasHandlePool.cpp) and TransformerEngine's
#: (pytorch/module/base.py, `get_cublas_workspace_size_bytes`), 32 MiB each on Hopper and later.
WORKSPACE_BYTES: Final = 32.0 * 2**20

#: fp32 copy and momentum; Adam has one moment more
_STATE_BYTES: Final = {"sgd": 8.0, "fused-sgd": 8.0}
_STAGE: Final = {"ddp": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3, "fsdp": 3, "hsdp": 3}
_FP32_SHARDS: Final = frozenset({"fsdp", "hsdp"})


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on a rank of one pipeline stage.

    `activations_bytes`: kept for the backward; `working_bytes`: beside them while the fullest block's backward
    runs; `buffers_bytes`: buckets, gathered units, placeholders, workspaces; `rounding_bytes`: the allocator's;
    `other_bytes`: outside the allocator (CUDA context, NCCL).
    """

    stage: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    other_bytes: float
    working_bytes: float = 0.0
    buffers_bytes: float = 0.0
    rounding_bytes: float = 0.0
    fullest: str = ""  # the block in whose backward the peak is

    @property
    def allocated_bytes(self) -> float:
        """The most that tensors take (`torch.cuda.max_memory_allocated`)."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.working_bytes
            + self.buffers_bytes
        )

    @property
    def peak_bytes(self) -> float:
        return self.allocated_bytes + self.rounding_bytes + self.other_bytes

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """(name, bytes), for tables."""
        return (
            ("parameters", self.parameters_bytes),
            ("gradients", self.gradients_bytes),
            ("optimizer", self.optimizer_bytes),
            ("activations", self.activations_bytes),
            (f"backward of {self.fullest}" if self.fullest else "backward", self.working_bytes),
            ("buffers and workspaces", self.buffers_bytes),
            ("rounding of the allocator", self.rounding_bytes),
            ("CUDA context and NCCL", self.other_bytes),
        )


@dataclass(frozen=True, slots=True)
class _Elements:
    """Bytes of an element of a parameter, its gradient and its optimizer state, and as it is gathered."""

    weight: float
    gradient: float
    state: float
    gathered: float
    reduced: float


def _elements(scenario: Scenario) -> _Elements:
    whole = scenario.precision in ("fp32", "tf32")
    reduced = 4.0 if whole or scenario.software.gradient_dtype == "fp32" else 2.0
    gathered = 4.0 if whole else 2.0
    state = _STATE_BYTES.get(scenario.software.optimizer, 12.0)
    if scenario.parallelism.sharding in _FP32_SHARDS:
        return _Elements(4.0, 4.0, state - 4.0, gathered, reduced)
    return _Elements(gathered, reduced, state - (4.0 if whole else 0.0), gathered, reduced)


def stage_memory(
    scenario: Scenario,
    chunks: Sequence[Sequence[Block]],
    in_flight: Sequence[int],
    stage: int = 0,
    groups: Mapping[bool, int] | None = None,
    communicators: int = 1,
) -> StageMemory:
    """Memory of a rank of a stage.

    `chunks`: the blocks of each of its virtual stages; `in_flight`: how many micro-batches each holds at once
    (PyTorch's own schedule of one stage: 1). `groups`: over how many ranks dense parameters (False) and
    experts (True) are sharded; `communicators`: process groups that a rank is in.
    """
    zero = _STAGE[scenario.parallelism.sharding]
    sizes = groups or {False: 1, True: 1}
    element = _elements(scenario)
    parameters = [one for blocks in chunks for block in blocks for one in block.parameters]

    def share(one: Parameter, from_stage: int) -> float:
        return one.numel / (sizes[one.expert] if zero >= from_stage else 1)

    tensors = (
        [element.weight * share(one, 3) for one in parameters],
        [element.gradient * share(one, 2) for one in parameters],
        [element.state * share(one, 1) for one in parameters],
    )
    activations = sum(
        held * sum(kept_bytes(scenario, blocks)) for blocks, held in zip(chunks, in_flight, strict=True)
    )
    working, gathered, fullest = _fullest(scenario, chunks, element, zero)
    return StageMemory(
        stage=stage,
        parameters_bytes=sum(tensors[0]),
        gradients_bytes=sum(tensors[1]),
        optimizer_bytes=sum(tensors[2]),
        activations_bytes=activations + buffer_bytes(scenario, chunks),
        working_bytes=working,
        buffers_bytes=gathered + _buffer_bytes(scenario, chunks, sum(tensors[1]), zero),
        rounding_bytes=_rounding(scenario, tensors),
        other_bytes=CONTEXT_BYTES + communicators * COMMUNICATOR_BYTES,
        fullest=fullest,
    )


def _fullest(
    scenario: Scenario, chunks: Sequence[Sequence[Block]], element: _Elements, zero: int
) -> tuple[float, float, str]:
    """(working bytes, bytes of gathered units and their gradients, name) of the block with the peak."""
    best = (0.0, 0.0, "")
    for blocks in chunks:
        freed, kept = 0.0, kept_bytes(scenario, blocks)
        for place in reversed(range(len(blocks))):
            working = blocks[place].working_bytes - freed
            gathered = _units(scenario, blocks, place, element) if zero == 3 else 0.0
            if working + gathered > best[0] + best[1]:
                best = (working, gathered, blocks[place].name)
            freed += kept[place]
    return best


def _units(scenario: Scenario, blocks: Sequence[Block], place: int, element: _Elements) -> float:
    """Gathered units while the block at `place` runs its backward, and gradients that are not reduced yet.

    Embedding and head belong to the root unit, which stays gathered from its forward to its backward.
    """
    gathered = range(max(0, place - max(0, scenario.overlap.prefetch)), place + 1)
    if not scenario.parallelism.reshard_after_forward:
        gathered = range(place + 1)
    there = {*gathered, *(i for i in range(place + 1) if blocks[i].kind != "layer")}
    weights = sum(blocks[i].numel for i in there) * element.gathered
    reducing = blocks[place + 1].numel if place + 1 < len(blocks) else 0
    return float(weights + blocks[place].numel * element.gathered + reducing * element.reduced)


def _buffer_bytes(
    scenario: Scenario, chunks: Sequence[Sequence[Block]], gradients_bytes: float, zero: int
) -> float:
    """Buffers that are there all the time: the modules' own, workspaces, copies of gradients to reduce."""
    habits = recipe(scenario.software)
    named = dict(_named(chunks))
    total = sum(named.values()) + WORKSPACE_BYTES * (2 if habits.placeholders else 1)
    if scenario.parallelism.dp * scenario.parallelism.cp == 1 or habits.contiguous or zero == 3:
        return total
    if zero == 0:  # DDP's buckets hold every gradient once more (torch.nn.parallel.DistributedDataParallel)
        return total + gradients_bytes
    return total + 2.0 * scenario.overlap.bucket_size_bytes


def _named(chunks: Sequence[Sequence[Block]]) -> Iterator[tuple[str, float]]:
    for blocks in chunks:
        for block in blocks:
            yield from block.buffers


def _rounding(scenario: Scenario, tensors: Sequence[Sequence[float]]) -> float:
    """What segments waste on parameters, gradients and state, where each is a tensor of its own."""
    if recipe(scenario.software).contiguous:
        return 0.0
    return float(sum(max(0.0, reserved(sizes) - sum(sizes)) for sizes in tensors))
