"""Prints every speed figure: start-up, the quickstart, big folded runs, the solver. Run from a checkout.

    python validation/speed.py [NAME ...]

Engine time is without imports; peak RSS is of the process that ran the row, each in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

BIG: dict[str, Any] = {
    "name": "126 layers, 16 stages",
    "model": "llama-3.1-405b",
    "cluster": {"topology": "llama3-roce-24k", "gpus": 16384, "gpu": "h100-sxm"},
    "parallelism": {
        "tp": 8,
        "pp": 16,
        "sequence_parallel": True,
        "layers_per_stage": [7, *[8] * 14, 7],
        "sharding": "zero-1",
    },
    "batch": {"sequence_length": 8192, "micro_batch": 1, "global_batch": 2048},
    "software": {"framework": "megatron", "attention": "flash3"},
    "run": {"steps": 1, "warmup": 0},
}
SLOW = [
    {"kind": "slow-compute", "node": 17, "factor": 0.8},
    {"kind": "garbage-collection", "rank": 777, "duration": "300 ms", "every_steps": 1},
]


def _set(values: dict[str, Any], **changes: Any) -> Any:
    from simulator import load

    return load(values, {path.replace("__", "."): value for path, value in changes.items()})


def _events(scenario: Any, fold: bool = True) -> tuple[float, str]:
    from simulator.engine import events
    from simulator.engine.cast import unfolded
    from simulator.engine.fold import fold as folded
    from simulator.study.simulate import make_setting

    setting = make_setting(scenario)
    began = time.perf_counter()
    cast = folded(setting) if fold else unfolded(setting)
    play = events.play(cast)
    spent = time.perf_counter() - began
    count = len(play.recorder.device)
    return spent, f"{len(cast.lanes)} lanes, {count:,} operations, {count / spent:,.0f} a second"


def startup() -> tuple[float, str]:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", "import sys; from simulator.cli import main; main(['--help'])"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        times.append(time.perf_counter() - began)
    return min(times), "trainsim --help, whole process, best of 5"


def quickstart() -> tuple[float, str]:
    began = time.perf_counter()
    code = "from simulator import simulate; simulate('gpt2-xl-ddp', **{'run.fold': False})"
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began, "gpt2-xl-ddp, 128 ranks unfolded, 10 steps, whole process"


def big() -> tuple[float, str]:
    return _events(_set(BIG))


def big_with_two_faults() -> tuple[float, str]:
    return _auto(_set({**BIG, "faults": SLOW}))


def _auto(scenario: Any) -> tuple[float, str]:
    from simulator.engine import run
    from simulator.study.simulate import make_setting

    setting = make_setting(scenario)
    began = time.perf_counter()
    timeline = run(setting)
    spent = time.perf_counter() - began
    return spent, f"{timeline.meta['engine']} engine, {scenario.run.steps} steps"


def big_with_private_jitter() -> tuple[float, str]:
    steps = 5
    jitter = [{"kind": "kernel-jitter", "cv": 0.05}]
    spent, about = _auto(_set({**BIG, "faults": jitter}, run__steps=steps, run__engine="lanes"))
    return spent / steps, f"{about}; a step"


def thousand_draws() -> tuple[float, str]:
    from simulator.study.monte_carlo import monte_carlo

    slow = [{"kind": "slow-compute", "fraction": 0.01, "factor": 0.8}]
    began = time.perf_counter()
    found = monte_carlo(_set({**BIG, "faults": slow}), 1000, processes=2)
    spent = time.perf_counter() - began
    return spent, f"1,000 draws of 1% slow nodes: mean {found.mean_s:.2f} s, no fault {found.healthy_s:.2f} s"


def hundred_thousand_ranks() -> tuple[float, str]:
    shape = {"cluster": {"topology": "dgx-h100", "gpus": 131072}}
    return _events(_set({**BIG, **shape}, batch__global_batch=16384))


def diagnosed() -> tuple[float, str]:
    from simulator import load
    from simulator.study.diagnose import diagnose

    scenario = load("llama3-405b-16k")
    began = time.perf_counter()
    found = diagnose(scenario, method="shapley")
    assert found.worth is not None
    return (
        time.perf_counter() - began,
        f"llama3-405b-16k, {len(found.causes)} causes as Shapley values, {found.worth.runs} runs",
    )


def _exponent(points: list[tuple[int, float]]) -> tuple[float, str]:
    """The largest point's time, and the power that time grows with (least squares on logarithms)."""
    import numpy as np

    sizes, times = np.array(points).T
    power = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    rows = ", ".join(f"{int(size):,}: {spent:.2f} s" for size, spent in points)
    return float(times[-1]), f"exponent {power:.2f} ({rows})"


def against_ranks() -> tuple[float, str]:
    """DP grows from 8 to 1,024 with the batch: a healthy folded run has the same lanes at any."""
    points = []
    for ranks in (1024, 4096, 16384, 65536, 131072):
        values = {**BIG, "cluster": {"topology": "dgx-h100", "gpus": ranks}}
        points.append((ranks, _events(_set(values, batch__global_batch=ranks // 8))[0]))
    return _exponent(points)


def against_micro_batches() -> tuple[float, str]:
    points = []
    for micro_batches in (16, 32, 64, 128):
        points.append((micro_batches, _events(_set(BIG, batch__global_batch=128 * micro_batches))[0]))
    return _exponent(points)


def ring(ranks: int) -> tuple[float, str]:
    from simulator.hardware import gpu
    from simulator.network import fabric as fabrics
    from simulator.network.collectives import plan
    from simulator.scenario import load_topology

    fabric = fabrics.build(load_topology("dgx-h100"), ranks, gpu("h100-sxm"))
    plan(fabric, "all-reduce", range(8), 2.0**20)
    began = time.perf_counter()
    activity = plan(fabric, "all-reduce", range(ranks), 2.0**30, algorithm="ring", protocol="Simple")
    answer = activity.alone_s(fabric.capacity_bytes_per_s)
    return time.perf_counter() - began, f"1 GiB ring all-reduce, {ranks} ranks: {answer * 1e3:.1f} ms"


def table_of_sizes() -> tuple[float, str]:
    from simulator.study.collectives import Question, rows

    began = time.perf_counter()
    found = rows(Question("all-reduce", "dgx-h100", nodes=2048, size="8B..8GB"))
    return time.perf_counter() - began, f"{len(found)} sizes on 16,384 GPUs, fabric built"


def data_parallel(fold: bool) -> tuple[float, str]:
    layers = [
        {
            "name": "layer",
            "repeat": 32,
            "parameters": 104857600,
            "forward_time": "10 ms",
            "backward_time": "20 ms",
        }
    ]
    values = {
        "model": {"name": "32 layers", "layers": layers},
        "cluster": {"topology": "dgx-h100", "gpus": 512},
        "batch": {"micro_batch": 1, "global_batch": 512},
        "overlap": {"bucket_size": "400 MiB", "first_bucket": "400 MiB"},
        "run": {"steps": 1, "warmup": 0},
    }
    return _events(_set(values), fold)


def unfolded_1024() -> tuple[float, str]:
    shape = {"cluster": {"topology": "dgx-a100", "gpus": 1024}}
    from simulator import load

    quick = load(
        "gpt2-xl-ddp", {"cluster.gpus": 1024, "batch.global_batch": 8192, "run.steps": 1, "run.warmup": 0}
    )
    del shape
    return _events(quick, fold=False)


ROWS: dict[str, tuple[Callable[[], tuple[float, str]], float | None]] = {
    "start-up": (startup, 0.4),
    "quickstart": (quickstart, 5.0),
    "16,384 ranks, healthy, folded": (big, 1.0),
    "16,384 ranks, slow node and GC": (big_with_two_faults, 2.0),
    "16,384 ranks, private jitter, a step": (big_with_private_jitter, 2.0),
    "16,384 ranks, 1,000 draws": (thousand_draws, 60.0),
    "131,072 ranks, healthy, folded": (hundred_thousand_ranks, 3.0),
    "16,384 ranks diagnosed": (diagnosed, 60.0),
    "folded, against ranks": (against_ranks, None),
    "folded, against micro-batches": (against_micro_batches, None),
    "ring over 1,024": (lambda: ring(1024), 0.010),
    "ring over 16,384": (lambda: ring(16384), 0.010),
    "30 sizes on 16,384 GPUs": (table_of_sizes, 2.0),
    "512 ranks, 32 x 400 MiB, folded": (lambda: data_parallel(True), 0.1),
    "512 ranks, 32 x 400 MiB, unfolded": (lambda: data_parallel(False), 2.0),
    "1,024 ranks unfolded": (unfolded_1024, None),
}


def main(names: list[str]) -> None:
    if len(names) == 1 and names[0] in ROWS:
        spent, about = ROWS[names[0]][0]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{spent}\t{peak}\t{about}")
        return
    print(f"{'case':<38} {'time':>9} {'at most':>8} {'peak RSS':>9}  about")
    for name, (_, most) in ROWS.items():
        if names and not any(wanted in name for wanted in names):
            continue
        done = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True)
        spent, peak, about = done.stdout.strip().split("\t")
        limit = "" if most is None else f"{most:g} s"
        print(f"{name:<38} {float(spent):>7.3f} s {limit:>8} {float(peak):>5.0f} MiB  {about}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
