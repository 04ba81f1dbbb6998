"""The spread of a scenario's draws, for people."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.report.figures import bar, count, time_unit
from simulator.study.monte_carlo import Draws

_QUANTILES = (("fastest", 0.0), ("5%", 0.05), ("median", 0.5), ("95%", 0.95), ("99%", 0.99), ("slowest", 1.0))
_BINS = 12
_ALIKE = 1e-6  # draws that differ by less have no histogram


def table(draws: Draws, name: str) -> RenderableType:
    """Quantiles beside the step without faults, a histogram, and the seed of the slowest draw."""
    times = np.array(draws.step_time_s)
    unit = time_unit(float(times.max()))
    quantiles = Table(box=None, pad_edge=False, header_style="bold")
    quantiles.add_column(f"{len(times)} draws")
    quantiles.add_column(f"step {unit.name}", justify="right")
    quantiles.add_column("over no fault", justify="right")
    rows = [("no fault", draws.healthy_s)]
    rows += [(label, draws.quantile(part)) for label, part in _QUANTILES]
    rows.insert(4, ("mean", draws.mean_s))
    for label, value in rows:
        more = "" if label == "no fault" else f"{100 * (value / draws.healthy_s - 1):+.1f}%"
        quantiles.add_row(label, unit.of(value), more)
    bins = Table.grid(padding=(0, 1, 0, 0))
    if np.ptp(times) < _ALIKE * times.max():
        bins.add_row("Every draw takes the same time.")
        counts, edges = np.zeros(0, dtype=np.int64), np.zeros(1)
    else:
        counts, edges = np.histogram(times, bins=_BINS)
    for number, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        span = f"{unit.of(float(low))} - {unit.of(float(high))} {unit.name}"
        bins.add_row(span, f"{number:>6}", bar(number / counts.max(), 30))
    slowest = (
        f"{count(draws.tokens_per_step / draws.mean_s)} tokens/s on average. "
        f"The slowest draw by itself: trainsim simulate {name} --set run.seed={draws.worst_seed}"
    )
    return Group(quantiles, Text(""), bins, Text(""), Text(slowest), Text(draws.how, style="dim"))
