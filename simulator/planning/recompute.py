"""When recomputation pays (Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5)."""

from __future__ import annotations

import math

from simulator.planning.answer import Answer, Step, positive, question


def layer_bytes(
    s: float, b: float, h: float, a: float, t: float, mode: str, sequence_parallel: bool
) -> float:
    """Activations of one layer a micro-batch, fp16: equations 1 to 6."""
    scores = 5 * a * s / h
    if mode == "full":
        return 2 * s * b * h / (t if sequence_parallel else 1)
    if mode == "selective":
        scores = 0.0
    if sequence_parallel:
        return s * b * h / t * (34 + scores)
    return s * b * h * (10 + 24 / t + scores / t)


def layer_flops(s: float, b: float, h: float) -> float:
    """Forward FLOPs of one layer: 24 b s h^2 (1 + s / 6h)."""
    return 24 * b * s * h * h * (1 + s / (6 * h))


@question("recompute")
def recompute(
    layers: float, hidden: float, heads: float, sequence_length: float, micro_batch: float = 1,
    tp: float = 1, pp: float = 1, sequence_parallel: bool = True, memory: float = 80e9,
    parameters: float | None = None, state_bytes: float = 18, dp_shards: float = 1,
) -> Answer:  # fmt: skip
    """Bytes and FLOPs a layer of no, selective and full recomputation; which a GPU needs.

    On the first of `pp` stages with 1F1B all pp micro-batches are in flight: `layers` layers' worth.
    """
    s, b = positive(sequence_length, "sequence_length"), positive(micro_batch, "micro_batch")
    h, a = positive(hidden, "hidden"), positive(heads, "heads")
    count = parameters or layers * 12 * h * h
    state = state_bytes * count / positive(tp, "tp") / positive(pp, "pp") / positive(dp_shards, "dp_shards")
    forward = layer_flops(s, b, h)
    core = 4 * b * s * s * h
    extra = {"none": 0.0, "selective": core, "full": forward}
    steps = [
        Step("forward FLOPs a layer", forward, "FLOP"),
        Step("parameters, gradients, optimizer", state, "B"),
    ]
    needed, fits = "none of the modes fits", {}
    for mode in ("full", "selective", "none"):
        each = layer_bytes(s, b, h, a, tp, mode, sequence_parallel)
        total = state + each * positive(layers, "layers")
        fits[mode] = total <= memory
        steps += [
            Step(f"{mode}: bytes a layer", each, "B"),
            Step(f"{mode}: bytes on the first stage", total, "B"),
            Step(f"{mode}: FLOPs done again over forward and backward", extra[mode] / (3 * forward)),
        ]
        if fits[mode]:
            needed = mode
    one = layer_bytes(s, 1, h, a, tp, "none", sequence_parallel) * layers
    most = math.floor(max(0.0, memory - state) / one)
    notes = [f"needed on {memory / 1e9:g} GB: {needed}"]
    if not fits["none"] and most >= 1:
        cost = extra["selective" if fits["selective"] else "full"] / (3 * forward)
        notes.append(
            f"a micro-batch of {most} needs no recomputation: it pays while its kernels lose less than "
            f"{100 * cost:.1f}% to being smaller"
        )
    steps.append(Step("largest micro-batch without recomputation", most))
    inputs = {
        "layers": layers, "hidden": h, "heads": a, "sequence_length": s, "micro_batch": b, "tp": tp, "pp": pp,
        "sequence_parallel": sequence_parallel, "memory": memory, "parameters": count,
    }  # fmt: skip
    ratio = layer_bytes(s, b, h, a, tp, "none", sequence_parallel) / layer_bytes(
        s, b, h, a, tp, "full", sequence_parallel
    )
    formula = "s b h (34 + 5 a s / h) / t; selective without the second term; full 2 s b h / t"
    return Answer("recompute", formula, inputs, tuple(steps), ratio, "x less memory with full", tuple(notes))
