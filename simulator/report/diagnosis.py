"""A diagnosis as an engineer would write it down, in 80 columns, in the order in which it is read."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Final

from simulator.analysis.reading import EDGES_S, Evidence, Traffic
from simulator.report.figures import Unit, bar, count, share, time_unit, time_with_unit
from simulator.study.finding import Cause, Diagnosis
from simulator.study.removals import ALWAYS

_WIDTH: Final = 80
#: what takes less of a step is not worth a line
_LEAST: Final = 1e-4
#: causes in the verdict
_SHOWN: Final = 10

#: suspect -> (label, what the figure is a share of)
SUSPECTS: Final = {
    "dataloader_wait": ("dataloader wait", "of the step"),
    "sm_activity": ("SM activity", "of the step a kernel runs"),
    "tensor_activity": ("tensor activity", "of peak, recomputed FLOPs too"),
    "hbm_throughput": ("HBM throughput", "of the data sheet's"),
    "collectives": ("time in collectives", "of the step one is under way"),
    "rank_spread": ("spread across ranks", "slowest above the median"),
}


def report(found: Diagnosis) -> str:
    """The text."""
    sections = (_head, _idle, _host, _collectives, _optimizer, _suspects, _verdict)
    lines = [line for section in sections for line in (*section(found), "")]
    for note in found.notes:
        lines += [note]
    return "\n".join(part for line in lines for part in _wrapped(line)).rstrip()


def _head(found: Diagnosis) -> Iterator[str]:
    yield found.title
    yield ""
    unit = time_unit(found.step_s)
    if math.isnan(found.step_predicted_s):
        yield f"  {'step seen':<24}{_in(unit, found.step_s)}"
        yield "With --model, --gpu and --tokens-per-step the formula's step and MFU are told too."
        return
    yield f"  {'step predicted':<24}{_in(unit, found.step_predicted_s)}   the model's FLOPs at peak"
    yield f"  {'step seen':<24}{_in(unit, found.step_s)}   MFU {share(found.mfu)}"
    lost = share(found.to_explain_s / found.step_s)
    yield f"  {'to explain':<24}{_in(unit, found.to_explain_s)}   {lost} of the step"


def _idle(found: Diagnosis) -> Iterator[str]:
    idle = found.idle
    if idle.seconds < _LEAST * found.step_s:
        yield "GPU idle: hardly ever; a kernel runs nearly all of the step."
        return
    middle, high, longest = (time_with_unit(value) for value in idle.quantiles_s())
    between = f"GPU idle: {share(idle.share)} of the step, {time_with_unit(idle.seconds)}"
    if idle.inside_s > _LEAST * found.step_s:
        between += f" ({time_with_unit(idle.inside_s)} of it between launches of one run of kernels)"
    if not len(idle.lengths_s):
        yield between + "."
        return
    yield (
        f"{between}, in {count(idle.count)} gap{'s' * (idle.count != 1)} a step: half below {middle}, "
        f"nine in ten below {high}, the longest {longest}."
    )
    found_by_length = idle.histogram()
    names = ["below 10 us", "to 100 us", "to 1 ms", "to 10 ms", "to 100 ms", "above 100 ms"]
    assert len(names) == len(EDGES_S) + 1
    for name, number in zip(names, found_by_length, strict=True):
        if number:
            yield f"  {name:<14}{number:>9,}  {bar(number / max(found_by_length), 24)}"


def _host(found: Diagnosis) -> Iterator[str]:
    shown = {name: value for name, value in found.host.items() if value > _LEAST * found.step_s}
    if not shown:
        yield "Host: never kept the GPU waiting."
        return
    yield "Host, while the GPU had nothing to run, and the spans that show it"
    unit = time_unit(max(shown.values()))
    for name, value in sorted(shown.items(), key=lambda one: -one[1]):
        yield f"  {name:<24}{_in(unit, value)}   {share(value / found.step_s)} of the step"
        for one in found.evidence.get(name, ())[:3]:
            yield f"      {_seen(one)}"


def _seen(one: Evidence) -> str:
    longest = f"longest {time_with_unit(one.length_s)}, rank {one.rank} at {one.start_s:.3f} s"
    return f"{textwrap.shorten(one.name, 26)}, {time_with_unit(one.filled_s)} a step; {longest}"


def _collectives(found: Diagnosis) -> Iterator[str]:
    axes = found.collectives
    if not axes:
        yield "Collectives: none."
        return
    unit = time_unit(max(one.total_s for one in axes.values()))
    yield f"Collectives, {unit.name} of a step in which one is under way"
    yield f"  {'':<10}{'total':>8}{'hidden':>8}{'exposed':>8}{'waiting':>8}{'moving':>8}   busbw (fabric's), GB/s"
    for axis, one in axes.items():
        if axis == "all" and len(axes) == 2:
            continue
        values = (one.total_s, one.overlapped_s, one.exposed_s, one.waiting_s, one.moving_s)
        row = "".join(f"{'?' if math.isnan(value) else unit.of(value):>8}" for value in values)
        yield f"  {axis[:10]:<10}{row}   {_rate(axis, one)}"
    yield from (
        f"  {text}" for axis, one in axes.items() if axis != "all" for text in _said(axis, one, found)
    )


def _rate(axis: str, one: Traffic) -> str:
    if axis == "all" or math.isnan(one.busbw_bytes_per_s):
        return ""
    text = f"{one.busbw_bytes_per_s / 1e9:.1f}"
    if not math.isnan(one.fabric_busbw_bytes_per_s):
        text += f" ({one.fabric_busbw_bytes_per_s / 1e9:.1f})"
    return text


def _said(axis: str, one: Traffic, found: Diagnosis) -> Iterator[str]:
    """What the figures of an axis mean, where they mean something."""
    if math.isnan(one.waiting_s):
        yield f"{axis}: the other ranks were not traced, so waiting and moving are one."
    elif one.waiting_s > 0.5 * one.total_s and one.exposed_s > 0.01 * found.step_s:
        who = "the neighbouring stage" if axis == "pp" else "the last rank"
        yield f"{axis}: {share(one.waiting_s / one.total_s)} is waiting for {who}, not the network."
    slow = one.busbw_bytes_per_s < 0.9 * one.fabric_busbw_bytes_per_s
    if slow and one.moving_s > 0.01 * found.step_s:
        yield (
            f"{axis}: bytes move at {share(one.busbw_bytes_per_s / one.fabric_busbw_bytes_per_s)} of what the "
            "idle, healthy fabric gives: a slow link, other traffic, or collectives in each other's way."
        )


def _optimizer(found: Diagnosis) -> Iterator[str]:
    yield f"Optimizer: {time_with_unit(found.optimizer_s)}, {share(found.optimizer_s / found.step_s)} of the step."


def _suspects(found: Diagnosis) -> Iterator[str]:
    yield "One metric a suspect"
    for name, value in found.suspects.items():
        label, of_what = SUSPECTS[name]
        if math.isnan(value):
            yield f"  {label:<24}{'?':>9}   not in a trace"
        else:
            yield f"  {label:<24}{share(value):>9}   {of_what}"
    if found.spread.get("rank") is not None:
        where = f"rank {found.spread['rank']}" + (
            f" on node {found.spread['node']}" if found.spread.get("node") is not None else ""
        )
        yield f"  {where} computes {share(found.spread['compute_spread'])} longer than its stage's median."
    if found.spread.get("sort", "everyone") != "everyone":
        yield f"  {found.spread['text'][0].upper()}{found.spread['text'][1:]}."


def _verdict(found: Diagnosis) -> Iterator[str]:
    yield "Verdict: causes by worth"
    if not found.causes:
        yield "  Nothing above 0.2% of the step."
        return
    unit = time_unit(max(cause.seconds for cause in found.causes))
    for number, cause in enumerate(found.causes[:_SHOWN], 1):
        if cause.cause in ALWAYS and (number == 1 or found.causes[number - 2].cause not in ALWAYS):
            yield "  and what every run has:"
        yield f"  {number:>2}. {_cause(cause, unit)}"
        yield f"      {cause.advice[0].upper()}{cause.advice[1:]}." if cause.advice else ""
    rest = found.causes[_SHOWN:]
    if rest:
        yield f"  and {len(rest)} more, {time_with_unit(sum(cause.seconds for cause in rest))} together."
    yield from _together(found)
    first = found.causes[0]
    if (
        first.mfu_points > 0
        and not math.isnan(found.mfu)
        and (found.worth is None or found.worth.method == "single")
    ):
        yield ""
        yield (
            f"Mend the first, {first.cause}, and the step takes {time_with_unit(found.step_s - first.seconds)} at "
            f"an MFU of {share(found.mfu + first.mfu_points / 100)}."
        )


_WAYS: Final = {
    "single": "Each is removed alone",
    "cumulative": "Each is removed after those before it in a fixed order",
    "shapley": "Shapley values, the mean over orders of removal",
}


def _together(found: Diagnosis) -> Iterator[str]:
    """How the worths were found, and what they come to."""
    if found.worth is None:
        return
    worth = found.worth
    left = worth.remainder_s
    rest = "" if abs(left) < 1e-6 * worth.step_s else f"; {time_with_unit(abs(left))} remain"
    adds = "" if worth.method == "single" else ", and their worths add up to that"
    yield ""
    yield (
        f"{_WAYS[worth.method]} ({worth.runs} runs). Without all of them the step is "
        f"{time_with_unit(worth.all_s)} shorter, {share(worth.all_s / worth.gap_s)} of what is to explain{adds}{rest}."
    )


def _cause(cause: Cause, unit: Unit) -> str:
    points = f", {cause.mfu_points:.1f} points of MFU" if cause.mfu_points > 0 else ""
    seconds = f"{unit.of(cause.seconds)} {unit.name}"
    return f"{cause.cause}: {seconds}{points} ({cause.confidence.partition(':')[0]} confidence)"


def _in(unit: Unit, seconds: float) -> str:
    return f"{unit.of(seconds):>9} {unit.name}"


def _wrapped(line: str) -> list[str]:
    if len(line) <= _WIDTH:
        return [line.rstrip()]
    indent = " " * (len(line) - len(line.lstrip()))
    hanging = "      " if indent else ""
    return textwrap.wrap(line, _WIDTH, subsequent_indent=hanging, break_long_words=True) or [""]
