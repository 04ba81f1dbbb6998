"""Validation for people: rows, and totals by set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from simulator.report.figures import figure
from simulator.study.validation import Row, Summary


def rows_table(name: str, rows: Sequence[Row]) -> Table:
    """Every row of a set; rows that were skipped say why."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=name, title_justify="left")
    table.add_column("row", overflow="fold", max_width=44)
    for column in ("published", "ours", "error", "ok"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        failed = math.isnan(row.ours)
        unit = f" {row.unit}" if row.unit else ""
        metric = f": {row.metric}" if row.metric and row.metric != "step time" else ""
        why = f" (skipped: {row.skipped})" if failed else f" ({row.note})" if row.note else ""
        table.add_row(
            f"{row.name}{metric}{why}",
            "-" if math.isnan(row.published) else figure(row.published) + unit,
            "-" if failed else figure(row.ours) + unit,
            "-" if failed else percent(row.error, signed=True),
            "yes" if row.ok else "no",
            style="" if row.ok else "red",
        )
    return table


def percent(value: float, *, signed: bool = False) -> str:
    """A share as percent; - where there is none."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"


def totals_table(totals: Sequence[Summary]) -> Table:
    """A line a set and metric."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("set", overflow="fold", max_width=22)
    table.add_column("metric", overflow="fold", max_width=20)
    for column in ("rows", "skip", "bias", "mean", "p90", "worst"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in totals:
        table.add_row(one.name, one.metric, str(one.count), str(one.skipped or ""), *_errors(one))
    return table


def _errors(one: Summary) -> list[str]:
    return [
        percent(one.bias, signed=True),
        percent(one.mean),
        percent(one.p90),
        percent(one.worst, signed=True),
    ]


def markdown_table(totals: Sequence[Summary]) -> str:
    """The totals as Markdown."""
    lines = [
        "| set | metric | rows | bias | mean | p90 | worst | worst row |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in totals:
        rows = f"{one.count} of {one.count + one.skipped}" if one.skipped else str(one.count)
        cells = [one.name, one.metric, rows, *_errors(one), one.worst_row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
