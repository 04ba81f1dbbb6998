"""A diagnosis as an engineer would write it, in 80 columns."""

from __future__ import annotations

import textwrap

from simulator.report.figures import share, time_with_unit
from simulator.study.diagnose import Diagnosis
from simulator.study.worth import Worth


def report(found: Diagnosis) -> str:
    """The text."""
    step = found.result.step_time_s
    lines = [
        f"{found.result.scenario}: {found.result.model} on {found.result.gpus:,} GPUs",
        "",
        f"The model's FLOPs would take {time_with_unit(found.step_predicted_s)} at peak; the step takes "
        f"{time_with_unit(step)}. {time_with_unit(found.to_explain_s)} are to explain (MFU {share(found.result.mfu)}).",
        "",
        f"GPU idle   {share(found.gpu_idle_s / step)} of the step, in {found.gaps:g} gaps a step.",
        "Host       " + (_parts(found.host, step) or "never kept the GPU waiting."),
        "Collectives",
    ]
    for axis, values in found.collectives.items():
        lines.append(
            f"  {axis:<10} {time_with_unit(values['total_s'])} a step, {time_with_unit(values['exposed_s'])} exposed, "
            f"{time_with_unit(values['waiting_s'])} waiting for the last rank"
        )
    lines += [
        f"Optimizer  {time_with_unit(found.optimizer_s)} ({share(found.optimizer_s / step)}).",
        "",
        "Suspects",
    ]
    labels = {
        "dataloader_wait": "dataloader wait",
        "sm_activity": "SM activity",
        "tensor_activity": "tensor activity",
        "hbm_throughput": "HBM throughput",
        "collectives": "time in collectives",
        "rank_spread": "spread across ranks",
    }
    lines += [f"  {labels[name]:<20} {share(value)}" for name, value in found.suspects.items()]
    if found.spread.get("rank") is not None:
        where = f"rank {found.spread['rank']} on node {found.spread['node']}"
        lines.append(
            f"  {where} computes {share(found.spread['compute_spread'])} longer than its stage's median."
        )
    if found.spread.get("sort", "everyone") != "everyone":
        lines.append(f"  {found.spread['text']}.")
    lines += ["", "Verdict: causes by worth"]
    for number, cause in enumerate(found.causes[:8], 1):
        worth = f"{time_with_unit(cause.seconds)}, {cause.mfu_points:.1f} points of MFU"
        lines.append(f"  {number}. {cause.cause}: {worth} ({cause.confidence.partition(':')[0]} confidence)")
        lines.append(f"     {cause.advice}.")
    return "\n".join(part for line in lines for part in _wrapped(line))


def worth_table(found: Worth) -> str:
    """What each removable cause is worth, and all of them together."""
    ways = {
        "single": "each removed alone",
        "cumulative": "removed one after the other",
        "shapley": "Shapley values" + ("" if found.exact else ", orders drawn"),
    }
    lines = [f"Worth of what can be removed ({ways[found.method]}; {found.runs} runs)"]
    lines += [f"  {time_with_unit_signed(value):>10}  {name}" for name, value in found.seconds.items()]
    lines.append(f"  {time_with_unit_signed(found.all_s):>10}  all of them together")
    return "\n".join(lines)


def time_with_unit_signed(seconds: float) -> str:
    """
    >>> time_with_unit_signed(-0.25)
    '-250.0 ms'
    """
    return ("-" if seconds < -5e-10 else "") + time_with_unit(abs(seconds))


def _parts(host: dict[str, float] | object, step: float) -> str:
    assert hasattr(host, "items")
    shown = [f"{name} {time_with_unit(value)}" for name, value in host.items() if value > 1e-4 * step]
    return "; ".join(shown) + "." if shown else ""


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, 80, subsequent_indent=indent if line.startswith(" ") else "") or [""]
