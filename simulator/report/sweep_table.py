"""A sweep and a comparison for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.analysis.result import Result
from simulator.report.figures import Unit, bar, share, time_unit
from simulator.study.sweep import Point
from simulator.units import show_bytes

#: items below this share of the first step in every scenario are left out
_LEAST: Final = 5e-4


def table(points: Sequence[Point]) -> RenderableType:
    """A line a point; the fastest is marked; why points failed stands below."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for name in points[0].settings:
        result.add_column(name.rpartition(".")[2], overflow="fold")
    times = [point.step_time_s for point in points if point.step_time_s is not None]
    unit = time_unit(max(times, default=1.0))
    for column in (f"step {unit.name}", "MFU", f"exposed {unit.name}", "memory"):
        result.add_column(column, justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    best, worst = min(times, default=0.0), max(times, default=1.0)
    reasons: dict[str, int] = {}
    for point in points:
        if point.step_time_s is None or point.mfu is None:
            number = reasons.setdefault(point.error, len(reasons) + 1)
            result.add_row(
                *point.settings.values(), "-", "-", "-", "-", Text(f"failed [{number}]"), style="red"
            )
            continue
        fastest = point.step_time_s == best and len(times) > 1
        result.add_row(
            *point.settings.values(),
            unit.of(point.step_time_s),
            share(point.mfu),
            unit.of(point.exposed_s or 0.0),
            show_bytes(point.peak_bytes or 0.0),
            bar(point.step_time_s / worst, 6) + (" fastest" if fastest else ""),
            style="green" if fastest else "",
        )
    if not reasons:
        return result
    notes = Table.grid(padding=(0, 1, 0, 0))
    for reason, number in reasons.items():
        notes.add_row(Text(f"[{number}]"), Text(reason))
    return Group(result, Text(""), notes)


def comparison(results: Sequence[Result], names: Sequence[str]) -> Table:
    """Items of the waterfall side by side, each with its difference to the first."""
    unit = time_unit(max(result.step_time_s for result in results))
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(f"{unit.name} a step", no_wrap=True)
    for number, name in enumerate(names):
        made.add_column(name, justify="right", overflow="fold")
        if number:
            made.add_column("", justify="right", no_wrap=True, style="dim")
    for item in results[0].waterfall:
        cells = [result.item(item.name).seconds for result in results]
        if max(cells) >= _LEAST * results[0].step_time_s:
            made.add_row(item.name, *_beside(unit, cells))
    made.add_row("step", *_beside(unit, [result.step_time_s for result in results]), style="bold")
    shares = [share(results[0].mfu)]
    for result in results[1:]:
        shares += [share(result.mfu), f"{100 * (result.mfu - results[0].mfu):+.1f}"]
    made.add_row("MFU, and points", *shares)
    return made


def _beside(unit: Unit, cells: Sequence[float]) -> list[str]:
    """The first figure, then each other with its difference to the first, where it shows one."""
    texts = [unit.of(cells[0])]
    for cell in cells[1:]:
        apart = unit.of(abs(cell - cells[0]))
        sign = "+" if cell > cells[0] else "-"
        texts += [unit.of(cell), f"{sign}{apart}" if any(char in "123456789" for char in apart) else ""]
    return texts
