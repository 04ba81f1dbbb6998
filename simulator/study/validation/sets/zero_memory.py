"""ZeRO (arXiv:1910.02054), figure 1: parameters, gradients and optimizer of 7.5B parameters on 64 GPUs.

A GPT of that size: 36 layers of 4,096 (7.46B with its tables); fp16 gradients, Adam in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import GIB, batch, gpt, states_gib, task

_SHARDING: Final = {"baseline": "ddp", "Pos": "zero-1", "Pos+g": "zero-2", "Pos+g+p": "zero-3"}


@validation_set("zero-memory")
def zero_memory() -> Iterator[Task]:
    """Memory of the model's states."""
    shape = {"layers": "36", "hidden": "4096", "heads": "32", "seq": "1024"}
    for row in table("published", "zero-memory"):
        values = {
            "model": gpt(shape),
            "cluster": {"topology": "dgx-a100", "gpus": int(row["Nd"])},
            "precision": "fp16",
            "parallelism": {"sharding": _SHARDING[row["stage"]]},
            "batch": batch(1024, 1, int(row["Nd"])),
            "software": {"gradient_dtype": "fp16"},
        }
        held = float(row["GB_paper"]) * 1e9 / GIB
        yield task(row["stage"], held, values, metric="states", unit="GiB", figure=states_gib)
