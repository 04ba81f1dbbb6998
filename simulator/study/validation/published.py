"""Measured runs that others published: a row of each table to a scenario, its step time against ours.

What a table leaves open is assumed the same way for all of its rows; each function says what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from simulator.errors import SpecError
from simulator.study.memory import memory_by_stage
from simulator.study.simulate import load, simulate
from simulator.study.validation.base import Task, guarded, table, validation_set

GIB: Final = 2.0**30
#: One step from rest: nothing in these scenarios is random, and what reaches into the next step is small.
_RUN: Final = {"steps": 1, "warmup": 0}


def gpt(row: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A GPT of a table's sizes: learned positions, tied embeddings, biases, dropout."""
    hidden = int(row["hidden"])
    return {
        "layers": int(row["layers"]),
        "hidden": hidden,
        "heads": int(row["heads"]),
        "ffn": int(row.get("ffn") or 4 * hidden),
        "vocab": int(row.get("vocab") or 51200),
        "max_positions": int(row["seq"]),
        "tied_embeddings": True,
        "dropout": 0.1,
        **more,
    }


def _step_s(values: dict[str, Any]) -> float:
    return simulate({**values, "run": _RUN}, allow_oom=True).step_time_s


def _stage_layers(layers: int, parts: int) -> list[int]:
    """An even split, or one with the first and the last part a layer shorter."""
    if parts == 1 or layers % parts == 0:
        return []
    each = -(-(layers + 2) // parts)
    sizes = [each - 1, *[each] * (parts - 2), each - 1]
    if sum(sizes) == layers:
        return sizes
    base, rest = divmod(layers, parts)
    return [base + (1 if i < rest else 0) for i in range(parts)]


def megatron_bucket(dp: int, element_bytes: int) -> str:
    """Megatron-Core's default bucket: 40 million parameters, or a million a data-parallel rank if more."""
    return f"{max(40e6, 1e6 * dp) * element_bytes / 2**20} MiB"


# ------------------------------------------------------------------------------------ Megatron, A100

_SELENE: Final = {"topology": "dgx-a100", "gpu": "a100-sxm"}


@validation_set("korthikanti-2022")
def korthikanti() -> Iterator[Task]:
    """Korthikanti et al. 2022, figure 1 and table 5; unfused attention, DDP without overlap (interleaved)."""
    for row in table("published", "korthikanti-2022"):
        values = _korthikanti(row)
        name = f"{row['model']} {row['recompute']}"
        if row["measured_step_s"]:
            step = float(row["measured_step_s"])
            yield guarded(name, step, "s", "step time", partial(_step_s, values))
        if row.get("measured_activation_gib"):
            kept = float(row["measured_activation_gib"])
            yield guarded(name, kept, "GiB", "activations", partial(_activations_gib, values))


def _activations_gib(values: dict[str, Any]) -> float:
    return memory_by_stage(load(values, {}))[0].activations_bytes / GIB


def _korthikanti(row: Mapping[str, str]) -> dict[str, Any]:
    tp, pp, interleave = int(row["tp"]), int(row["pp"]), int(row["interleave"])
    return {
        "model": gpt(row),
        "cluster": {**_SELENE, "gpus": int(row["gpus"])},
        "precision": row["precision"],
        "parallelism": {
            "tp": tp,
            "pp": pp,
            "sequence_parallel": row["sequence_parallel"] == "yes",
            "schedule": "interleaved-1f1b" if interleave > 1 else "1f1b",
            "virtual_stages": interleave,
        },
        "batch": {
            "sequence_length": int(row["seq"]),
            "micro_batch": int(row["micro_batch"]),
            "global_batch": int(row["global_batch"]),
        },
        "recompute": row["recompute"],
        "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
        "software": {"framework": "megatron-2021", "attention": "unfused"},
    }


@validation_set("megatron-sc21-table1")
def sc21() -> Iterator[Task]:
    """Narayanan et al. 2021, table 1: FLOPs counted with the recomputed forward; one model replica a group."""
    for row in table("published", "megatron-sc21-table1"):
        layers, pp, tp = int(row["layers"]), int(row["pp"]), int(row["tp"])
        chunk = int(row["layers_per_virtual_stage"]) if row["layers_per_virtual_stage"] else layers // pp
        virtual = max(1, layers // pp // chunk)
        values = {
            "model": gpt(row),
            "cluster": {**_SELENE, "gpus": int(row["gpus"])},
            "precision": "fp16",
            "parallelism": {
                "tp": tp,
                "pp": pp,
                "schedule": "interleaved-1f1b" if virtual > 1 else "1f1b",
                "virtual_stages": virtual,
            },
            "batch": {
                "sequence_length": int(row["seq"]),
                "micro_batch": int(row["micro_batch"]),
                "global_batch": int(row["global_batch"]),
            },
            "recompute": "full",
            "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
            "software": {"framework": "megatron-2021", "attention": "unfused"},
        }
        s, h, vocab = float(row["seq"]), float(row["hidden"]), float(row["vocab"])
        flops = (
            96
            * float(row["global_batch"])
            * s
            * layers
            * h
            * h
            * (1 + s / (6 * h) + vocab / (16 * layers * h))
        )
        measured = flops / (float(row["measured_tflops_per_gpu_incl_recompute"]) * 1e12 * float(row["gpus"]))
        yield guarded(row["model"], measured, "s", "step time", partial(_step_s, values))


def _vtrain(row: Mapping[str, str], cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": gpt(row),
        "cluster": {**cluster, "gpus": int(row["gpus"]), "gpu": "a100-sxm"},
        "precision": "fp16",
        "parallelism": {"tp": int(row["tp"]), "pp": int(row["pp"])},
        "batch": {
            "sequence_length": int(row["seq"]),
            "micro_batch": int(row["micro_batch"]),
            "global_batch": int(row["global_batch"]),
        },
        "recompute": "full",
        "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
        "software": {"framework": "megatron-deepspeed", "attention": "unfused"},
    }


@validation_set("vtrain-a100-single-node")
def vtrain_single() -> Iterator[Task]:
    """vTrain's ground truth in one node: Megatron-DeepSpeed, full recomputation, reduce after the backward."""
    for number, row in enumerate(table("published", "vtrain-a100-single-node")):
        if int(row["gpus"]) > 8:
            continue
        values = _vtrain(row, {"topology": "dgx-a100"})
        name = "#{} h{hidden} l{layers} tp{tp} dp{dp} pp{pp} mb{micro_batch}".format(number, **row)
        yield guarded(name, float(row["measured_step_ms"]) / 1e3, "s", "step time", partial(_step_s, values))


@validation_set("vtrain-a100-multi-node")
def vtrain_multi() -> Iterator[Task]:
    """The same over nodes with four 200 Gb/s NICs."""
    for number, row in enumerate(table("published", "vtrain-a100-multi-node")):
        values = _vtrain(row, {"topology": "hgx-a100-4nic"})
        name = "#{} h{hidden} l{layers} tp{tp} dp{dp} pp{pp} mb{micro_batch}".format(number, **row)
        yield guarded(name, float(row["measured_step_ms"]) / 1e3, "s", "step time", partial(_step_s, values))


# ------------------------------------------------------------------------------------------- MosaicML

_MPT_GPUS: Final = {
    "a100_40gb": ("dgx-a100", "a100-sxm-40g"),
    "a100_80gb": ("dgx-a100", "a100-sxm"),
    "h100_80gb": ("dgx-h100", "h100-sxm"),
}


@validation_set("mosaicml-mpt-fsdp")
def mpt() -> Iterator[Task]:
    """MPT with FSDP: bf16 rows; Triton's attention of that time, ALiBi, no biases, gradients in bf16."""
    for number, row in enumerate(table("published", "mosaicml-mpt-fsdp")):
        if "fp8" in row["precision"]:
            continue
        topology, gpu = _MPT_GPUS[row["gpu"]]
        # the older table calls its precision bf16; the newer, on PyTorch 2, amp_bf16
        framework = "llm-foundry-2022" if row["precision"] == "bf16" else "llm-foundry"
        sharding = {"FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "fsdp", "NO_SHARD": "ddp"}[row["sharding"]]
        values = {
            "model": {
                **gpt(row, position="alibi", linear_bias=False, qkv_bias=False, dropout=0.0),
                "max_positions": 0,
            },
            "cluster": {"topology": topology, "gpus": int(row["gpus"]), "gpu": gpu},
            "precision": "bf16",
            "parallelism": {
                "sharding": sharding,
                "reshard_after_forward": row["sharding"] == "FULL_SHARD",
            },
            "batch": {
                "sequence_length": int(row["seq"]),
                "micro_batch": int(row["micro_batch"]),
                "global_batch": int(row["global_batch"]),
            },
            "recompute": "full" if row["activation_checkpointing"] == "True" else "none",
            "software": {
                "framework": framework, "attention": "triton", "gradient_dtype": "bf16", "optimizer": "adamw",
            },  # Composer's DecoupledAdamW updates a tensor at a time
        }  # fmt: skip
        tokens = int(row["global_batch"]) * int(row["seq"]) / int(row["gpus"])
        measured = tokens / float(row["tokens_per_s_per_gpu"])
        name = "#{} {model} s{seq} {gpus}x{gpu} mb{micro_batch}".format(number, **row)
        yield guarded(name, measured, "s", "step time", partial(_step_s, values))


# ------------------------------------------------------------------------------------ Llama on H100


@validation_set("llama3-405b")
def llama3() -> Iterator[Task]:
    """The Llama 3 herd, table 4: tokens a batch and TFLOP/s a GPU; interleaved with a layer a chunk."""
    for row in table("published", "llama3-405b"):
        tp, cp, pp, dp = (int(row[name]) for name in ("tp", "cp", "pp", "dp"))
        per_dp = int(row["batch_per_dp"])
        gpus = int(row["gpus"])
        virtual = 8  # a layer a chunk, none in the first and the last (section 3.3.2)
        values = {
            "model": "llama-3.1-405b",
            "cluster": {"topology": "llama3-roce-24k", "gpus": gpus, "gpu": "h100-sxm"},
            "parallelism": {
                "tp": tp, "cp": cp, "pp": pp, "dp": dp, "sequence_parallel": True, "cp_kind": "all-gather",
                "schedule": "interleaved-1f1b", "virtual_stages": virtual,
                "layers_per_stage": _stage_layers(126, pp * virtual), "sharding": "zero-1",
            },
            "batch": {"sequence_length": int(row["seq"]), "micro_batch": 1, "global_batch": per_dp * dp},
            "overlap": {"bucket_size": megatron_bucket(dp, 2)},
            "software": {"framework": "megatron", "attention": "flash2", "gradient_dtype": "bf16"},
        }  # fmt: skip
        flops = 6 * 405.85e9 + 6 * 126 * 16384 * int(row["seq"])
        tokens = per_dp * dp * int(row["seq"])
        measured = tokens * flops / (float(row["measured_tflops_per_gpu"]) * 1e12 * gpus)
        name = f"{gpus} H100, cp {cp}, s {row['seq']}"
        note = "causal attention counted in the published TFLOP/s; four chunks a stage"
        yield guarded(name, measured, "s", "step time", partial(_step_s, values), note)


@validation_set("torchtitan-h100")
def torchtitan() -> Iterator[Task]:
    """torchtitan's notes: H100 with 96 GB at 500 W; FSDP2, compiled layers where it says so."""
    for row in table("published", "torchtitan-h100"):
        if row["precision"] != "bf16":
            continue
        tp, pp, cp = (int(row[name] or 1) for name in ("tp", "pp", "cp"))
        virtual = 1
        values = {
            "model": row["model"],
            "cluster": {"topology": "dgx-h100", "gpus": int(row["gpus"]), "gpu": "h100-sxm-96g-500w"},
            "parallelism": {
                "tp": tp, "pp": pp, "cp": cp, "sharding": "fsdp", "sequence_parallel": tp > 1,
                "schedule": "1f1b", "virtual_stages": virtual,
            },
            "overlap": {"tp": row["async_tp"] == "yes"},
            "batch": {
                "sequence_length": int(row["seq"]),
                "micro_batch": int(row["local_batch"]),
                "global_batch": int(row["global_batch"]),
            },
            "recompute": {"every": 2} if row["recompute"] == "selective" else row["recompute"],
            "software": {
                "framework": "torchtitan", "attention": "cudnn", "compile": row["compile"] == "yes",
                "gradient_dtype": "fp32",
            },
        }  # fmt: skip
        tokens = int(row["global_batch"]) * int(row["seq"]) / int(row["gpus"])
        measured = tokens / float(row["measured_tokens_per_s_per_gpu"])
        name = "{model} {gpus} GPUs {precision} compile {compile}".format(**row)
        note = "selective: every second layer"
        yield guarded(name, measured, "s", "step time", partial(_step_s, values), note)


# --------------------------------------------------------------------------------------------- B200


@validation_set("b200-megatron")
def b200() -> Iterator[Task]:
    """SimuMax's B200 runs: Llama 3 cut to a few layers; Megatron-LM with TransformerEngine."""
    sizes = {"llama3-70b": "llama-3-70b", "llama3-405b": "llama-3.1-405b"}
    for row in table("published", "b200-megatron"):
        if row["model"] not in sizes:
            continue
        values = {
            # the runs' launch script gives the 405B 16 query groups, not Llama's 8
            "model": _cut(sizes[row["model"]], int(row["layers"]))
            | ({"kv_heads": 16} if row["model"] == "llama3-405b" else {}),
            "cluster": {"topology": "dgx-b200", "gpus": int(row["gpus"])},
            "parallelism": {
                "tp": int(row["tp"]), "pp": int(row["pp"]), "cp": int(row["cp"]),
                "sequence_parallel": int(row["tp"]) > 1, "sharding": "zero-1" if row["zero_stage"] == "1" else "ddp",
            },
            "batch": {
                "sequence_length": int(row["seq"]),
                "micro_batch": int(row["micro_batch"]),
                "global_batch": int(row["global_batch"]),
            },
            "overlap": {"grad_reduce": False, "param_gather": False},  # Megatron-LM's defaults
            "recompute": row["recompute"] if row["recompute"] in ("none", "full", "selective") else "none",
            "software": {"framework": "megatron", "attention": "cudnn", "gradient_dtype": "fp32", "fused_loss": True},
        }  # fmt: skip
        yield guarded(
            row["case"],
            float(row["measured_step_ms"]) / 1e3,
            "s",
            "step time",
            partial(_step_s, values),
        )
        yield guarded(
            row["case"],
            float(row["measured_peak_alloc_gib"]),
            "GiB",
            "memory",
            partial(_peak_gib, values),
        )


def _cut(name: str, layers: int) -> dict[str, Any]:
    """A bundled model with fewer layers, as inline fields."""
    from dataclasses import asdict

    from simulator.model import model
    from simulator.spec import Transformer

    found = model(name)
    if not isinstance(found, Transformer):
        raise SpecError.of("model", f"'{name}': expected a transformer")
    fields = {key: value for key, value in asdict(found).items() if value is not None and key != "source"}
    return {**fields, "layers": layers}


def _peak_gib(values: dict[str, Any]) -> float:
    """What PyTorch's allocator hands out: without the CUDA context."""
    return max(stage.allocated_bytes for stage in memory_by_stage(load(values, {}))) / GIB
