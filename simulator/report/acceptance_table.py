"""What acceptance found, as a table in 80 columns and in words."""

from __future__ import annotations

import textwrap
from typing import Final

from simulator.report.figures import share, time_with_unit
from simulator.study.acceptance import Acceptance, Check
from simulator.study.acceptance_layers import (
    COMMUNICATION,
    HOST,
    INPUT,
    TESTED,
    TIME,
    Elimination,
)
from simulator.units import show_bytes

_UNITS: Final = {"FLOP/s": (1e12, "TFLOP/s"), "bytes/s": (1e9, "GB/s")}
_NAMED: Final = 8


def report(found: Acceptance) -> str:
    """The text."""
    verdict = "passed" if found.passed else "FAILED"
    lines = [
        f"{found.scenario}: acceptance of {found.gpus:,} GPUs on {found.nodes:,} nodes: {verdict}",
        "",
        f"{'test':<30}{'worst':>9}{'median':>9}{'healthy':>9} {'unit':<8}{'share':>6}{'needs':>6}",
    ]
    lines += [_row(check) for check in found.checks]
    lines.append("")
    names = found.failing
    if names:
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines += textwrap.wrap(f"Failing: {', '.join(names[:_NAMED])}{more}.", 80)
    elif not found.passed:
        lines += textwrap.wrap(
            "No GPU, node or NIC fails by itself: what they share does. Look at the links between switches, "
            "and at the traffic of others.",
            80,
        )
    else:
        lines += textwrap.wrap(
            "What acceptance cannot see: the input pipeline, the job's host software, its own pattern of "
            "communication, load that lasts, and what comes with time (trainsim diagnose --with-acceptance).",
            80,
        )
    return "\n".join(lines)


_ADVICE: Final = {
    INPUT: "Look at the dataloader: its workers, its store, its decoding; acceptance loads nothing.",
    HOST: "Look at launches, synchronisation, garbage collection, checkpoints and what else runs on the "
    "hosts; acceptance issues few launches and waits for none.",
    COMMUNICATION: "Look at overlap, buckets, groups and their place; acceptance runs one large collective "
    "alone, the job runs its own beside its kernels.",
    TIME: "Look at clocks, power and temperature over hours, and at what came after acceptance; it was short "
    "and the GPUs were cold.",
}


def elimination(found: Elimination) -> str:
    """The step by layer, in the order in which they were taken away, and the verdict."""
    accepted, step = found.acceptance, found.step_s
    lines = [f"With acceptance: {'passed' if accepted.passed else 'FAILED'}; layers taken away in order"]
    for layer, seconds in found.layers.items():
        parts = [
            f"{part.name} {time_with_unit(part.seconds)}"
            for part in found.parts
            if part.layer == layer and part.seconds > 1e-3 * step
        ]
        spent, part = (
            (time_with_unit(seconds), share(seconds / step)) if seconds > 1e-3 * step else ("nothing", "")
        )
        head = f"  {layer:<28}{spent:>10} {part:>6}  "
        lines += textwrap.wrap(head + "; ".join(parts), 80, subsequent_indent=" " * len(head)) or [head]
    lines.append(
        f"  {'left, with all of it gone':<28}{time_with_unit(found.rest_s):>10} {share(found.rest_s / step):>6}"
    )
    return "\n".join([*lines, *textwrap.wrap(_verdict(found), 80)])


def _verdict(found: Elimination) -> str:
    accepted, layers = found.acceptance, found.layers
    held = max((layer for layer in layers if layer != TESTED), key=lambda layer: layers[layer])
    holds = found.holds
    said = ""
    if not accepted.passed:
        names = ", ".join(accepted.failing[:_NAMED]) or "what the nodes share"
        said = f"Acceptance catches it already: {names}, worth {time_with_unit(layers[TESTED])} a step. "
    elif holds == TESTED:
        return (
            f"Hardware within acceptance's thresholds holds the gap, {time_with_unit(layers[TESTED])} a step: "
            "a job in lockstep goes as slowly as its slowest part. Ask for more, or take the slowest out."
        )
    if holds is None or layers[held] < 0.02 * found.step_s:
        return said + "No layer that acceptance cannot see holds 2% of the step."
    first = "Acceptance passes, and" if accepted.passed else "Beyond it,"
    part = share(layers[held] / found.step_s)
    return f"{said}{first} {_the(held)} holds {time_with_unit(layers[held])} of the step ({part}). {_ADVICE[held]}"


def _the(layer: str) -> str:
    return layer if layer in (COMMUNICATION, TIME) else f"the {layer}"


def _row(check: Check) -> str:
    scale, unit = _UNITS[check.unit]
    name = check.name if check.size_bytes is None else f"{check.name} {show_bytes(check.size_bytes)}"
    figures = "".join(f"{value / scale:>9,.1f}" for value in (check.worst, check.median, check.healthy))
    mark = "" if check.passed else " !"
    return f"{name:<30}{figures} {unit:<8}{100 * check.share:>5.0f}%{100 * check.needed:>5.0f}%{mark}"
