"""torchtitan's TOML as a scenario, with torchtitan's defaults for what is not given.

Options and defaults: pytorch/torchtitan, torchtitan/config/job_config.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from simulator.errors import FileFormatError
from simulator.formats.foreign import Fields, Foreign, foreign_format
from simulator.formats.topology_text import read_text

_SCHEDULES: Final = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "ZBVZeroBubble": "zb-v",
}
#: torchtitan gives looped schedules two stages a rank where nothing else is said
_LOOPED: Final = ("interleaved-1f1b",)
_MODELS: Final = {
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
}
#: sections of float8, of older and newer files
_FLOAT8: Final = ("float8", "quantize.linear.float8")
_FLOAT8_SWITCHES: Final = (
    ("enable_fsdp_float8_all_gather", "parameters are gathered in 16 bits"),
    ("precompute_float8_dynamic_scale_for_fsdp", "scales are computed one by one"),
    ("force_recompute_fp8_weight_in_bwd", "casts of weights are kept"),
    ("emulate", "emulation is not simulated"),
)
_EFFECTLESS: Final = (
    *("job.*", "profiling.*", "metrics.*", "lr_scheduler.*", "validation.*", "fault_tolerance.*"),
    *("experimental.custom_import", "experimental.custom_args_module", "comm.*"),
    *("optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "optimizer.weight_decay"),
    *("training.steps", "training.warmup_steps", "training.dataset", "training.dataset_path"),
    *("training.seed", "training.deterministic"),
    *("model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion"),
    *(
        "compile.backend",
        "compile.components",
        "checkpoint.*",
        "float8.filter_fqns",
        "quantize.linear.float8.filter_fqns",
    ),
    *("activation_checkpoint.early_stop", "activation_checkpoint.visualize_memory_budget_pareto"),
)


@foreign_format("torchtitan TOML", lambda path, text: path.suffix == ".toml")
def torchtitan(path: Path) -> Foreign:
    """torchtitan's TOML. Raises FileFormatError for what is none, SpecError for values that make no sense."""
    text = read_text(path)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path}: not TOML: {error}") from error
    fields = Fields(path, data, lambda name: _line(text, name))
    found = Foreign(
        {"software": {"framework": "torchtitan", "attention": "cudnn"}, "parallelism": {"sharding": "fsdp"}}
    )
    _model(fields, found)
    _parallelism(fields, found)
    _batch(fields, found)
    _software(fields, found)
    _recompute(fields, found)
    fields.check()
    found.unknown, found.effectless = fields.rest(_EFFECTLESS)
    found.missing.append("cluster: not in the file")
    return found


def _line(text: str, name: str) -> int | None:
    """The line of a key in its section."""
    section, _, key = name.rpartition(".")
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if header:
            here = header[1]
        elif re.match(rf"\s*{re.escape(key)}\s*=", line) and here == section:
            return number
    return None


def _model(fields: Fields, found: Foreign) -> None:
    name, flavor = fields.word("model.name"), fields.word("model.flavor")
    known = _MODELS.get((name or "", flavor or ""))
    if known:
        found.set("model", known)
    elif name or flavor:
        found.missing.append(f"model: flavor {flavor or '?'} of {name or '?'} is none that is bundled")
    else:
        found.missing.append("model: not in the file")
    converters = fields.raw("model.converters")
    if converters is not None and not (
        isinstance(converters, list) and all(isinstance(one, str) for one in converters)
    ):
        fields.refuse("model.converters", converters, "a list of names")
        converters = []
    names = [
        str(one).replace("quantize.linear.", "").replace("quantize.grouped_mm.", "")
        for one in converters or ()
    ]
    recipes = {"tensorwise": "fp8", "rowwise": "rowwise", "rowwise_with_gw_hp": "rowwise", "": "fp8"}
    for section in _FLOAT8:
        recipe = fields.choice(f"{section}.recipe_name", recipes)
        if "float8" in names and recipe == "rowwise":
            fields.cannot(f"{section}.recipe_name", "scales by row: scales by tensor are simulated")
        for name, why in _FLOAT8_SWITCHES:
            if fields.flag(f"{section}.{name}"):
                fields.cannot(f"{section}.{name}", why)
    if "float8" in names:
        found.set("precision", "fp8")
    for other in sorted(set(names) - {"float8"}):
        fields.cannot("model.converters", f"{other} is not simulated")


def _parallelism(fields: Fields, found: Foreign) -> None:
    degrees = {
        "tp": fields.whole("parallelism.tensor_parallel_degree"),
        "pp": fields.whole("parallelism.pipeline_parallel_degree"),
        "cp": fields.whole("parallelism.context_parallel_degree"),
        "ep": fields.whole("parallelism.expert_parallel_degree"),
        "expert_tp": fields.whole("parallelism.expert_tensor_parallel_degree"),
    }
    for axis, degree in degrees.items():
        found.set(f"parallelism.{axis}", degree)
    if (degrees["tp"] or 1) > 1:  # torchtitan's tensor parallelism always splits the sequence too
        found.set("parallelism.sequence_parallel", True)
    rotate = {"allgather": "all-gather", "alltoall": "ring"}
    kind = fields.choice("parallelism.context_parallel_rotate_method", rotate)
    if (degrees["cp"] or 1) > 1:
        found.set("parallelism.cp_kind", kind or "all-gather")
    _sharding(fields, found)
    kinds = {"always": True, "never": False, "default": (degrees["pp"] or 1) == 1}
    reshard = fields.choice("parallelism.fsdp_reshard_after_forward", kinds)
    found.set("parallelism.reshard_after_forward", kinds["default"] if reshard is None else reshard)
    schedule = fields.choice("parallelism.pipeline_parallel_schedule", _SCHEDULES)
    per_stage = fields.whole("parallelism.pipeline_parallel_layers_per_stage")
    if (degrees["pp"] or 1) > 1:
        found.set("parallelism.schedule", schedule or "1f1b")
        if schedule in _LOOPED:
            found.set("parallelism.virtual_stages", 2)
        if per_stage:
            fields.cannot("parallelism.pipeline_parallel_layers_per_stage", "give layers_per_stage")
    for name in ("enable_async_tensor_parallel", "disable_loss_parallel", "enable_compiled_autograd"):
        on = fields.flag(f"parallelism.{name}")
        if name == "enable_async_tensor_parallel":
            found.set("overlap.tp", on)
        elif on:
            fields.cannot(f"parallelism.{name}", "is not simulated")


def _sharding(fields: Fields, found: Foreign) -> None:
    replicas = fields.whole("parallelism.data_parallel_replicate_degree") or 1
    shards = fields.whole("parallelism.data_parallel_shard_degree", -1)
    if shards == 0:
        fields.refuse("parallelism.data_parallel_shard_degree", 0, "-1 or a whole number of 1 or more")
    shards = -1 if shards is None else shards
    if replicas > 1 and shards == 1:
        found.set("parallelism.sharding", "ddp")
    elif replicas > 1:
        found.set("parallelism.sharding", "hsdp")
        if shards > 1:
            found.set("parallelism.shard_group", shards)
        else:
            found.missing.append(f"parallelism.shard_group: data-parallel ranks / {replicas} replicas")
    elif shards == 1:
        found.set("parallelism.sharding", "ddp")


def _batch(fields: Fields, found: Foreign) -> None:
    local = fields.whole("training.local_batch_size") or fields.whole("training.batch_size") or 8
    whole = fields.whole("training.global_batch_size", -1)
    if whole == 0:
        fields.refuse("training.global_batch_size", 0, "-1 or a whole number of 1 or more")
    piece = fields.whole("parallelism.pipeline_parallel_microbatch_size") or 1
    micro = min(piece, local) if found.get("parallelism.pp", 1) > 1 else local
    found.set("batch.micro_batch", micro)
    found.set("batch.sequence_length", fields.whole("training.seq_len") or 2048)
    if whole is not None and whole > 0:
        found.set("batch.global_batch", whole)
    else:
        found.missing.append(f"batch.global_batch: {local} sequences a data-parallel rank")


def _software(fields: Fields, found: Foreign) -> None:
    compiled = [fields.flag(name) for name in ("training.compile", "compile.enable")]
    if any(one is not None for one in compiled):
        found.set("software.compile", any(compiled))
    norm = fields.number("training.max_norm")
    found.set("software.gradient_clipping", norm is None or norm > 0)
    forms = {"fused": "fused-adamw", "foreach": "foreach-adamw", "for-loop": "adamw"}
    form = fields.choice("optimizer.implementation", forms)
    fused = fields.flag("optimizer.fused")
    fields.choice("optimizer.name", {"Adam": "adam", "AdamW": "adamw"})
    old = None if fused is None else forms["fused" if fused else "foreach"]
    found.set("software.optimizer", form or old or "fused-adamw")
    if fields.flag("optimizer.early_step_in_backward"):
        fields.cannot("optimizer.early_step_in_backward", "the optimizer runs after the backward")
    parameter = fields.choice(
        "training.mixed_precision_param", {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    )
    if found.get("precision") is None:
        found.set("precision", parameter)
    if fields.choice("training.dtype", {"float32": "", "bfloat16": "bfloat16"}):
        fields.cannot("training.dtype", "bfloat16: parameters and optimizer state are held in fp32")
    reduce = fields.choice("training.mixed_precision_reduce", {"float32": "fp32", "bfloat16": "bf16"})
    found.set("software.gradient_dtype", reduce)
    if fields.flag("training.enable_cpu_offload"):
        fields.cannot("training.enable_cpu_offload", "parameters stay on the GPU")
    frequency = fields.whole("metrics.log_freq")
    found.set("software.log_every", frequency)


def _recompute(fields: Fields, found: Foreign) -> None:
    mode = fields.choice(
        "activation_checkpoint.mode",
        {"none": "none", "selective": "selective", "full": "full", "memory_budget": "budget"},
    )
    option = fields.raw("activation_checkpoint.selective_ac_option")
    budget = fields.number("activation_checkpoint.memory_budget", 0, 1)
    name = "activation_checkpoint.selective_ac_option"
    if option is not None and str(option) != "op" and not (str(option).isdecimal() and int(str(option))):
        fields.refuse(name, option, "op, or a whole number of 1 or more: every n-th layer")
        return
    if mode == "selective":
        text = "2" if option is None else str(option)
        if text == "op":
            fields.cannot(name, "op: matrix products are kept one by one; nothing is recomputed instead")
        else:
            found.set("recompute", {"every": int(text)})
    elif mode == "budget":
        fields.cannot("activation_checkpoint.memory_budget", f"{budget}: nothing is recomputed instead")
    else:
        found.set("recompute", mode or "none")
