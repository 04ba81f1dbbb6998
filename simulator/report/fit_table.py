"""A scenario's memory, its margin, and what changes cost, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.report.figures import time_unit
from simulator.study.fit import Change, Fit
from simulator.units import show_bytes

#: items below this share of the peak are left out
_LEAST: Final = 5e-4


def table(found: Fit) -> RenderableType:
    """What the fullest rank holds; changes that save memory; micro-batches against recomputation."""
    parts: list[RenderableType] = [_items(found)]
    if found.changes:
        title = "Changes that save memory" if found.fits else "Changes that save memory, those that fit first"
        parts += [Text(""), Text(title, style="bold"), _changes(found.changes, found.step_time_s)]
    if len(found.micro_batches) > 1:
        parts += [
            Text(""),
            Text("Micro-batches with the least recomputation that fits", style="bold"),
            _changes(found.micro_batches, found.step_time_s),
        ]
        parts += [Text(line) for line in _even(found.micro_batches)]
    return Group(*parts)


def _items(found: Fit) -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    memory, capacity = found.memory, found.capacity_bytes
    made.add_row(Text(f"Rank of stage {memory.stage}", style="bold"), "", Text("%", style="dim"))
    rows = [one for one in memory.items if one[1] > _LEAST * memory.peak_bytes]
    for name, size in (*rows, ("peak", memory.peak_bytes), ("HBM", capacity)):
        made.add_row(name, show_bytes(size), f"{100 * size / capacity:.1f}")
    margin = found.margin_bytes
    label, style = ("margin", "green") if found.fits else ("too much", "red")
    made.add_row(Text(label, style=style), show_bytes(abs(margin)), f"{100 * abs(margin) / capacity:.1f}")
    return made


def _changes(changes: Sequence[Change], now_s: float | None) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("set", overflow="fold")
    unit = time_unit(now_s or 1.0)
    for column in ("peak", f"step {unit.name}", "price"):
        made.add_column(column, justify="right", no_wrap=True)
    for change in changes:
        time_s = change.step_time_s
        made.add_row(
            change.name,
            show_bytes(change.peak_bytes),
            "-" if time_s is None else unit.of(time_s),
            "does not fit" if not change.fits else _price(time_s, now_s),
            style="" if change.fits else "dim",
        )
    return made


def _price(time_s: float | None, now_s: float | None) -> str:
    return "" if time_s is None or not now_s else f"{100 * (time_s / now_s - 1):+.1f}%"


def _even(sizes: Sequence[Change]) -> list[str]:
    """Where a smaller micro-batch beats recomputing."""
    ran = [one for one in sizes if one.step_time_s is not None]
    less = [one for one in ran if one.settings["recompute"] != "full"]
    full = [one for one in ran if one.settings["recompute"] == "full"]
    if not less or not full:
        return []
    small = min(less, key=lambda one: one.step_time_s or 0.0)
    large = min(full, key=lambda one: one.step_time_s or 0.0)
    ratio = (large.step_time_s or 0.0) / (small.step_time_s or 1.0)
    better, worse = (small, large) if ratio >= 1 else (large, small)
    apart = 100 * (max(ratio, 1 / ratio) - 1)
    return [f"{better.name} beats {worse.name}: the other takes {apart:.1f}% longer."]
