"""What slows a production job, in words and as a heat map: dp rank by stage."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final
from xml.sax.saxutils import escape

from simulator.report.figures import time_with_unit
from simulator.study.job import JobReport

_SHADES: Final = " .:-=+*#%@"
_ROWS: Final = 24  # dp ranks shown
_FIGURES: Final = 12  # stages up to which figures fit
_BEST, _WORST = (244, 241, 222), (193, 18, 31)  # colours of 1 and of the worst


def report(found: JobReport) -> str:
    """The text, in 80 columns."""
    worst = sorted(found.by_step.items(), key=lambda item: -item[1])
    steps = f"{worst[-1][1]:.3f} (step {worst[-1][0]}) to {worst[0][1]:.3f} (step {worst[0][0]})"
    lines = [
        *textwrap.wrap(found.finding, 80),
        "",
        f"Step        {time_with_unit(found.traced_s)} traced; {time_with_unit(found.replayed_s)} replayed "
        f"(each step within {100 * found.replay_error:.2f}%)",
        f"            {time_with_unit(found.undelayed_s)} without launch delays; "
        f"{time_with_unit(found.ideal_s)} with ideal durations",
        f"Slowdown S  {found.slowdown:.4f}; by step {steps}",
        "",
        "Slowdown with only these as traced, and share of the loss that they give back",
    ]
    for name, values in (("stage", found.by_stage), ("dp rank", found.by_dp_rank), ("type", found.by_optype)):
        lines += _decomposition(name, values, found.regained[name])
    alike = found.regained["data"]["micro-batches alike"]
    lines.append(
        f"  data    {'micro-batches alike':36}{100 * alike:7.1f}%  (correlation "
        f"{found.forward_backward_correlation:.2f})"
    )
    return "\n".join([*lines, "", *heat_map(found.by_worker)])


def _decomposition(name: str, values: Mapping[str, float], regained: Mapping[str, float]) -> Iterator[str]:
    for number, (one, value) in enumerate(sorted(values.items(), key=lambda item: -item[1])):
        if number == 8:
            yield f"  {'':8}and {len(values) - 8} more"
            return
        yield f"  {name if number == 0 else '':8}{one:28}{value:8.4f}{100 * regained[one]:7.1f}%"


def heat_map(by_worker: Mapping[str, float]) -> list[str]:
    """Lines of at most 80 columns: figures for few stages, shades for many; the worst dp ranks if too many."""
    cells = _cells(by_worker)
    stages = sorted({stage for _, stage in cells})
    rows = sorted({dp for dp, _ in cells})
    shown = sorted(sorted(rows, key=lambda dp: -max(cells.get((dp, s), 0.0) for s in stages))[:_ROWS])
    most = max(cells.values())
    kept = "" if len(shown) == len(rows) else f"; worst {len(shown)} of {len(rows)}"
    lines = [f"Worker as traced, others ideal (dp rank down, stage across{kept})"]
    if len(stages) <= _FIGURES:
        lines.append("  dp rank " + "".join(f"{stage:>5}" for stage in stages))
        for dp in shown:
            figures = (f"{cells[dp, s]:5.2f}" if (dp, s) in cells else "    -" for s in stages)
            lines.append(f"  {dp:>7} " + "".join(figures))
        return lines
    per = -(-len(stages) // 68)  # stages a column
    for dp in shown:
        heat = (
            max(cells.get((dp, s), 0.0) for s in stages[at : at + per]) for at in range(0, len(stages), per)
        )
        lines.append(f"  {dp:>7} " + "".join(_SHADES[round(9 * _heat(one, most))] for one in heat))
    return [*lines, f"  ' ' is 1.00, '@' is {most:.2f}"]


def draw(found: JobReport) -> str:
    """The heat map as SVG text."""
    cells = _cells(found.by_worker)
    most = max(cells.values())
    rows, columns = sorted({dp for dp, _ in cells}), sorted({stage for _, stage in cells})
    side = max(10, min(56, 900 // max(len(columns), 1)))
    tall = max(10, min(34, 900 // max(len(rows), 1)))
    width, top = max(560, 90 + side * len(columns)), 110
    height = top + tall * len(rows) + 40
    words = textwrap.wrap(found.finding, width // 7)[:3]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="slowdown by dp rank and stage">',
        "<style>text { font: 12px system-ui, sans-serif; fill: #222 } .in { fill: #000 } "
        "@media (prefers-color-scheme: dark) { .page { fill: #1b1b1b } text { fill: #eee } }</style>",
        f'<rect class="page" width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="24" style="font-weight: 600">Slowdown S {found.slowdown:.4f}</text>',
        *(f'<text x="16" y="{44 + 16 * k}">{escape(line)}</text>' for k, line in enumerate(words)),
        f'<text x="16" y="{top - 6}">dp rank</text>',
    ]
    for place, stage in enumerate(columns):
        parts.append(
            f'<text x="{80 + (place + 0.5) * side:.0f}" y="{top - 6}" text-anchor="middle">{stage}</text>'
        )
    for y, dp in enumerate(rows):
        parts.append(f'<text x="60" y="{top + (y + 0.65) * tall:.0f}" text-anchor="end">{dp}</text>')
        for x, stage in enumerate(columns):
            if (dp, stage) not in cells:
                continue
            value = cells[dp, stage]
            left, up = 80 + x * side, top + y * tall
            colour = _colour(_heat(value, most))
            parts.append(
                f'<rect x="{left}" y="{up}" width="{side - 1}" height="{tall - 1}" fill="{colour}">'
                f"<title>dp rank {dp}, stage {stage}: {value:.4f}</title></rect>"
            )
            if side >= 36 and tall >= 16:
                middle = left + side / 2
                parts.append(
                    f'<text class="in" x="{middle:.0f}" y="{up + 0.65 * tall:.0f}" text-anchor="middle" '
                    f'style="fill: #000; pointer-events: none">{value:.2f}</text>'
                )
    foot = f"stage across; the worker as traced and all others ideal, from 1.00 to {most:.2f}"
    parts += [f'<text x="16" y="{height - 14}">{foot}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _cells(by_worker: Mapping[str, float]) -> dict[tuple[int, int], float]:
    found = {}
    for name, value in by_worker.items():
        dp, stage = name.split(",")
        found[int(dp), int(stage)] = value
    return found


def _heat(value: float, most: float) -> float:
    """0 at 1 and below, 1 at the worst; nothing is hot where the worst is within 3%."""
    return min(1.0, max(0.0, (value - 1) / max(most - 1, 0.03)))


def _colour(heat: float) -> str:
    return "#" + "".join(f"{round(a + heat * (b - a)):02x}" for a, b in zip(_BEST, _WORST, strict=True))
