"""NVIDIA's NeMo figures: DGX Cloud benchmarking recipes and Megatron Bridge release notes.

Assumed for all rows: NeMo's performance recipes (distributed optimizer, gradients reduced and parameters
gathered beside compute, gradients in bf16, TP's exchanges pipelined with GEMMs, cuDNN attention), no
recomputation, even routing of tokens to experts, experts not split over TP. The first and the last of
the pipeline's chunks are a layer shorter where layers do not divide. Of a GB200 or GB300 rack, 64 GPUs.
FP8 without a letter, and FP8-CS, is tensorwise scaling; MXFP8 and FP8-MX blockwise. Where a release note
gives two figures, the first is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, cut, skip, stage_layers, task

_TOPOLOGIES: Final[dict[str, Any]] = {
    "H100": {"topology": "dgx-h100"},
    "B200": {"topology": "dgx-b200"},
    "B300": {"topology": "dgx-b200", "gpu": "b300-sxm"},
    "GB200": {"topology": "400 Gb/s", "gpu": "gb200"},
    "GB300": {"topology": "800 Gb/s", "gpu": "gb300"},
}
_PRECISIONS: Final = {
    "BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8", "MXFP8": "fp8-blockwise", "FP8-MX": "fp8-blockwise",
    "NVFP4": "fp4", "": "fp8",
}  # fmt: skip

#: Nemotron-4 340B Technical Report, arXiv:2406.11704, table 1: squared ReLU, rotary on half, no biases.
_NEMOTRON_340B: Final[Values] = {
    "layers": 96, "hidden": 18432, "heads": 96, "kv_heads": 8, "ffn": 73728, "vocab": 256000,
    "position": "rope", "linear_bias": False, "qkv_bias": False,
}  # fmt: skip
#: Grok-1 (xai-org/grok-1): 8 experts, 2 a token.
_GROK_1: Final[Values] = {
    "layers": 64, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 32768, "vocab": 131072, "head_dim": 128,
    "gated_mlp": True, "norm": "rmsnorm", "position": "rope", "linear_bias": False, "qkv_bias": False,
    "experts": {"count": 8, "top_k": 2, "ffn": 32768},
}  # fmt: skip
#: Kimi K2 (moonshotai/Kimi-K2-Base config.json): DeepSeek-V3's shape with 384 experts and 64 heads.
_KIMI_K2: Final[Values] = {"heads": 64, "kv_heads": 64, "vocab": 163840}


def nemo(model: str | Values, system: str, gpus: int, precision: str, sizes: Mapping[str, int]) -> Values:
    """A run of a NeMo performance recipe. `sizes`: tp, pp, cp, ep, vp, fsdp, micro, whole, seq; 0 or 1 is none."""
    fields: Values = model if isinstance(model, dict) else cut(model, _layers(model))
    layers, chunks = int(fields["layers"]), sizes["pp"] * sizes["vp"]
    moe = bool(fields.get("experts"))
    parallelism: Values = {
        "tp": sizes["tp"], "pp": sizes["pp"], "cp": sizes["cp"], "sequence_parallel": sizes["tp"] > 1,
        "schedule": "interleaved-1f1b" if sizes["vp"] > 1 and sizes["pp"] > 1 else "1f1b",
        "virtual_stages": sizes["vp"] if sizes["pp"] > 1 else 1,
        "layers_per_stage": stage_layers(layers, chunks) if sizes["pp"] > 1 else [],
        "sharding": "fsdp" if sizes["fsdp"] > 1 else "zero-1",
    }  # fmt: skip
    if moe:
        parallelism |= {"ep": sizes["ep"], "expert_tp": 1}
    return {
        "model": fields,
        "cluster": _cluster(system, gpus),
        "precision": precision,
        "parallelism": parallelism,
        "batch": batch(sizes["seq"], sizes["micro"], sizes["whole"]),
        "overlap": {"tp": sizes["tp"] > 1},
        "software": {"framework": "nemo", "attention": "cudnn", "gradient_dtype": "bf16"},
    }


def _cluster(system: str, gpus: int) -> Values:
    """The system's cluster; of an NVL72 rack, jobs of powers of two use 64 GPUs."""
    found = {**_TOPOLOGIES[system], "gpus": gpus}
    if system not in ("GB200", "GB300"):
        return found
    rack = min(64, gpus)
    parameters = {
        "gpus_per_node": rack, "gpus_per_host": 4, "nics": rack, "nic_bandwidth": found["topology"],
        "nodes_per_leaf": 8, "switch_ports": 64,
    }  # fmt: skip
    return {**found, "topology": {"name": "nvl72", "family": "rail-optimised", "parameters": parameters}}


def _layers(name: str) -> int:
    from simulator.model import model

    return int(getattr(model(name), "layers", 1))


# ---------------------------------------------------------------------------------------- DGX Cloud

_SIZES: Final[dict[str, Any]] = {
    "8b": "llama-3.1-8b", "70b": "llama-3.1-70b", "405b": "llama-3.1-405b", "340b": _NEMOTRON_340B,
    "314b": _GROK_1,
}  # fmt: skip


@validation_set("nvidia-dgxc-step-times")
def dgxc() -> Iterator[Task]:
    """DGX Cloud benchmarking: step seconds; models with fewer layers, and GB200, apart."""
    for number, row in enumerate(table("published", "nvidia-dgxc-step-times")):
        proxy = "proxy" in row["size"]
        found = _SIZES[row["size"].removesuffix("-proxy")]
        model = cut(found, int(row["layers"])) if isinstance(found, str) else found
        sizes = {
            "tp": _int(row["TP"]), "pp": _int(row["PP"]), "cp": _int(row["CP"]), "ep": _int(row["EP"]),
            "vp": _int(row["VP"]), "fsdp": 1, "micro": _int(row["MBS"]), "whole": _int(row["GBS"]),
            "seq": _int(row["seq"]),
        }  # fmt: skip
        values = nemo(model, row["gpu"], int(row["gpus"]), _PRECISIONS[row["precision"]], sizes)
        kind = ", fewer layers" if proxy else "" if row["gpu"] == "H100" else f", {row['gpu']}"
        name = f"#{number} {row['workload']} {row['gpus']} {row['gpu']}"
        yield task(name, float(row["step_time_s"]), values, metric=f"step time{kind}")


# ----------------------------------------------------------------------------------- Megatron Bridge

_BRIDGE: Final[dict[str, Any]] = {
    "LLAMA3_8B": "llama-3-8b", "LLAMA3_70B": "llama-3-70b", "LLAMA3.1_405B": "llama-3.1-405b",
    "DeepSeekV3": "deepseek-v3", "GPT OSS 120B": "gpt-oss-120b", "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
}  # fmt: skip


@validation_set("megatron-bridge-perf")
def bridge() -> Iterator[Task]:
    """Megatron Bridge's release notes: step time from tokens per second and GPU; H100 and Blackwell, dense and MoE."""
    for number, row in enumerate(table("published", "megatron-bridge-perf")):
        name = f"#{number} {row['model']} {row['gpus']} {row['system']} {row['precision'] or 'FP8'}"
        gpu = row["system"].removeprefix("DGX-")
        plain, _, variant = row["model"].partition(" (")
        gpus, rate = int(row["gpus"]), float(row["tokens_per_s_per_gpu"].split()[0])
        dense = plain.startswith("LLAMA")
        metric = f"step time, {'dense' if dense else 'MoE'} {'H100' if gpu == 'H100' else 'Blackwell'}"
        sizes = {
            "tp": _int(row["TP"]), "pp": _int(row["PP"]), "cp": _int(row["CP"]), "ep": _int(row["EP"]),
            "vp": _int(row["VP"]), "fsdp": _int(row["FSDP"]), "micro": _int(row["MBS"]),
            "whole": _int(row["GBS"]), "seq": _int(row["seq"]),
        }  # fmt: skip
        measured = sizes["whole"] * sizes["seq"] / (rate * gpus)
        why = _cannot(row["task"], plain)
        if why:
            yield skip(name, metric, why, measured)
            continue
        values = nemo(_bridge_model(plain, variant), gpu, gpus, _precision(row["precision"]), sizes)
        yield task(name, measured, values, metric=metric, note=_note(row))


def _cannot(what: str, model: str) -> str:
    if "LoRA" in what:
        return "low-rank adapters: only their gradients are worked out, which no scenario says"
    if model.startswith("Nemotron"):
        return "Mamba layers among the transformer's: no such block"
    return ""


def _bridge_model(plain: str, variant: str) -> Values:
    if plain == "Kimi_K2":
        model = cut("deepseek-v3", 61, **_KIMI_K2)
        experts = {**model["experts"], "count": 384, "dense_layers": [0]}
        return {**model, "experts": experts, "multi_token_prediction_layers": 0}
    found = _BRIDGE[plain]
    model = cut(found, _layers(found))
    if "w/o MTP" in variant:
        model["multi_token_prediction_layers"] = 0
    return model


def _precision(text: str) -> str:
    return _PRECISIONS[text.split(maxsplit=1)[0] if text else ""]


def _note(row: Mapping[str, str]) -> str:
    notes = []
    if not row["precision"]:
        notes.append("precision not given: FP8 tensorwise")
    if " (" in row["tokens_per_s_per_gpu"]:
        notes.append("first of two figures")
    if "dropless" in row["model"] or "tokendrop" in row["model"]:
        notes.append("even routing for " + row["model"].partition("(")[2].rstrip(")"))
    return "; ".join(notes)


def _int(text: str) -> int:
    """The first whole number of a cell; 1 where there is none."""
    found = re.match(r"\d+", text)
    return max(1, int(found.group())) if found else 1
