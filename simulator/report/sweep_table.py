"""A sweep and a comparison for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from simulator.analysis.result import Result
from simulator.report.figures import bar, share, time_unit
from simulator.study.sweep import Point
from simulator.units import show_bytes


def table(points: Sequence[Point]) -> Table:
    """A line a point; the fastest is marked, failed ones say why."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for name in points[0].settings:
        result.add_column(name.rpartition(".")[2])
    times = [point.step_time_s for point in points if point.step_time_s is not None]
    unit = time_unit(max(times, default=1.0))
    for column in (f"step {unit.name}", "MFU", f"exposed {unit.name}", "memory"):
        result.add_column(column, justify="right")
    result.add_column("")
    best, worst = min(times, default=0.0), max(times, default=1.0)
    for point in points:
        if point.step_time_s is None or point.mfu is None:
            result.add_row(*point.settings.values(), "-", "-", "-", "-", point.error[:60], style="red")
            continue
        result.add_row(
            *point.settings.values(),
            unit.of(point.step_time_s),
            share(point.mfu),
            unit.of(point.exposed_s or 0.0),
            show_bytes(point.peak_bytes or 0.0),
            bar(point.step_time_s / worst, 12) + (" fastest" if point.step_time_s == best else ""),
        )
    return result


def comparison(results: Sequence[Result], names: Sequence[str]) -> Table:
    """Items of the waterfall side by side, with the difference of the last to the first."""
    unit = time_unit(max(result.step_time_s for result in results))
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(f"{unit.name} a step")
    for name in names:
        made.add_column(name, justify="right", overflow="fold")
    made.add_column("difference", justify="right")
    first, last = results[0], results[-1]
    for item in first.waterfall:
        cells = [result.item(item.name).seconds for result in results]
        if max(cells) < 5e-4 * first.step_time_s:
            continue
        made.add_row(
            item.name, *(unit.of(cell) for cell in cells), _signed(unit.of(abs(cells[-1] - cells[0])), cells)
        )
    steps = [result.step_time_s for result in results]
    made.add_row(
        "step",
        *(unit.of(step) for step in steps),
        _signed(unit.of(abs(steps[-1] - steps[0])), steps),
        style="bold",
    )
    made.add_row(
        "MFU", *(share(result.mfu) for result in results), f"{100 * (last.mfu - first.mfu):+.1f} points"
    )
    return made


def _signed(text: str, cells: Sequence[float]) -> str:
    if not any(char in "123456789" for char in text):
        return text  # nothing that shows
    return f"{'+' if cells[-1] >= cells[0] else '-'}{text}"
