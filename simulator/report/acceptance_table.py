"""What acceptance found, as a table in 80 columns and in words."""

from __future__ import annotations

import textwrap
from typing import Final

from simulator.study.acceptance import Acceptance, Check
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


def _row(check: Check) -> str:
    scale, unit = _UNITS[check.unit]
    name = check.name if check.size_bytes is None else f"{check.name} {show_bytes(check.size_bytes)}"
    figures = "".join(f"{value / scale:>9,.1f}" for value in (check.worst, check.median, check.healthy))
    mark = "" if check.passed else " !"
    return f"{name:<30}{figures} {unit:<8}{100 * check.share:>5.0f}%{100 * check.needed:>5.0f}%{mark}"
