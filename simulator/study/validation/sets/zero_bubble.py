"""Zero-bubble schedules (arXiv:2401.10241), tables 3 to 5: GPT on A100, eight GPUs a node over RoCE.

No TP, one replica, no recomputation, attention unfused (the memory that 1F1B took says so); the first and
the last stage a layer shorter; interleaving with one layer a chunk. ZB-1p keeps 1F1B's memory as ZB-H1
does, ZB-2p twice of it as ZB-H2. Nodes with four 200 Gb/s ports (assumed).

The bubble rate is the paper's: what of a step is not work, from its own times of forward and backward.
Ours is that of the busiest stage in the simulated step, without the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from simulator.analysis.utilisation import compute_by_step
from simulator.study.simulate import load, make_setting
from simulator.study.validation.base import Task, table, validation_set
from simulator.study.validation.cases import Values, batch, gpt, one_leaf, peak_gib, stage_layers, task

_SCHEDULES: Final = {
    "1F1B": "1f1b", "1F1B-I": "interleaved-1f1b", "ZB-H1": "zb-h1", "ZB-H2": "zb-h2", "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
}  # fmt: skip
_GB: Final = 1e9 / 2.0**30


@validation_set("zero-bubble")
def zero_bubble() -> Iterator[Task]:
    """Step time from samples per second and GPU, memory, bubble rates."""
    for row in table("published", "zero-bubble"):
        values = _values(row)
        name = "{model} {schedule} p{PP} m{microbatches}".format(**row)
        note = "{schedule} as {other}".format(other=_SCHEDULES[row["schedule"]], **row)
        if row["samples_per_s_per_gpu_measured"]:
            rate = float(row["samples_per_s_per_gpu_measured"]) * int(row["gpus"])
            samples = int(row["micro_batch"]) * int(row["microbatches"])
            yield task(name, samples / rate, values, note=note)
            held = float(row["memory_GB_measured"]) * _GB
            yield task(name, held, values, metric="memory", unit="GiB", figure=peak_gib, note=note)
        rate = float(row["bubble_rate_computed"])
        yield task(name, rate, values, metric="bubble", unit="", figure=bubble, note=note, points=True)


def _values(row: Mapping[str, str]) -> Values:
    pp, layers = int(row["PP"]), int(row["layers"])
    interleaved = row["schedule"] == "1F1B-I"
    virtual = (layers + 2) // pp if interleaved else 1
    micro = int(row["micro_batch"])
    return {
        "model": gpt({**row, "vocab": "50304"}),
        "cluster": {"topology": "hgx-a100-4nic", "gpus": int(row["gpus"]), "gpu": "a100-sxm"},
        "precision": "fp16",
        "parallelism": {
            "pp": pp,
            "schedule": _SCHEDULES[row["schedule"]],
            "virtual_stages": virtual,
            "layers_per_stage": stage_layers(layers, pp * virtual),
        },
        "batch": batch(int(row["seq"]), micro, micro * int(row["microbatches"])),
        "software": {"framework": "megatron", "attention": "unfused", "gradient_dtype": "fp32"},
    }


def bubble(values: Values) -> float:
    """The part of the pipeline's time that the busiest stage does not compute, optimizer left out."""
    from simulator.engine import run
    from simulator.timeline import DeviceKind

    scenario = one_leaf(load({**values, "run": {"steps": 1, "warmup": 0}}, {}))
    timeline = run(make_setting(scenario))
    device = timeline.device
    work = (device.kind == DeviceKind.COMPUTE) | (device.kind == DeviceKind.RECOMPUTE)
    whole = float(device.end_s[work].max() - device.start_s[work].min())
    busy = compute_by_step(timeline)[:, 0]
    last = device.kind == DeviceKind.OPTIMIZER
    for lane in range(len(busy)):
        mine = last & (device.rank == lane)
        busy[lane] -= float((device.end_s[mine] - device.start_s[mine]).sum())
    return 1.0 - float(busy.max()) / whole
