"""nanotron on H100: best layouts of its benchmark, and tensor parallelism over 2 to 32 GPUs.

Eager PyTorch with FlashAttention 2, bf16, fp32 gradients; a Llama with all heads' keys, untied. Assumed:
DGX nodes with eight 400 Gb/s ports (the source: eight H100 a node); all-forward-all-backward is 1F1B's
time. MFU as nanotron counts it: 6 N a token with N its parameters, and 12 l h s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, gpt, peak_gib, task


def _values(row: Mapping[str, str], gpus: int, tp: int, pp: int, work: Values, sharding: str) -> Values:
    sizes = {"position": "rope", "tied_embeddings": False, "linear_bias": False, "qkv_bias": False}
    model = gpt(row, **sizes, dropout=0.0, gated_mlp=True, norm="rmsnorm") | {"max_positions": 0}
    return {
        "model": model,
        "cluster": {"topology": "dgx-h100", "gpus": gpus},
        "parallelism": {"tp": tp, "pp": pp, "sequence_parallel": tp > 1, "sharding": sharding},
        "batch": work,
        "software": {"framework": "pytorch", "attention": "flash2", "gradient_dtype": "fp32"},
    }


@validation_set("nanotron")
def nanotron() -> Iterator[Task]:
    """Step time from MFU (best layouts) or tokens per second and GPU (tensor parallelism); memory."""
    for row in table("published", "nanotron-ultrascale-best"):
        gpus, seq = int(row["gpus"]), int(row["seq"])
        work = batch(seq, int(row["micro_batch"]), int(row["global_batch_seqs"]))
        sharding = "zero-1" if row["zero_stage"] == "1" else "ddp"
        values = _values(row, gpus, int(row["TP"]), int(row["PP"]), work, sharding)
        parameters = float(row["model"].removesuffix("B")) * 1e9
        flops = 6 * parameters + 12 * int(row["layers"]) * int(row["hidden"]) * seq
        measured = int(row["tokens_per_step"]) * flops / (float(row["MFU_pct"]) / 100 * 989e12 * gpus)
        name = "{model} {gpus} GPUs dp{DP} tp{TP} pp{PP}".format(**row)
        yield task(name, measured, values, metric="step time, best layouts")
        held = float(row["memory_GB"]) * 1e9 / 2.0**30
        yield task(name, held, values, metric="memory", unit="GiB", figure=peak_gib)
    for row in table("published", "nanotron-tp-scaling-3B"):
        tp, micro, seq = int(row["TP"]), int(row["max_micro_batch"]), int(row["seq"])
        gpus = max(8, tp)
        values = _values(row, tp, tp, 1, batch(seq, micro, micro), "ddp")
        measured = micro * seq / (float(row["tokens_per_s_per_gpu"]) * tp)
        name = f"{row['model']} tp{tp} of {gpus}, mb{micro}"
        yield task(name, measured, values, metric="step time, TP alone")
