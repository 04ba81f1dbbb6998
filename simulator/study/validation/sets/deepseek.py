"""DeepSeek-V3 on 2,048 H800 (arXiv:2412.19437): PP 16 by DualPipe, EP 64, ZeRO-1, fp8.

Assumed: four layers a stage, one beside the head; balanced routing. Left out: routing limited to four nodes
a token (ours sends it to each of its eight experts), the layer that predicts a second token, recomputed norms
and latent up-projections.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, task


@validation_set("deepseek-v3")
def deepseek() -> Iterator[Task]:
    """Step time from GPU hours for 10^12 tokens."""
    for row in table("published", "deepseek-v3"):
        gpus, pp, seq, whole = (int(row[name]) for name in ("gpus", "pp", "seq", "global_batch"))
        values: Values = {
            "model": row["model"],
            "cluster": {"topology": "dgx-h100", "gpus": gpus, "gpu": row["gpu"]},
            "precision": "fp8-blockwise",
            "parallelism": {
                "pp": pp, "ep": int(row["ep"]), "schedule": "dualpipe", "sharding": "zero-1",
                "layers_per_stage": [*[4] * (pp - 1), 61 - 4 * (pp - 1)],
            },
            "batch": batch(seq, 1, whole),
            "software": {"framework": "megatron", "attention": "flash3", "gradient_dtype": "bf16"},
        }  # fmt: skip
        published = float(row["gpu_hours_per_1e12_tokens"]) * 3600 / 1e12 * whole * seq / gpus
        note = "tokens go to all eight experts, norms are not recomputed, no second-token layer"
        yield task(f"{row['model']}, {gpus} H800", published, values, figure=_step_s, note=note)


def _step_s(values: Values) -> float:
    """All micro-batches: DualPipe needs at least two a stage."""
    from simulator.study.simulate import simulate

    return simulate({**values, "run": {"steps": 1, "warmup": 0}}, allow_oom=True).step_time_s
