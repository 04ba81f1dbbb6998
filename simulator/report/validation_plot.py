"""Errors of validation drawn against GPU, model size and sequence length: a slope is missing physics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.report.sweep_plot import require_plotly
from simulator.study.validation import Row


def page(found: Mapping[str, Sequence[Row]]) -> str:
    """A page of its own (HTML): the error of each row's step time, one colour a set. Needs Plotly."""
    require_plotly()
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    titles = ("by GPU", "by parameters, 1e9", "by sequence length, tokens")
    plot = make_subplots(rows=3, cols=1, subplot_titles=titles, vertical_spacing=0.08)
    colours = qualitative.Dark24
    for number, (name, rows) in enumerate(found.items()):
        shown = [row for row in rows if row.metric.startswith("step time") and math.isfinite(row.error)]
        axes = (
            [row.about.gpu for row in shown],
            [row.about.parameters_b for row in shown],
            [row.about.sequence for row in shown],
        )
        for place, values in enumerate(axes):
            plot.add_scatter(
                x=values, y=[100 * row.error for row in shown], mode="markers", name=name, legendgroup=name,
                showlegend=place == 0 and bool(shown), text=[row.name for row in shown],
                marker={"color": colours[number % len(colours)], "size": 6, "opacity": 0.7},
                row=place + 1, col=1,
            )  # fmt: skip
    for place in (2, 3):
        plot.update_xaxes(type="log", row=place, col=1)
    plot.update_yaxes(title_text="error, %", zeroline=True)
    plot.update_layout(title="Step time, ours over published", template="plotly_white", height=1100)
    return str(plot.to_html(include_plotlyjs=True, full_html=True, div_id="validation"))
