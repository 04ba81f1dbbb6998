"""torchtitan's benchmark notes (December 2024): Llama 3.1 on H100 with 96 GB HBM2e and a 500 W limit.

FSDP2 with fp32 gradients reduced, "selective" recomputes every second layer; loss parallel with TP; the
405B rows at 512 GPUs: FSDP 8 x TP 8 x PP 8, 32 micro-batches of one sequence (the local batch), fp8
GEMMs tensorwise with asynchronous TP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, peak_gib, stage_layers, task


@validation_set("torchtitan-h100")
def torchtitan() -> Iterator[Task]:
    """Step time from tokens per second and GPU; peak memory."""
    for row in table("published", "torchtitan-h100"):
        values = _values(row)
        tokens = int(row["global_batch"]) * int(row["seq"]) / int(row["gpus"])
        measured = tokens / float(row["measured_tokens_per_s_per_gpu"])
        name = "{model} {gpus} GPUs {precision} compile {compile} {schedule}".format(**row).strip()
        note = "selective: every second layer" if row["recompute"] == "selective" else "two chunks a stage"
        yield task(name, measured, values, note=note)
        held = float(row["measured_memory_gib"])
        yield task(name, held, values, metric="memory", unit="GiB", figure=peak_gib, note=note)


def _values(row: Mapping[str, str]) -> Values:
    tp, pp, cp = (int(row[name] or 1) for name in ("tp", "pp", "cp"))
    virtual = 2 if "interleaved" in row["schedule"] else 1
    layers = 126 if "405b" in row["model"] else 32
    return {
        "model": row["model"],
        "cluster": {"topology": "dgx-h100", "gpus": int(row["gpus"]), "gpu": "h100-sxm-96g-500w"},
        "precision": row["precision"],
        "parallelism": {
            "tp": tp, "pp": pp, "cp": cp, "sharding": "fsdp", "sequence_parallel": tp > 1,
            "schedule": row["schedule"] or "1f1b", "virtual_stages": virtual,
            "layers_per_stage": stage_layers(layers, pp * virtual), "reshard_after_forward": pp == 1,
        },
        "overlap": {"tp": row["async_tp"] == "yes"},
        "batch": batch(int(row["seq"]), 1 if pp > 1 else int(row["local_batch"]), int(row["global_batch"])),
        "recompute": {"every": 2} if row["recompute"] == "selective" else row["recompute"],
        "software": {
            "framework": "torchtitan", "attention": "cudnn", "compile": row["compile"] == "yes",
            "gradient_dtype": "fp32",
        },
    }  # fmt: skip
