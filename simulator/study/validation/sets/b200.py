"""SimuMax's B200 runs: Llama 3 and DeepSeek cut to a few layers, Megatron-LM 0.14, TransformerEngine 2.11.

bf16, fp32 gradients, no recomputation, distributed optimizer where ZeRO stage is 1. DeepSeek cut to four
layers: how many stay dense is not said; one does (with none or three of V3's, 104 GiB could not be).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, cut, peak_gib, task

_MODELS: Final = {
    "llama3-70b": "llama-3-70b",
    "llama3-405b": "llama-3.1-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}


@validation_set("b200-megatron")
def b200() -> Iterator[Task]:
    """Step time and peak of the allocator; dense and MoE apart."""
    for row in table("published", "b200-megatron"):
        values = _values(row)
        moe = ", MoE" if "deepseek" in row["model"] else ""
        note = "first layer dense; even routing" if moe else ""
        step, held = float(row["measured_step_ms"]) / 1e3, float(row["measured_peak_alloc_gib"])
        yield task(row["case"], step, values, metric=f"step time{moe}", note=note)
        yield task(row["case"], held, values, metric=f"memory{moe}", unit="GiB", figure=peak_gib, note=note)


def _values(row: Mapping[str, str]) -> Values:
    tp, ep = int(row["tp"]), int(row["ep"])
    model = cut(_MODELS[row["model"]], int(row["layers"]))
    if row["model"] == "llama3-405b":
        model["kv_heads"] = 16  # the runs' launch script gives 16 query groups, not Llama's 8
    more: dict[str, Any] = {}
    if model.get("experts"):
        model = {**model, "experts": {**model["experts"], "dense_layers": [0]}}
        model["multi_token_prediction_layers"] = 0
        more = {"expert_tp": 1}
    return {
        "model": model,
        "cluster": {"topology": "dgx-b200", "gpus": int(row["gpus"])},
        "parallelism": {
            "tp": tp, "pp": int(row["pp"]), "cp": int(row["cp"]), "ep": ep, "sequence_parallel": tp > 1,
            "sharding": "zero-1" if row["zero_stage"] == "1" else "ddp", **more,
        },
        "batch": batch(int(row["seq"]), int(row["micro_batch"]), int(row["global_batch"])),
        "recompute": row["recompute"],
        "overlap": {"grad_reduce": False, "param_gather": False},  # Megatron-LM's defaults
        "software": {
            "framework": "megatron", "attention": "cudnn", "gradient_dtype": "fp32", "fused_loss": True,
        },
    }  # fmt: skip
