"""Megatron-Core's weak scaling on H100 (Eos, eight 400 Gb/s ports a node): 1.7B to 462B, DP 48.

Reductions, gathers and TP overlap as the source says. Micro-batch and interleaving are not published.
Assumed: micro-batches of one sequence, as many virtual stages as divide a stage's layers, up to 24. FLOPs
as Megatron-LM counts them, 72 B s l h^2 (1 + s / 6h + V / 12lh).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import batch, gpt, task


@validation_set("megatron-core-h100-weak")
def weak() -> Iterator[Task]:
    """Step time from TFLOP/s per GPU."""
    for row in table("published", "megatron-core-h100-weak"):
        layers, pp, tp = int(row["layers"]), int(row["PP"]), int(row["TP"])
        each = layers // pp
        virtual = max(n for n in range(1, 25) if each % n == 0) if pp > 1 else 1
        values = {
            "model": gpt({**row, "ffn": ""}, dropout=0.0, position="rope") | {"max_positions": 0},
            "cluster": {"topology": "dgx-h100", "gpus": int(row["gpus"])},
            "parallelism": {
                "tp": tp, "pp": pp, "sequence_parallel": tp > 1, "sharding": "zero-1",
                "schedule": "interleaved-1f1b" if virtual > 1 else "1f1b", "virtual_stages": virtual,
            },
            "batch": batch(int(row["seq"]), 1, int(row["global_batch"])),
            "overlap": {"tp": tp > 1},
            "software": {"framework": "megatron", "attention": "cudnn", "gradient_dtype": "fp32"},
        }  # fmt: skip
        note = f"micro-batch of 1; {virtual} chunks a stage"
        yield task(row["model"], float(row["iter_s_DERIVED_72BslH2_noncausal"]), values, note=note)
