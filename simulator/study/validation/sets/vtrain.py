"""vTrain's ground truth (MICRO 2024): GPT on A100, Megatron-DeepSpeed, fp16, full recomputation, 1F1B.

Attention unfused; gradients all-reduced in fp32 after the backward, in one piece. Nodes of eight A100
with NVSwitch; over nodes, four 200 Gb/s ports each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, gpt, task


def _values(row: Mapping[str, str], topology: str) -> Values:
    return {
        "model": gpt(row),
        "cluster": {"topology": topology, "gpus": int(row["gpus"]), "gpu": "a100-sxm"},
        "precision": "fp16",
        "parallelism": {"tp": int(row["tp"]), "pp": int(row["pp"])},
        "batch": batch(int(row["seq"]), int(row["micro_batch"]), int(row["global_batch"])),
        "recompute": "full",
        "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
        "software": {"framework": "megatron-deepspeed", "attention": "unfused"},
    }


def _tasks(name: str, topology: str) -> Iterator[Task]:
    for number, row in enumerate(table("published", name)):
        label = "#{} h{hidden} l{layers} tp{tp} dp{dp} pp{pp} mb{micro_batch}".format(number, **row)
        yield task(label, float(row["measured_step_ms"]) / 1e3, _values(row, topology))


@validation_set("vtrain-a100-single-node")
def vtrain_single() -> Iterator[Task]:
    """Two to eight A100 in one node."""
    return _tasks("vtrain-a100-single-node", "dgx-a100")


@validation_set("vtrain-a100-multi-node")
def vtrain_multi() -> Iterator[Task]:
    """64 to 512 A100 in nodes with four 200 Gb/s ports."""
    return _tasks("vtrain-a100-multi-node", "hgx-a100-4nic")
