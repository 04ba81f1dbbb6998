"""The Llama 3 herd of models (arXiv:2407.21783), table 4: Llama 3.1 405B on 8,192 and 16,384 H100.

Assumed: causal attention counted half in the published TFLOP/s; a layer a chunk, none in the first and the
last (section 3.3.2), so eight chunks a stage; bf16 gradients, Megatron-Core's buckets.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import batch, megatron_bucket, stage_layers, task


@validation_set("llama3-405b")
def llama3() -> Iterator[Task]:
    """Step time from TFLOP/s per GPU and tokens per batch."""
    for row in table("published", "llama3-405b"):
        tp, cp, pp, dp = (int(row[name]) for name in ("tp", "cp", "pp", "dp"))
        per_dp, gpus, seq, virtual = int(row["batch_per_dp"]), int(row["gpus"]), int(row["seq"]), 8
        values = {
            "model": "llama-3.1-405b",
            "cluster": {"topology": "llama3-roce-24k", "gpus": gpus, "gpu": "h100-sxm"},
            "parallelism": {
                "tp": tp, "cp": cp, "pp": pp, "dp": dp, "sequence_parallel": True,
                "cp_kind": "all-gather",
                "schedule": "interleaved-1f1b", "virtual_stages": virtual,
                "layers_per_stage": stage_layers(126, pp * virtual), "sharding": "zero-1",
            },
            "batch": batch(seq, 1, per_dp * dp),
            "overlap": {"bucket_size": megatron_bucket(dp, 2)},
            "software": {"framework": "megatron", "attention": "flash2", "gradient_dtype": "bf16"},
        }  # fmt: skip
        flops = 6 * 405.85e9 + 6 * 126 * 16384 * seq
        measured = per_dp * dp * seq * flops / (float(row["measured_tflops_per_gpu"]) * 1e12 * gpus)
        note = "causal attention counted half in the published TFLOP/s; a layer a chunk"
        yield task(f"{gpus} H100, cp {cp}, s {seq}", measured, values, note=note)
