"""BLOOM's sweep of layouts on Jean Zay (bigscience, chronicles of tr11, February 2022): A100, four 200 Gb/s ports.

Megatron-DeepSpeed with ZeRO-1, fp16 or bf16, full recomputation, unfused attention, vocabulary 250,880,
sequences of 2,048. Layers and width of each size are named by headings of that page, not in the table;
where it names the width alone (14,400), layers are what the size and the stages allow. Heads: 64 if not
given. Layers that stages cannot share evenly are spread by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, gpt, skip, stage_layers, task

#: size -> layers, hidden, heads
_SHAPES: Final = {
    "20B": (8, 14400, 32), "200B": (80, 14400, 96), "194B": (78, 14400, 96), "191B": (77, 14400, 96),
    "205B": (81, 14400, 96), "195B": (106, 12288, 96), "183B": (72, 14400, 96), "187B": (80, 13824, 64),
    "181B": (72, 14336, 64), "196B": (84, 13824, 64), "177B": (96, 12288, 64), "178B": (82, 13312, 64),
    "184B": (100, 12288, 64), "203B": (94, 13312, 128), "176B": (70, 14336, 64), "18B": (6, 14336, 64),
}  # fmt: skip
_182B: Final = {"78": (78, 13824, 64), "84": (84, 13312, 64)}


@validation_set("bloom-tr11-sweeps")
def bloom() -> Iterator[Task]:
    """Seconds of an iteration, the second of a run."""
    for number, row in enumerate(table("published", "bloom-tr11-sweeps")):
        name = "#{} {size} dp{DP} tp{TP} pp{PP} mb{MBS} {notes:.5}".format(number, **row)
        why = _cannot(row)
        if why:
            yield skip(name, "step time", why)
            continue
        yield task(name, float(row["sec_per_iter"]), _values(row), note="shape by the size's heading")


def _cannot(row: Mapping[str, str]) -> str:
    if not row["sec_per_iter"]:
        return "no seconds of an iteration in the table"
    if "WARNING" in row["notes"]:
        return "TP x PP x DP is not the number of GPUs"
    if row["size"] == "182B":
        return "182B: two shapes of that size, the table does not say which"
    return ""


def _values(row: Mapping[str, str]) -> Values:
    layers, hidden, heads = _SHAPES[row["size"]]
    early = row["notes"].startswith("02-20")
    if early and row["size"] == "195B":
        layers, hidden, heads = 77, 14400, 96
    pp, micro = int(row["PP"]), int(row["MBS"])
    shape = {
        "layers": row["layers"] or str(layers),
        "hidden": row["hidden"] or str(hidden),
        "heads": row["heads"] or str(heads),
        "vocab": "250880",
        "seq": "2048",
    }
    dp = int(row["DP"] or 1)
    whole = int(re.sub(r"\D", "", row["GBS"])) // (micro * dp) * micro * dp
    return {
        "model": gpt(shape, position="alibi", dropout=0.0) | {"max_positions": 0},
        "cluster": {"topology": "hgx-a100-4nic", "gpus": int(row["gpus"]), "gpu": "a100-sxm"},
        "precision": "bf16" if row["notes"][:5] >= "02-28" else "fp16",
        "parallelism": {
            "tp": int(row["TP"]), "pp": pp, "sharding": "zero-1",
            "layers_per_stage": stage_layers(int(shape["layers"]), pp),
        },
        "batch": batch(2048, micro, whole),
        "recompute": "full",
        "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
        "software": {
            "framework": "megatron-deepspeed", "attention": "unfused",
            "gradient_dtype": "fp32" if row["notes"][:5] >= "02-28" else "fp16",
        },
    }  # fmt: skip
