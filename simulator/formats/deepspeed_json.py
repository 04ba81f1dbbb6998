"""DeepSpeed's JSON as a scenario, with DeepSpeed's defaults for what is not given.

Options and defaults: DeepSpeed's documentation, "DeepSpeed Configuration JSON".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.formats.foreign import Fields, Foreign, foreign_format, read_json

#: where an option goes that says "auto": whoever calls DeepSpeed fills it in
_LEFT_OPEN: Final = {
    "train_batch_size": "batch.global_batch",
    "train_micro_batch_size_per_gpu": "batch.micro_batch",
    "gradient_accumulation_steps": "batch.global_batch",
    "gradient_clipping": "software.gradient_clipping",
    "bf16.enabled": "precision",
    "fp16.enabled": "precision",
    "optimizer.type": "software.optimizer",
    "zero_optimization.reduce_bucket_size": "overlap.bucket_size",
}
_EFFECTLESS: Final = (
    *("scheduler.*", "optimizer.params.*", "steps_per_print", "dump_state", "prescale_gradients"),
    *("tensorboard.*", "wandb.*", "csv_monitor.*", "comet.*", "flops_profiler.*", "comms_logger.*"),
    *("monitor_config.*", "gradient_predivide_factor", "zero_allow_untested_optimizer", "seed"),
    *("fp16.loss_scale", "fp16.loss_scale_window", "fp16.initial_scale_power", "fp16.hysteresis"),
    *("fp16.min_loss_scale", "fp16.consecutive_hysteresis", "fp16.auto_cast", "bf16.loss_scale"),
    *("zero_optimization.contiguous_gradients", "zero_optimization.elastic_checkpoint"),
    *(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.load_from_fp32_weights",
    ),
    *(
        "zero_optimization.ignore_unused_parameters",
        "checkpoint.*",
        "elasticity.*",
        "aio.*",
        "zero_optimization.offload_optimizer.*",
        "zero_optimization.offload_param.*",
    ),
    *("zero_force_ds_cpu_optimizer", "memory_breakdown", "disable_allgather", "dataloader_drop_last"),
)
_OPTIMIZERS: Final = {"Adam": "fused-adamw", "AdamW": "fused-adamw", "SGD": "sgd"}


@foreign_format("DeepSpeed JSON", lambda path, text: path.suffix == ".json", order=2)
def deepspeed(path: Path) -> Foreign:
    """DeepSpeed's JSON. Raises FileFormatError for what is none, SpecError for values that make no sense."""
    data, line_of = read_json(path)
    fields = Fields(path, data, line_of, later="auto")
    found = Foreign({"software": {"framework": "megatron-deepspeed"}})
    _batch(fields, found)
    _zero(fields, found)
    _precision(fields, found)
    _rest(fields, found)
    fields.check()
    found.unknown, found.effectless = fields.rest(_EFFECTLESS)
    for name in fields.left_open:
        where = _LEFT_OPEN.get(name)
        found.missing.append(f'{where or name}: {name} is "auto"; whoever calls DeepSpeed fills it in')
    found.missing += [f"{name}: not in the file" for name in ("cluster", "model", "batch.sequence_length")]
    if found.get("batch.global_batch") is None and "train_batch_size" not in fields.left_open:
        found.missing.append("batch.global_batch: not in the file")
    return found


def _batch(fields: Fields, found: Foreign) -> None:
    whole = fields.whole("train_batch_size")
    micro = fields.whole("train_micro_batch_size_per_gpu")
    steps = fields.whole("gradient_accumulation_steps")
    if whole and micro and steps and whole % (micro * steps):
        fields.refuse(
            "train_batch_size", whole,
            f"a multiple of train_micro_batch_size_per_gpu x gradient_accumulation_steps ({micro} x {steps})",
        )  # fmt: skip
    elif whole and micro and steps:
        found.set("parallelism.dp", whole // (micro * steps))
    elif micro and steps and not whole:
        found.missing.append(f"batch.global_batch: {micro * steps} sequences a data-parallel rank")
    found.set("batch.global_batch", whole)
    found.set("batch.micro_batch", micro)
    found.set("parallelism.tp", fields.whole("tensor_parallel.autotp_size", 0) or None)
    ulysses = fields.whole("sequence_parallel_size")
    if ulysses and ulysses > 1:
        found.set("parallelism.cp", ulysses)
        found.set("parallelism.cp_kind", "all-to-all")


def _zero(fields: Fields, found: Foreign) -> None:
    at = "zero_optimization."
    stage = fields.choice(f"{at}stage", {0: 0, 1: 1, 2: 2, 3: 3}) or 0
    found.set("parallelism.sharding", ("ddp", "zero-1", "zero-2", "zero-3")[stage])
    overlap = fields.flag(f"{at}overlap_comm")
    found.set("overlap.grad_reduce", stage == 3 if overlap is None else overlap)
    found.set("overlap.param_gather", stage == 3)
    bucket = fields.whole(f"{at}reduce_bucket_size")
    if bucket is None and f"{at}reduce_bucket_size" not in fields.left_open:
        bucket = 500_000_000
    communicated = fields.choice("communication_data_type", {"fp32": 4, "fp16": 2, "bf16": 2, "bfp16": 2})
    if bucket and stage:
        for name in ("bucket_size", "first_bucket"):
            found.set(f"overlap.{name}", f"{bucket * (communicated or 2)} B")
    if fields.flag(f"{at}reduce_scatter") is False:
        fields.cannot(f"{at}reduce_scatter", "false: gradients are reduce-scattered")
    group = fields.whole(f"{at}zero_hpz_partition_size")
    if group and group > 1:
        fields.cannot(f"{at}zero_hpz_partition_size", f"{group}: parameters are gathered from all ranks")
    for name in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        if fields.flag(at + name):
            fields.cannot(at + name, "16 bits are sent")
    for what in ("offload_optimizer", "offload_param"):
        device = fields.choice(f"{at}{what}.device", {"none": "", "cpu": "cpu", "nvme": "nvme"})
        if device:
            fields.cannot(f"{at}{what}.device", f"{device}: everything stays on the GPU")
        fields.flag(f"{at}{what}.pin_memory")
    for name in (
        "allgather_bucket_size", "allgather_partitions", "round_robin_gradients", "sub_group_size",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
    ):  # fmt: skip
        if fields.raw(at + name) is not None:
            fields.cannot(
                at + name, "has no counterpart; one unit is gathered ahead, each bucket reduced whole"
            )


def _precision(fields: Fields, found: Foreign) -> None:
    on = [name for name in ("bf16", "fp16") if fields.flag(f"{name}.enabled")]
    if len(on) > 1:
        fields.refuse("fp16.enabled", True, "false where bf16.enabled is true")
    elif on:
        found.set("precision", on[0])
    elif not fields.left_open or not {"bf16.enabled", "fp16.enabled"} & set(fields.left_open):
        found.set("precision", "fp32")
    gradient = fields.choice("data_types.grad_accum_dtype", {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"})
    found.set("software.gradient_dtype", gradient or ("fp16" if on == ["fp16"] else None))


def _rest(fields: Fields, found: Foreign) -> None:
    clip = fields.number("gradient_clipping")
    if "gradient_clipping" not in fields.left_open:
        found.set("software.gradient_clipping", bool(clip))
    kind = fields.word("optimizer.type")
    if kind in _OPTIMIZERS:
        found.set("software.optimizer", _OPTIMIZERS[kind])
    elif kind:
        fields.cannot("optimizer.type", f"{kind}: fused AdamW is simulated")
    if fields.flag("wall_clock_breakdown"):
        fields.cannot("wall_clock_breakdown", "its synchronisations are not simulated")
    at = "activation_checkpointing."
    for name in (
        "partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
        "synchronize_checkpoint_boundary", "profile",
    ):  # fmt: skip
        if fields.flag(at + name):
            fields.cannot(at + name, "give recompute")
    if fields.whole(f"{at}number_checkpoints"):
        fields.cannot(f"{at}number_checkpoints", "give recompute")
