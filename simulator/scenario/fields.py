"""The fields of a scenario file, by section (pydantic: strict, nothing unknown)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from simulator.units import EXAMPLES, UnitError, parse


def _quantity(dimension: str, *, zero: bool = True) -> Any:
    def read(value: object) -> float:
        try:
            result = parse(value, dimension)
        except UnitError as error:
            raise ValueError(str(error)) from error
        if result < 0 or (not zero and result == 0):
            raise ValueError(f"{value!r}: expected {'0 or more' if zero else 'more than 0'}")
        return result

    return Annotated[
        float,
        BeforeValidator(read),
        WithJsonSchema({"type": "string", "examples": [EXAMPLES[dimension]]}),
    ]


if TYPE_CHECKING:  # what checkers see; at run time a quantity is read from text with a unit
    Seconds = float
    Bytes = float
    SomeBytes = float
    PerSecond = float
else:
    Seconds = _quantity("s")
    Bytes = _quantity("bytes")
    SomeBytes = _quantity("bytes", zero=False)
    PerSecond = _quantity("per_s", zero=False)
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Part = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Strict: no unknown fields, no text for numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ParallelismFields(Section):
    """How the model is spread over the GPUs."""

    tp: Count = Field(1, description="tensor parallel size")
    cp: Count = Field(1, description="context parallel size")
    pp: Count = Field(1, description="pipeline stages")
    dp: Count | None = Field(None, description="data-parallel ranks; what is left of the GPUs if not given")
    ep: Count = Field(1, description="expert parallel size, carved out of dp")
    expert_tp: Whole = Field(0, description="tensor parallel size of experts; 0: as tp")
    sequence_parallel: bool = Field(False, description="split norms and residuals over TP")
    schedule: str = Field(
        "1f1b", description="pipeline schedule: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, zb-v or dualpipe"
    )
    virtual_stages: Count = Field(1, description="chunks of the model on each stage")
    layers_per_stage: list[Whole] = Field(
        [], description="layers of each virtual stage in the order of the model; none: an even split"
    )
    sharding: str = Field("ddp", description="ddp, zero-1, zero-2, zero-3, fsdp or hsdp")
    shard_group: Whole = Field(0, description="hsdp: ranks that share one copy; 0: a node's")
    reshard_after_forward: bool = Field(True, description="fsdp: free parameters after the forward")
    cp_kind: str = Field("ring", description="context parallelism by ring, all-gather or all-to-all")
    order: list[str] = Field(["tp", "cp", "ep", "dp", "pp"], description="axes, fastest first")
    rank_map: list[Whole] | str = Field(
        [], description="GPU of each rank, or a file with one number a line; none: rank r on GPU r"
    )


class DistributionFields(Section):
    """A random quantity."""

    distribution: Literal["constant", "normal", "lognormal", "uniform", "exponential", "gamma"]
    mean: Seconds
    cv: NonNegative = 0.0


class LengthFields(Section):
    """A random number of tokens: by a distribution and its mean, or drawn from a list."""

    distribution: Literal["constant", "normal", "lognormal", "uniform", "exponential", "gamma"] | None = None
    mean: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cv: NonNegative = 0.0
    lengths: list[Count] | str | None = Field(None, description="of a corpus, or a file of one a line")


class BatchFields(Section):
    """What a step works through."""

    micro_batch: Count = Field(1, description="sequences (or samples) of one pass of a rank")
    global_batch: Count = Field(..., description="sequences (or samples) of a step, all ranks together")
    sequence_length: Count = Field(1, description="tokens of a sequence; 1 for a list of layers")
    documents: LengthFields | None = Field(
        None, description="packed documents: {distribution, mean, cv} of lengths, or {lengths: list or file}"
    )
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="tokens of the fullest rank of an EP group over the mean; 1: balanced"
    )


class EveryFields(Section):
    """Recompute every n-th layer."""

    every: Count


class FirstFields(Section):
    """Recompute the first n layers of each (virtual) pipeline stage."""

    first: Whole


class OffloadFields(Section):
    """Activations that wait in host memory."""

    layers: Whole = Field(0, description="of each (virtual) stage, from its first on")


class OverlapFields(Section):
    """What runs beside compute."""

    grad_reduce: bool = Field(True, description="reduce gradients during the backward")
    bucket_size: SomeBytes = Field("25 MiB", description="gradients reduced at once", validate_default=True)
    first_bucket: SomeBytes = Field("1 MiB", description="the first bucket's", validate_default=True)
    param_gather: bool = Field(True, description="zero: gather parameters during the forward")
    tp: bool = Field(False, description="pipeline TP's collectives with their GEMMs")
    prefetch: Whole = Field(1, description="fsdp: units gathered ahead")


class SoftwareFields(Section):
    """What runs on the host, and which kernels it launches."""

    framework: str = Field("pytorch", description="a software stack")
    compile: bool = Field(False, description="torch.compile")
    attention: str = Field("flash", description="unfused, flash, flash1, flash2, flash3, triton or cudnn")
    optimizer: str = Field("fused-adamw", description="fused-adamw, foreach-adamw, adamw, sgd")
    fused_loss: bool = Field(
        False, description="one kernel makes the loss, and the gradient in place of the logits"
    )
    cuda_graphs: bool = Field(False, description="one launch for a whole segment")
    launch_time: Seconds | None = Field(
        None, description="host time of one launch; the stack's own if not given"
    )
    launch_queue: Count = Field(1024, description="launches that the host may be ahead on a stream")
    gradient_clipping: bool = True
    clip_syncs_host: bool = Field(False, description="the gradient norm is read by the host")
    log_every: Whole = Field(10, description="steps between reads of the loss by the host; 0: never")
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    defer_grad_sync: bool = Field(True, description="reduce only after the last micro-batch (no_sync)")


class DataloaderFields(Section):
    """PyTorch's DataLoader."""

    workers: Whole = 8
    prefetch_factor: Count = 2
    load_time: Seconds | DistributionFields = Field(
        "0 s", description="one worker's time for one micro-batch of a rank", validate_default=True
    )
    pin_memory: bool = True
    copy_stream: bool = Field(True, description="host-to-device copies on a stream of their own")
    batch_bytes: Bytes | None = Field(None, description="copied to the GPU for each micro-batch")


class CheckpointFields(Section):
    """A pause of every rank."""

    every_steps: Whole = 0
    duration: Seconds = Field("0 s", validate_default=True)


class RunFields(Section):
    """What is simulated."""

    steps: Count = 10
    warmup: Whole = Field(2, description="steps left out of the figures")
    seed: Whole = 0
    engine: Literal["auto", "events", "lanes"] = "auto"
    fold: bool = Field(True, description="let ranks that do the same be one")
    memory: SomeBytes = Field("4 GiB", description="that the simulator may use", validate_default=True)


class ClusterFields(Section):
    """What it runs on."""

    topology: str | dict[str, Any] = Field(..., description="bundled name, path, or the fields inline")
    gpus: Count
    gpu: str | dict[str, Any] | None = Field(
        None, description="name, or {name, and figures that differ}; the topology's own if not given"
    )
    node_gpus: dict[int, str] = Field({}, description="other GPUs of single nodes")


class ScenarioFields(Section):
    """A scenario."""

    name: str = ""
    model: str | dict[str, Any] = Field(
        ..., description="bundled name, path to a Hugging Face config.json or a list of layers, or fields"
    )
    cluster: ClusterFields
    batch: BatchFields
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8-blockwise", "fp4"] = "bf16"
    parallelism: ParallelismFields = ParallelismFields()
    recompute: Literal["none", "selective", "full"] | EveryFields | FirstFields = Field(
        "none", description="none, selective, full, {every: n} layers, or the {first: n} of each stage"
    )
    offload: OffloadFields = OffloadFields()
    overlap: OverlapFields = OverlapFields()
    software: SoftwareFields = SoftwareFields()
    dataloader: DataloaderFields = DataloaderFields()
    checkpoint: CheckpointFields = CheckpointFields()
    faults: list[dict[str, Any]] = []
    run: RunFields = RunFields()
    collective_algorithm: str = Field("auto", description="auto, ring, tree, hierarchical, nvls, nvls-tree")
