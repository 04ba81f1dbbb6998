"""A sweep as one self-contained page: step time and MFU over the first field, a line for each of the rest."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import SpecError
from simulator.study.sweep import Point


def page(points: Sequence[Point], title: str) -> str:
    """HTML; points without a result are left out. Raises SpecError where Plotly is not installed."""
    require_plotly()
    from plotly.subplots import make_subplots

    first, *rest = points[0].settings
    lines: dict[str, list[Point]] = {}
    for point in points:
        if point.step_time_s is not None:
            lines.setdefault(", ".join(f"{name}={point.settings[name]}" for name in rest), []).append(point)
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    figure.update_layout(title=title, template="plotly_white", showlegend=bool(rest))
    for number, (name, line) in enumerate(lines.items()):
        x = [point.settings[first] for point in line]
        style = {"name": name, "legendgroup": name, "line_color": _COLOURS[number % len(_COLOURS)]}
        times = [point.step_time_s for point in line]
        shares = [100 * (point.mfu or 0.0) for point in line]
        figure.add_scatter(x=x, y=times, mode="lines+markers", row=1, col=1, **style)
        figure.add_scatter(x=x, y=shares, mode="lines+markers", showlegend=False, row=2, col=1, **style)
    order = list(dict.fromkeys(point.settings[first] for point in points))
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    figure.update_xaxes(title=first, row=2)
    figure.update_yaxes(title="step (s)", rangemode="tozero", row=1)
    figure.update_yaxes(title="MFU (%)", rangemode="tozero", row=2)
    return str(figure.to_html(include_plotlyjs=True, full_html=True, div_id="sweep"))


def require_plotly() -> None:
    """Raise SpecError, before any work, where Plotly is not installed."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        raise SpecError.of("--plot", "needs Plotly: pip install 'trainsim[plot]'")


#: colours apart for the colour-blind: Okabe and Ito (2008)
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
