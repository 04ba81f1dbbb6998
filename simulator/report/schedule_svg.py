"""A pipeline schedule as a picture: a row a stage, a box a pass, its micro-batch inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from simulator.parallel.schedules import Action
from simulator.parallel.schedules.unit_time import UnitTimes

_ROW: Final = 28
_LEFT: Final = 70
_TOP: Final = 56
_WIDEST: Final = 2400
_KINDS: Final = {
    "F": ("forward", "#4269d0", "#97bbf5"),
    "B": ("backward", "#3ca951", "#a3dbae"),
    "I": ("backward of the input", "#6cc5b0", "#bfe6dc"),
    "W": ("backward of the weights", "#efb118", "#f7dd9a"),
}
_STYLE: Final = """
  text { font: 11px system-ui, sans-serif; fill: #222 } .title { font-size: 15px; font-weight: 600 }
  .box { stroke: #fff } .box + text { text-anchor: middle } .dark { fill: #fff }
  .beside { stroke: #c1121f; fill: none; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) { .page { fill: #1b1b1b } .label { fill: #eee } .box { stroke: #1b1b1b } }
"""


def draw(timed: UnitTimes, title: str) -> str:
    """The SVG text. Second chunks are paler; passes that run side by side share a red frame."""
    unit = max(4.0, min(26.0, _WIDEST / timed.length))
    width = max(640.0, _LEFT + unit * timed.length + 20)
    height = _TOP + _ROW * len(timed.stages) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width:g}" height="{height}" fill="#fff"/>',
        f'<text class="title label" x="12" y="26">{escape(title)}</text>',
        *_rows(timed, unit),
        *_legend(timed, height - 18),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rows(timed: UnitTimes, unit: float) -> Iterator[str]:
    for number, stage in enumerate(timed.stages):
        y = _TOP + _ROW * number
        yield f'<text class="label" x="12" y="{y + 17}">stage {number}</text>'
        pair: float | None = None
        for action, start, end in stage:
            yield from _box(action, _LEFT + unit * start, y, unit * (end - start))
            if pair is not None:
                wide = _LEFT + unit * end - pair
                yield f'<rect class="beside" x="{pair:g}" y="{y}" width="{wide:g}" height="{_ROW - 4}"/>'
            pair = _LEFT + unit * start if action.beside else None


def _box(action: Action, x: float, y: float, width: float) -> Iterator[str]:
    _, strong, pale = _KINDS[action.kind]
    colour = pale if action.chunk % 2 else strong
    yield f'<rect class="box" x="{x:g}" y="{y}" width="{width:g}" height="{_ROW - 4}" fill="{colour}"/>'
    if width >= 12:
        dark = "" if action.chunk % 2 else ' class="dark"'
        yield f'<text{dark} x="{x + width / 2:g}" y="{y + 16}">{action.micro_batch}</text>'


def _legend(timed: UnitTimes, y: float) -> Iterator[str]:
    used = {action.kind for stage in timed.stages for action, _, _ in stage}
    x = 12.0
    for kind, (name, colour, _) in _KINDS.items():
        if kind in used:
            yield f'<rect x="{x:g}" y="{y - 10:g}" width="12" height="12" fill="{colour}"/>'
            yield f'<text class="label" x="{x + 17:g}" y="{y:g}">{name}</text>'
            x += 30 + 6.2 * len(name)
