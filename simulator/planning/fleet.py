"""The fleet equation: FLOPs = GPUs x peak x MFU x time, solved for each of its terms."""

from __future__ import annotations

import math

from simulator.planning.answer import Answer, Step, part, positive, question

DAY_S = 86400.0
HOUR_S = 3600.0


def training_flops(parameters: float, tokens: float) -> float:
    """6 N D (Kaplan et al. 2020, arXiv:2001.08361)."""
    return 6.0 * parameters * tokens


def _flops(flops: float | None, parameters: float | None, tokens: float | None) -> tuple[float, list[Step]]:
    if flops is not None:
        return positive(flops, "flops"), []
    total = training_flops(positive(parameters or 0, "parameters"), positive(tokens or 0, "tokens"))
    return total, [Step("6 N D", total, "FLOP")]


@question("flops")
def flops(parameters: float, tokens: float) -> Answer:
    """FLOPs of training N parameters on D tokens."""
    total = training_flops(positive(parameters, "parameters"), positive(tokens, "tokens"))
    inputs = {"parameters": parameters, "tokens": tokens}
    return Answer("flops", "6 N D", inputs, (Step("6 N D", total, "FLOP"),), total, "FLOP")


@question("duration")
def duration(
    gpus: float,
    peak: float,
    mfu: float = 0.4,
    flops: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
) -> Answer:
    """How long a run takes."""
    total, steps = _flops(flops, parameters, tokens)
    rate = positive(gpus, "gpus") * positive(peak, "peak") * part(mfu, "mfu")
    days = total / rate / DAY_S
    steps += [Step("GPUs x peak x MFU", rate, "FLOP/s"), Step("FLOPs / that", total / rate, "s")]
    inputs = {"flops": total, "gpus": gpus, "peak": peak, "mfu": mfu}
    return Answer("duration", "FLOPs / (GPUs x peak x MFU)", inputs, tuple(steps), days, "days")


@question("gpus")
def gpus(
    days: float,
    peak: float,
    mfu: float = 0.4,
    margin: float = 0.15,
    flops: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
) -> Answer:
    """How many GPUs a run needs; with a margin, and rounded up to a power of two."""
    total, steps = _flops(flops, parameters, tokens)
    if not math.isfinite(margin) or margin < 0:
        positive(margin, "margin")
    each = positive(peak, "peak") * part(mfu, "mfu") * positive(days, "days") * DAY_S
    bare = math.ceil(total / each)
    more = math.ceil(total / each * (1 + margin))
    power = 2 ** math.ceil(math.log2(more))
    steps += [
        Step("FLOPs of one GPU in that time", each, "FLOP"),
        Step("GPUs", bare, "GPUs"),
        Step(f"with {100 * margin:g}% margin", more, "GPUs"),
        Step("bare, next power of two", 2 ** math.ceil(math.log2(bare)), "GPUs"),
        Step("with margin, next power of two", power, "GPUs"),
    ]
    inputs = {"flops": total, "days": days, "peak": peak, "mfu": mfu, "margin": margin}
    notes = (f"name {power:,} GPUs: {more:,} with the margin, rounded up to a power of two",)
    return Answer("gpus", "FLOPs / (peak x MFU x time)", inputs, tuple(steps), bare, "GPUs", notes)


@question("gpu-hours")
def gpu_hours(
    peak: float,
    mfu: float = 0.4,
    flops: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
) -> Answer:
    """GPU-hours of a run."""
    total, steps = _flops(flops, parameters, tokens)
    hours = total / (positive(peak, "peak") * part(mfu, "mfu")) / HOUR_S
    steps.append(Step("FLOPs an hour of one GPU", peak * mfu * HOUR_S, "FLOP"))
    inputs = {"flops": total, "peak": peak, "mfu": mfu}
    return Answer("gpu-hours", "FLOPs / (peak x MFU x 3600)", inputs, tuple(steps), hours, "GPU-hours")


@question("implied-mfu")
def implied_mfu(
    hours: float,
    peak: float,
    flops: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
) -> Answer:
    """The MFU that published GPU-hours imply."""
    total, steps = _flops(flops, parameters, tokens)
    could = positive(hours, "hours") * HOUR_S * positive(peak, "peak")
    steps.append(Step("GPU-hours x 3600 x peak", could, "FLOP"))
    inputs = {"flops": total, "hours": hours, "peak": peak}
    value = total / could
    notes = () if value <= 1 else ("more than the peak could do: an input is off",)
    formula = "FLOPs / (GPU-hours x 3600 x peak)"
    return Answer("implied-mfu", formula, inputs, tuple(steps), value, "", notes)


@question("step")
def step(flops_per_token: float, tokens: float, gpus: float, peak: float, mfu: float = 0.4) -> Answer:
    """The step time that an MFU predicts."""
    total = positive(flops_per_token, "flops_per_token") * positive(tokens, "tokens")
    rate = positive(gpus, "gpus") * positive(peak, "peak") * part(mfu, "mfu")
    inputs = {"flops_per_token": flops_per_token, "tokens": tokens, "gpus": gpus, "peak": peak, "mfu": mfu}
    steps = (Step("FLOPs a step", total, "FLOP"), Step("GPUs x peak x MFU", rate, "FLOP/s"))
    formula = "FLOPs a token x tokens a step / (GPUs x peak x MFU)"
    return Answer("step", formula, inputs, steps, total / rate, "s")
