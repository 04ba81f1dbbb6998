"""A trace's diagnosis as an engineer would write it, in 80 columns."""

from __future__ import annotations

import textwrap

import numpy as np

from simulator.report.figures import share, time_with_unit
from simulator.study.trace_diagnosis import TraceDiagnosis, quantiles

_LABELS = {
    "dataloader_wait": "dataloader wait",
    "sm_activity": "SM activity",
    "collectives": "time in collectives",
    "rank_spread": "spread across ranks",
}


def report(found: TraceDiagnosis) -> str:
    """The text."""
    step, timeline = found.step_s, found.timeline
    ranks = f"{len(timeline.ranks)} rank" + "s" * (len(timeline.ranks) > 1)
    gpu = str(timeline.meta.get("gpu") or "")
    lines = [f"Trace of {ranks}" + (f" on {gpu}" if gpu else "") + f", {found.steps} step(s)", ""]
    if np.isnan(found.step_predicted_s):
        lines.append(
            f"The step takes {time_with_unit(step)}; with --model, --gpu and --tokens-per-step MFU is told too."
        )
    else:
        lines.append(
            f"The model's FLOPs would take {time_with_unit(found.step_predicted_s)} at peak; the step takes "
            f"{time_with_unit(step)}. {time_with_unit(step - found.step_predicted_s)} are to explain "
            f"(MFU {share(found.mfu)})."
        )
    lengths = found.gaps.lengths_s
    middle, high, longest = (time_with_unit(value) for value in quantiles(lengths))
    lines += [
        "",
        f"GPU idle   {share(found.idle_share)} of the traced span, in {len(lengths):,} gaps: half below {middle}, "
        f"nine in ten below {high}, the longest {longest}.",
    ]
    shown = {name: value for name, value in found.host.items() if value > 1e-4 * step}
    lines.append("Host" if shown else "Host       never kept the GPU waiting.")
    for name, value in sorted(shown.items(), key=lambda one: -one[1]):
        seen = [textwrap.shorten(one, 40) for one in found.gaps.evidence.get(name, ())]
        proof = f" (seen: {', '.join(seen)})" if seen else ""
        lines.append(f"  {name}: {time_with_unit(value)} a step{proof}")
    lines.append("Collectives" if found.collectives else "Collectives  none.")
    for axis, values in found.collectives.items():
        rate = values["busbw_bytes_per_s"]
        moved = f", busbw {rate / 1e9:.1f} GB/s" if rate else ""
        wait = values["waiting_s"]
        late = (
            "the others were not traced"
            if np.isnan(wait)
            else f"{time_with_unit(wait)} waiting for the last rank"
        )
        lines.append(
            f"  {axis}: {time_with_unit(values['total_s'])} a step, {time_with_unit(values['exposed_s'])} exposed, "
            f"{late}{moved}"
        )
    lines += [
        f"Optimizer  {time_with_unit(found.optimizer_s)} ({share(found.optimizer_s / step)}).",
        "",
        "Suspects",
    ]
    lines += [f"  {_LABELS[name]:<20} {share(value)}" for name, value in found.suspects.items()]
    lines += ["", "Verdict: causes by worth"]
    for number, cause in enumerate(found.causes, 1):
        points = f", {cause.mfu_points:.1f} points of MFU" if cause.mfu_points else ""
        sure = cause.confidence.partition(":")[0]
        lines.append(
            f"  {number}. {cause.cause}: {time_with_unit(cause.seconds)}{points} ({sure} confidence)"
        )
        lines.append(f"     {cause.advice}.")
    if not found.causes:
        lines.append("  nothing above 0.2% of the step.")
    return "\n".join(part for line in lines for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, 80, subsequent_indent=indent if line.startswith(" ") else "") or [""]
