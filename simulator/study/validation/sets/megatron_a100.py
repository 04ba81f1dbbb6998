"""Megatron-LM on Selene (DGX A100, eight 200 Gb/s ports): Narayanan et al. 2021, Korthikanti et al. 2022.

Attention unfused; gradients all-reduced after the backward, without overlap, in fp32 with bf16 and fp16
alike; interleaved schedules overlap their sends; every stage as many layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, activations_gib, batch, gpt, states_gib, task
from simulator.study.validation.layer import layer_ms

_PRESENT_WORK: Final = {"recompute": "selective", "sequence_parallel": "yes", "precision": "fp16"}
_SELENE: Final = {"topology": "dgx-a100", "gpu": "a100-sxm"}


def selene(model: Values, gpus: int, virtual: int, work: Mapping[str, int], **more: Any) -> Values:
    """A run of Megatron-LM of 2021 on Selene; `more` replaces whole sections."""
    parallelism = {
        "schedule": "interleaved-1f1b" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
        **more.pop("parallelism"),
    }
    return {
        "model": model,
        "cluster": {**_SELENE, "gpus": gpus},
        "precision": "fp16",
        "parallelism": parallelism,
        "batch": dict(work),
        "recompute": "full",
        "overlap": {"grad_reduce": False, "bucket_size": "1 TiB"},
        "software": {"framework": "megatron-2021", "attention": "unfused"},
        **more,
    }


@validation_set("korthikanti-2022")
def korthikanti() -> Iterator[Task]:
    """Korthikanti et al. 2022, figure 1 and table 5: full recomputation, or selective with SP.

    Figure 1's parameters and optimizer are those of the layers: embeddings are not in the published values.
    """
    for row in table("published", "korthikanti-2022"):
        values = _korthikanti(row)
        name = f"{row['model']} {row['recompute']}"
        if row["measured_step_s"]:
            yield task(name, float(row["measured_step_s"]), values)
        if row["recompute"] == "full" and row.get("measured_param_opt_gib"):
            held = float(row["measured_param_opt_gib"])
            metric = "parameters + optimizer"
            note = "layers alone: the four values are L / pp x 12 h^2 / t x 18 bytes"
            yield task(name, held, values, metric=metric, unit="GiB", figure=states_gib, note=note)
        if row.get("measured_activation_gib"):
            kept = float(row["measured_activation_gib"])
            yield task(name, kept, values, metric="activations", unit="GiB", figure=activations_gib)
    for row in table("published", "korthikanti-table3-5"):
        if int(row["DP"]) > 1:  # the others are above
            renamed = {**row, "tp": row["TP"], "pp": row["PP"], "interleave": row["interleave_m"]}
            values = _korthikanti({**renamed, **_PRESENT_WORK})
            yield task(row["model"], float(row["iter_s_present_work(SP+selective)"]), values)


def _korthikanti(row: Mapping[str, str]) -> Values:
    return selene(
        gpt(row),
        int(row["gpus"]),
        int(row["interleave"]),
        batch(int(row["seq"]), int(row["micro_batch"]), int(row["global_batch"])),
        parallelism={
            "tp": int(row["tp"]),
            "pp": int(row["pp"]),
            "sequence_parallel": row["sequence_parallel"] == "yes",
        },
        precision=row["precision"],
        recompute=row["recompute"],
    )


@validation_set("korthikanti-table4")
def korthikanti_layer() -> Iterator[Task]:
    """Korthikanti et al. 2022, table 4: one layer of the 22B model, forward and backward, five modes.

    The host is ahead (a layer among many); the backward has its recomputation in it.
    """
    for row in table("published", "korthikanti-table4-layer-22B"):
        mode = row["experiment"]
        values = selene(
            gpt({**row, "layers": "2"}),
            8,
            1,
            batch(int(row["seq"]), int(row["micro_batch"]), int(row["micro_batch"])),
            parallelism={"tp": int(row["TP"]), "sequence_parallel": "Seq" in mode},
            recompute="full" if "full" in mode else "selective" if "Selective" in mode else "none",
        )
        for part in ("forward", "backward", "combined"):
            measured = float(row[f"{part}_ms"])
            yield task(mode, measured, values, metric=f"layer {part}", unit="ms", figure=layer_ms(part))


@validation_set("megatron-sc21-table1")
def sc21() -> Iterator[Task]:
    """Narayanan et al. 2021, table 1: FLOPs counted with the recomputed forward; one model replica a group."""
    for row in table("published", "megatron-sc21-table1"):
        layers, pp = int(row["layers"]), int(row["pp"])
        chunk = int(row["layers_per_virtual_stage"]) if row["layers_per_virtual_stage"] else layers // pp
        values = selene(
            gpt(row),
            int(row["gpus"]),
            max(1, layers // pp // chunk),
            batch(int(row["seq"]), int(row["micro_batch"]), int(row["global_batch"])),
            parallelism={"tp": int(row["tp"]), "pp": pp},
        )
        rate = float(row["measured_tflops_per_gpu_incl_recompute"])
        yield task(row["model"], _seconds(values, rate), values)


def _seconds(values: Values, tflops_per_gpu: float) -> float:
    """Step time by the paper's FLOPs: 96 B s l h^2 (1 + s / 6h + V / 16lh), equation 3."""
    model, work = values["model"], values["batch"]
    s, h, layers = work["sequence_length"], model["hidden"], model["layers"]
    shape = 1 + s / (6 * h) + model["vocab"] / (16 * layers * h)
    flops = 96.0 * work["global_batch"] * s * layers * h * h * shape
    return float(flops / (tflops_per_gpu * 1e12 * values["cluster"]["gpus"]))


@validation_set("sc21-table2")
def sc21_zero() -> Iterator[Task]:
    """Narayanan et al. 2021, table 2: 175B and 530B, TP x PP (no interleaving) and ZeRO-3 (DeepSpeed).

    ZeRO-3 runs without tensor parallelism; its gradients in fp16.
    """
    sizes = {
        "174.6": {"layers": "96", "hidden": "12288", "heads": "96", "seq": "2048"},
        "529.6": {"layers": "105", "hidden": "20480", "heads": "128", "seq": "2048"},
    }
    for row in table("published", "sc21-table2-zero3-vs-ptdp"):
        zero = row["scheme"] == "ZeRO-3"
        more: Values = {}
        if zero:
            more = {
                "overlap": {},
                "software": {
                    "framework": "megatron-deepspeed",
                    "attention": "unfused",
                    "gradient_dtype": "fp16",
                },
            }
        values = selene(
            gpt(sizes[row["params_B"]]),
            int(row["gpus"]),
            1,
            batch(2048, int(row["micro_batch"]), int(row["global_batch_seqs"])),
            parallelism={"sharding": "zero-3"} if zero else {"tp": int(row["TP"]), "pp": int(row["PP"])},
            **more,
        )
        measured = _seconds(values, float(row["TFLOPs_per_gpu"]))
        name = "{scheme} {params_B}B {gpus} GPUs".format(**row)
        yield task(name, measured, values, metric=f"step time, {'ZeRO-3' if zero else 'TP x PP'}")
