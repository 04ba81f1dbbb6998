"""A chart of busbw over size, as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import SpecError
from simulator.study.collectives import Row


def page(rows: Sequence[Row], title: str) -> str:
    """HTML. Raises SpecError where Plotly is not installed."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise SpecError.of("--plot", "needs Plotly: pip install 'trainsim[plot]'") from error
    sizes = [row.size_bytes for row in rows]
    figure = go.Figure(layout={"title": title, "template": "plotly_white"})
    figure.add_scatter(x=sizes, y=[row.busbw_bytes_per_s / 1e9 for row in rows], name="simulated")
    seen = [row for row in rows if row.measured_s is not None and row.time_s > 0]
    if seen:
        busbw = [row.busbw_bytes_per_s * row.time_s / (row.measured_s or 1) / 1e9 for row in seen]
        figure.add_scatter(x=[row.size_bytes for row in seen], y=busbw, name="measured", mode="markers")
    figure.update_xaxes(type="log", title="size (bytes)")
    figure.update_yaxes(title="busbw (GB/s)", rangemode="tozero")
    return str(figure.to_html(include_plotlyjs=True, full_html=True))
