"""Collectives by size, as nccl-tests lays them out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from simulator.study.collectives import Row
from simulator.units import show_time


def table(rows: Sequence[Row], *, measured: bool) -> Table:
    """Size, time, algbw and busbw in GB/s, what was chosen; with measurements, time and error."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("size (B)", "time", "algbw GB/s", "busbw GB/s"):
        result.add_column(name, justify="right")
    result.add_column("algorithm")
    result.add_column("protocol")
    if measured:
        result.add_column("measured", justify="right")
        result.add_column("error", justify="right")
    for row in rows:
        cells = [
            f"{row.size_bytes:.0f}",
            show_time(row.time_s),
            f"{row.algbw_bytes_per_s / 1e9:.2f}",
            f"{row.busbw_bytes_per_s / 1e9:.2f}",
            row.algorithm,
            row.protocol,
        ]
        if row.measured_s is not None and row.error is not None:
            cells += [show_time(row.measured_s), f"{100 * row.error:+.1f}%"]
        result.add_row(*cells)
    return result
