"""MosaicML's llm-foundry tables: MPT 125M to 70B with FSDP.

Triton's attention of that time, ALiBi, no biases, gradients reduced in bf16; four rows are fp8 through
TransformerEngine. SHARD_GRAD_OP keeps parameters after the forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import batch, gpt, task

_GPUS: Final = {
    "a100_40gb": ("dgx-a100", "a100-sxm-40g"),
    "a100_80gb": ("dgx-a100", "a100-sxm"),
    "h100_80gb": ("dgx-h100", "h100-sxm"),
}
_SHARDING: Final = {"FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "fsdp", "NO_SHARD": "ddp"}


@validation_set("mosaicml-mpt-fsdp")
def mpt() -> Iterator[Task]:
    """Step time from tokens per second and GPU; fp8 rows stand apart."""
    for number, row in enumerate(table("published", "mosaicml-mpt-fsdp")):
        topology, gpu = _GPUS[row["gpu"]]
        fp8 = "fp8" in row["precision"]
        # the older table calls its precision bf16; the newer, on PyTorch 2, amp_bf16
        framework = "llm-foundry-2022" if row["precision"] == "bf16" else "llm-foundry"
        values = {
            "model": {
                **gpt(row, position="alibi", linear_bias=False, qkv_bias=False, dropout=0.0),
                "max_positions": 0,
            },
            "cluster": {"topology": topology, "gpus": int(row["gpus"]), "gpu": gpu},
            "precision": "fp8" if fp8 else "bf16",
            "parallelism": {
                "sharding": _SHARDING[row["sharding"]],
                "reshard_after_forward": row["sharding"] == "FULL_SHARD",
            },
            "batch": batch(int(row["seq"]), int(row["micro_batch"]), int(row["global_batch"])),
            "recompute": "full" if row["activation_checkpointing"] == "True" else "none",
            "software": {
                "framework": framework,
                "attention": "triton",
                "gradient_dtype": "bf16",
                "optimizer": "adamw",  # Composer's DecoupledAdamW updates a tensor at a time
            },
        }
        tokens = int(row["global_batch"]) * int(row["seq"]) / int(row["gpus"])
        measured = tokens / float(row["tokens_per_s_per_gpu"])
        name = "#{} {model} s{seq} {gpus}x{gpu} mb{micro_batch}".format(number, **row)
        yield task(name, measured, values, metric="step time, fp8" if fp8 else "step time")
