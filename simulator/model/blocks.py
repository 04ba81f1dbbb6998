"""A model cut into blocks: what one rank computes and communicates, in order, before anybody schedules it.

`model/` fills these values for a scenario (tensor, context and expert parallel sizes already applied);
`program/` strings them into instructions; `hardware/` gives each kernel its time. So none of the
three knows the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of one kind of kernel on one rank, independent of the GPU.

    `op` names the kernel model in hardware/ (gemm, grouped-gemm, norm, elementwise, softmax,
    cross-entropy, embedding, optimizer, copy, timed, roofline; attention by implementation and pass:
    flash1-forward, flash1-backward, flash2-..., flash3-..., cudnn-...; unfused attention is gemms and
    a softmax). `flops` and `bytes` (HBM read and
    written) are totals. `shape` is the op's own: gemm (m, n, k, batch); grouped-gemm (groups, m, n, k);
    attention (batch, heads, kv_heads, query_length, key_length, head_dim, v_head_dim).
    `launches`: kernels of this kind, each with its cost on the host. `model_flops` is what MFU counts.
    `varies` names what the work is proportional to where it differs by rank and micro-batch
    ("attention": the documents drawn; "experts": the router's load), "" where it does not.
    """

    name: str
    op: str
    flops: float = 0.0
    bytes: float = 0.0
    shape: tuple[int, ...] = ()
    precision: str = "bf16"
    layout: str = ""  # gemm: TN forward, NN input gradient, NT weight gradient; attention: causal | full
    launches: int = 1
    model_flops: float = 0.0
    varies: str = ""
    time_s: float = 0.0  # op "timed": measured, taken as it is


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels one after the other on the compute stream. `part`: which half of a split backward they are.

    `settles`: they need what was exchanged beside the run before them.
    """

    kernels: tuple[Kernel, ...]
    part: Literal["forward", "input", "weight", "recompute"] = "forward"
    gradients: tuple[int, ...] = ()  # parameters (index in the block) whose gradient is whole after this
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective inside the block, over `axis` ("tp", "cp", "ep"); `size_bytes` as nccl-tests counts it.

    `overlaps`: may run beside the Run that follows it (asynchronous), else the next waits for it.
    """

    kind: str  # all-reduce, reduce-scatter, all-gather, all-to-all, send-recv
    axis: str
    size_bytes: float
    overlaps: bool = False
    part: Literal["forward", "input", "weight", "recompute"] = "forward"


Piece: TypeAlias = Run | Exchange


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor as this rank holds it before data-parallel sharding."""

    name: str
    numel: int
    expert: bool = False  # reduced over the expert-data axis only
    replicated: bool = (
        False  # the same on all TP ranks (norms): with sequence parallelism all-reduced over tp
    )


@dataclass(frozen=True, slots=True)
class Block:
    """An embedding, a layer or a head: the unit that stages, recompute and FSDP deal in."""

    name: str
    parameters: tuple[Parameter, ...]
    forward: tuple[Piece, ...]
    backward: tuple[
        Piece, ...
    ]  # in order of execution; a recomputed forward stands first, as part "recompute"
    activation_bytes: float = 0.0  # kept from forward to backward for one micro-batch
    boundary_bytes: float = 0.0  # the block's output, sent on by a pipeline stage
    host_s: float = 0.0  # Python time of one pass beside the launches (autograd, module hooks)
    kind: Literal["embedding", "layer", "head"] = "layer"
    working_bytes: float = 0.0  # live beside what is kept while the block's backward runs
    buffers: tuple[tuple[str, float], ...] = ()  # (name, bytes) there all the time; equal names are shared

    @property
    def numel(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)
