"""Validation for people: rows, and totals by set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from simulator.report.figures import figure
from simulator.study.validation import Row, Summary


def rows_table(name: str, rows: Sequence[Row]) -> Table:
    """Every row of a set."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=name, title_justify="left")
    table.add_column("row", overflow="fold", max_width=44)
    for column in ("published", "ours", "error", "ok"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        failed = math.isnan(row.ours)
        unit = f" {row.unit}" if row.unit else ""
        table.add_row(
            f"{row.name}{': ' + row.metric if row.metric and row.metric != 'step time' else ''}"
            + (f" ({row.note})" if failed else ""),
            figure(row.published) + unit,
            "-" if failed else figure(row.ours) + unit,
            "-" if failed else f"{100 * row.error:+.1f}%",
            "yes" if row.ok else "no",
            style="" if row.ok else "red",
        )
    return table


def totals_table(totals: Sequence[Summary]) -> Table:
    """A line a set and metric."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("set")
    table.add_column("metric")
    for column in ("rows", "bias", "mean", "p90", "worst"):
        table.add_column(column, justify="right")
    for one in totals:
        errors = (one.bias, one.mean, one.p90, one.worst)
        shown = [
            f"{100 * value:+.1f}%" if i in (0, 3) else f"{100 * value:.1f}%" for i, value in enumerate(errors)
        ]
        table.add_row(one.name, one.metric, str(one.count), *shown)
    return table
