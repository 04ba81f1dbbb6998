"""The frozen values that every layer shares: what a scenario says, with units resolved.

Quantities are plain floats in SI units with the unit in the name. Invariants that concern one value
sit in its `__post_init__`, so that a scenario built in Python is refused like one from a file; what
concerns several (a mesh that does not multiply to the GPUs) is in `scenario/consistency.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from simulator.errors import Finding, SpecError

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | Mapping[str, Value] | None"


def require(ok: bool, path: str, message: str) -> None:
    """Raise a SpecError for the field `path` unless `ok`."""
    if not ok:
        raise SpecError(Finding(path, message))


def _finite_positive(value: float, path: str) -> None:
    require(math.isfinite(value) and value > 0, path, f"{value!r}: expected a finite value above 0")


def _at_least(value: int, least: int, path: str) -> None:
    require(value >= least, path, f"{value!r}: expected a whole number of {least} or more")


# ----------------------------------------------------------------------------------------- model


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: `count` routed experts of width `ffn`, `top_k` chosen for each token."""

    count: int
    top_k: int
    ffn: int
    shared: int = 0  # always-on experts
    shared_ffn: int = 0  # width of all shared experts together
    dense_layers: tuple[int, ...] = ()  # layers (from 0) that keep a dense MLP
    capacity_factor: float | None = None  # None: dropless
    router_bias: bool = False
    shared_gate: bool = False  # the shared experts' output is weighed by a gate of its own

    def __post_init__(self) -> None:
        _at_least(self.count, 1, "experts.count")
        require(
            1 <= self.top_k <= self.count,
            "experts.top_k",
            f"{self.top_k}: expected 1 to experts.count ({self.count})",
        )
        _at_least(self.ffn, 1, "experts.ffn")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). `q_lora_rank` 0: no query compression."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer by its fields."""

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden / heads
    gated_mlp: bool = False
    activation: str = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "rope", "alibi", "none"] = "learned"
    max_positions: int = 0  # rows of a learned position table
    tied_embeddings: bool = False
    linear_bias: bool = True
    qkv_bias: bool | None = None  # None: as linear_bias
    proj_bias: bool | None = None  # of the attention's output; None: as linear_bias
    norm_bias: bool | None = None  # None: of a LayerNorm, as linear_bias
    norm_weights: bool = True
    head_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False  # over all heads together, not over each
    attention_sinks: bool = False  # a learned logit for each head beside the scores
    norms_per_layer: int = 2  # 1: attention and MLP share one; 4: also after each
    sliding_window: int = 0  # 0: full attention everywhere
    sliding_window_every: int = 1  # of every n layers, all but the last use the window; 1: all of them
    dropout: float = 0.0
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    multi_token_prediction_layers: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "vocab"):
            _at_least(getattr(self, name), 1, name)
        layernorm = self.norm == "layernorm"
        for name, given in (("qkv_bias", True), ("proj_bias", True), ("norm_bias", layernorm)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.linear_bias and given)
        require(
            self.norms_per_layer in (1, 2, 4),
            "norms_per_layer",
            f"{self.norms_per_layer}: expected 1, 2 or 4",
        )
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            require(
                self.hidden % self.heads == 0,
                "heads",
                f"{self.heads}: does not divide hidden ({self.hidden}); give head_dim",
            )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        require(
            self.heads % self.kv_heads == 0,
            "kv_heads",
            f"{self.kv_heads}: does not divide heads ({self.heads})",
        )

    def is_moe_layer(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """A layer of a measured or tabulated network; figures are per sample. Give FLOPs and bytes, or measured times."""

    name: str
    parameters: int
    forward_flops: float = 0.0
    forward_bytes: float = 0.0  # activations and weights moved through HBM, a sample
    forward_time_s: float | None = None
    backward_time_s: float | None = None
    activation_bytes: float = 0.0
    repeat: int = 1
    tensors: tuple[int, ...] = ()  # elements of each parameter tensor in order of registration; () one tensor


@dataclass(frozen=True, slots=True)
class LayerList:
    """A network as a plain list of layers, in the order of the forward pass."""

    name: str
    layers: tuple[PlainLayer, ...]
    kernels_per_layer: int = 4
    sample: str = "sample"  # what one sample is called (image, row)
    source: str = ""


Model: TypeAlias = Transformer | LayerList

# -------------------------------------------------------------------------------------- hardware


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator: data-sheet figures (dense peaks) and measured kernel constants."""

    name: str
    peak_flops_per_s: Mapping[str, float]  # by precision: fp32, tf32, fp16, bf16, fp8, fp4
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    sms: int
    clock_hz: float
    nvlink_bandwidth_bytes_per_s: float  # one direction, all links of a GPU together; 0: none
    pcie_bandwidth_bytes_per_s: float  # one direction
    power_w: float
    price_usd_per_hour: float
    vendor: str = "nvidia"
    l2_bytes: float = 0.0
    vector_flops_per_s: float = 0.0  # CUDA cores, fp32
    constants: Mapping[str, float] = field(default_factory=dict)  # measured; names in hardware/
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """A network by family and that family's own parameters (validated by the family)."""

    name: str
    family: str
    parameters: Mapping[str, Value]
    gpu: str = ""  # the GPU that the topology ships with
    source: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`gpus` GPUs on a topology. `node_gpus` names other GPUs for single nodes (a mixed fleet)."""

    topology: Topology
    gpus: int
    gpu: Gpu
    node_gpus: Mapping[int, Gpu] = field(default_factory=dict)


# ------------------------------------------------------------------------------ how it is trained

Precision: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8-blockwise", "fp4"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees along the axes. `dp` counts all data-parallel ranks; `ep` is carved out of them."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    expert_tp: int = 0  # 0: experts are split over TP like the dense layers
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1
    layers_per_stage: tuple[int, ...] = ()  # by virtual stage in the order of the model; () an even split
    sharding: Literal["ddp", "zero-1", "zero-2", "zero-3", "fsdp", "hsdp"] = "ddp"
    shard_group: int = 0  # hsdp: ranks that share one copy; 0: a node's
    reshard_after_forward: bool = True
    cp_kind: str = "ring"  # registered in model/context_parallel.py
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")  # fastest first
    rank_map: tuple[int, ...] = ()  # rank -> GPU; () the identity


@dataclass(frozen=True, slots=True)
class Distribution:
    """A non-negative random quantity by mean and coefficient of variation."""

    kind: Literal["constant", "normal", "lognormal", "uniform", "exponential", "gamma"]
    mean: float
    cv: float = 0.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.mean) and self.mean >= 0, "mean", f"{self.mean!r}: expected 0 or more")
        require(math.isfinite(self.cv) and self.cv >= 0, "cv", f"{self.cv!r}: expected 0 or more")


@dataclass(frozen=True, slots=True)
class Documents:
    """Packed documents: lengths drawn until the sequence is full; attention works within each.

    `lengths`: drawn from these (some corpus'), in place of the distribution.
    """

    length: Distribution = Distribution("constant", 0.0)  # tokens
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for length in self.lengths:
            _at_least(length, 1, "lengths")
        require(bool(self.lengths) or self.length.mean > 0, "length.mean", "expected more than 0, or lengths")


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples are sequences (of `sequence_length` tokens) or whatever a plain layer list calls a sample."""

    micro_batch: int
    global_batch: int
    sequence_length: int = 1
    documents: Documents | None = None
    expert_imbalance: float = 1.0  # load of an EP group's fullest rank over the mean

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.expert_imbalance) and self.expert_imbalance >= 1,
            "batch.expert_imbalance",
            f"{self.expert_imbalance!r}: expected 1 or more",
        )


@dataclass(frozen=True, slots=True)
class Recompute:
    """`none`, `selective` (the attention core), `full`, `every` n-th layer in full, or the `first` n layers
    of each (virtual) pipeline stage."""

    kind: Literal["none", "selective", "full", "every", "first"] = "none"
    every: int = 1
    first: int = 0


@dataclass(frozen=True, slots=True)
class Offload:
    """Activations of the first `layers` layers of each (virtual) stage wait in host memory."""

    layers: int = 0


@dataclass(frozen=True, slots=True)
class Overlap:
    grad_reduce: bool = True
    bucket_size_bytes: float = 25 * 2.0**20
    first_bucket_bytes: float = 2.0**20
    param_gather: bool = True
    tp: bool = False
    prefetch: int = 1  # FSDP: units gathered ahead


@dataclass(frozen=True, slots=True)
class Software:
    """What runs on the host and which kernels it launches."""

    framework: str = "pytorch"  # a stack registered in hardware/
    compile: bool = False
    attention: str = "flash"
    optimizer: str = "fused-adamw"
    fused_loss: bool = False  # cross-entropy leaves the gradient in the logits' place, in their precision
    cuda_graphs: bool = False
    launch_time_s: float | None = None  # None: the stack's own
    launch_queue: int = 1024
    gradient_clipping: bool = True
    clip_syncs_host: bool = False
    log_every: int = 10  # steps between `.item()` of the loss; 0: never
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    defer_grad_sync: bool = True  # no_sync: reduce only after the last micro-batch


@dataclass(frozen=True, slots=True)
class Dataloader:
    """PyTorch's DataLoader: each worker loads whole batches, round-robin, delivered in order."""

    workers: int = 8
    prefetch_factor: int = 2
    load_time: Distribution = Distribution("constant", 0.0)  # one worker, one batch (micro-batch) of a rank
    pin_memory: bool = True
    copy_stream: bool = True  # host-to-device copy on a stream of its own
    batch_bytes: float | None = None  # None: 8 bytes a token, or the list's samples


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A pause of every rank's host for `duration_s` every `every_steps` steps; 0: never."""

    every_steps: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    steps: int = 10
    warmup: int = 2
    seed: int = 0
    engine: Literal["auto", "events", "lanes"] = "auto"
    fold: bool = True
    memory_bytes: float = 4 * 2.0**30  # of the lanes engine's blocks

    def __post_init__(self) -> None:
        _at_least(self.steps, 1, "steps")
        _at_least(self.warmup, 0, "warmup")
        require(
            self.warmup < self.steps,
            "warmup",
            f"{self.warmup}: expected fewer than steps ({self.steps}); nothing would be measured",
        )


# ------------------------------------------------------------------------------------------ fault


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault sits: exactly one way is given (all of them empty: everywhere)."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    nics: tuple[str, ...] = ()  # "NODE:NIC"
    links: tuple[str, ...] = ()  # names or patterns of links of the fabric
    fraction: float | None = None  # of nodes (or ranks, see `of`), drawn from the seed
    of: Literal["rank", "node"] = "node"


@dataclass(frozen=True, slots=True)
class When:
    """When a fault acts. Steps count from 0, warm-up included; `to_step` is not part of it.

    Nothing given: always. `every_steps` with `phase`: "common" (step k, 2k, ...; all places at once)
    or "private" (each place at a step of its own within the period). `per_s`: a Poisson process.
    """

    from_step: int | None = None
    to_step: int | None = None
    from_s: float | None = None
    to_s: float | None = None
    every_steps: int | None = None
    phase: Literal["common", "private"] = "common"
    per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as the scenario gives it; `kind` is registered in faults/, which gives `size` its meaning."""

    kind: str
    place: Place = Place()
    when: When = When()
    size: Mapping[str, Value] = field(default_factory=dict)


# --------------------------------------------------------------------------------------- scenario


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a simulation needs, validated and with units resolved."""

    name: str
    model: Model
    cluster: Cluster
    batch: Batch
    precision: Precision = "bf16"
    parallelism: Parallelism = Parallelism()
    recompute: Recompute = Recompute()
    offload: Offload = Offload()
    overlap: Overlap = Overlap()
    software: Software = Software()
    dataloader: Dataloader = Dataloader()
    checkpoint: Checkpoint = Checkpoint()
    faults: tuple[Fault, ...] = ()
    run: Run = Run()
    collective_algorithm: str = "auto"  # auto, or one registered in network/

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on each data-parallel rank."""
        return self.batch.global_batch // (self.batch.micro_batch * self.parallelism.dp)
