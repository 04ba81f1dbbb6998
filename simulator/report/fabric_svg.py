"""A cluster's network as a picture: nodes with their NICs, rails in colours, layers of switches, and where
the capacity above is less than below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

import numpy as np

from simulator.network.fabric import Fabric, SwitchLayer
from simulator.units import show_bandwidth

_WIDTH: Final = 1080
_NODES: Final = 6  # drawn; the rest are counted
_SWITCHES: Final = 12
_COLOURS: Final = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #222; paint-order: stroke; stroke: #fff; stroke-width: 4px }
  rect + text { stroke: none } .small { font-size: 11px; fill: #555 }
  .title { font-size: 18px; font-weight: 600 } .over { fill: #c1121f; font-weight: 600 }
  .box { fill: #f4f4f2; stroke: #888 } .switch { fill: #fff; stroke: #555 } .hot { stroke: #c1121f; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #1b1b1b } text { fill: #eee; stroke: #1b1b1b }
    .small { fill: #aaa } .box { fill: #2a2a2a } .switch { fill: #333 }
  }
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """A layer of switches on the page."""

    layer: SwitchLayer
    y: int
    shown: int

    def x(self, number: int) -> float:
        return (number % self.shown + 0.5) * _WIDTH / self.shown


def draw(fabric: Fabric, gpu: str) -> str:
    """The SVG text."""
    rows = [
        _Row(layer, 130 + 120 * (len(fabric.layers) - 1 - place), min(layer.switches, _SWITCHES))
        for place, layer in enumerate(fabric.layers)
    ]
    bottom = (rows[0].y if rows else 90) + 150
    height = bottom + 190
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(fabric.name)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="20" y="34">{escape(fabric.name)}: {fabric.n_gpus:,} {escape(gpu)} on '
        f"{fabric.n_nodes:,} nodes ({escape(fabric.family)})</text>",
        *_summary(fabric),
        *_between(rows),
        *_nodes(fabric, rows, bottom),
        *(part for row in rows for part in _switches(row)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(fabric: Fabric) -> Iterator[str]:
    if fabric.bisection_bytes_per_s:
        whole = show_bandwidth(fabric.bisection_bytes_per_s)
        each = show_bandwidth(2 * fabric.bisection_bytes_per_s / fabric.n_gpus)
        yield f'<text class="small" x="20" y="56">bisection {whole} one way, {each} a GPU</text>'


def _switches(row: _Row) -> Iterator[str]:
    layer, over = row.layer, row.layer.oversubscription
    hot = over is not None and over > 1.01
    for number in range(row.shown):
        x = row.x(number) - 26
        yield f'<rect class="switch{" hot" if hot else ""}" x="{x:.1f}" y="{row.y}" width="52" height="26" rx="4"/>'
        yield (
            f'<text class="small" x="{x + 26:.1f}" y="{row.y + 17}" text-anchor="middle">'
            f"{escape(layer.name)}{number}</text>"
        )
    more = f", {row.shown} drawn" if layer.switches > row.shown else ""
    plural = "" if layer.switches == 1 else "es"
    about = f"{escape(layer.name)}: {layer.switches:,} switch{plural}{more}, {layer.down_ports:g} ports down"
    if layer.up_ports:
        about += f", {layer.up_ports:g} up"
    yield f'<text class="small" x="20" y="{row.y - 12}">{about}</text>'
    if over is not None:
        css = "over" if hot else "small"
        what = f"{over:.3g} : 1 oversubscribed" if hot else "not oversubscribed"
        yield f'<text class="{css}" x="{_WIDTH - 20}" y="{row.y - 12}" text-anchor="end">{what}</text>'


def _between(rows: list[_Row]) -> Iterator[str]:
    for below, above in pairwise(rows):
        over = below.layer.oversubscription
        hot = over is not None and over > 1.01
        for a in range(below.shown):
            for b in range(above.shown):
                colour, width = ("#c1121f", 1.4) if hot else ("#999", 0.7)
                yield (
                    f'<line x1="{below.x(a):.1f}" y1="{below.y}" x2="{above.x(b):.1f}" y2="{above.y + 26}" '
                    f'stroke="{colour}" stroke-width="{width}" opacity="0.45"/>'
                )


def _nodes(fabric: Fabric, rows: list[_Row], top: int) -> Iterator[str]:
    shown = min(_NODES, fabric.n_nodes)
    each = _WIDTH / shown
    for place in range(shown):
        node = place * fabric.n_nodes // shown  # spread over the cluster, so over its leaves
        left, width = place * each + 12, each - 24
        members = np.flatnonzero(fabric.node_of == node)
        gpus = len(members)
        yield f'<rect class="box" x="{left:.1f}" y="{top}" width="{width:.1f}" height="118" rx="8"/>'
        yield f'<text class="small" x="{left + 8:.1f}" y="{top + 110}">node{node}: {gpus} GPUs</text>'
        nics = max(1, min(fabric.nics_per_node, 8))
        yield from _wires(fabric, rows, node, nics, left, width, top)
        for turn, gpu in enumerate(members[:8].tolist()):
            x = left + (turn + 0.5) * width / min(gpus, 8)
            rail = int(fabric.nic_of[gpu, 0]) if fabric.nic_of.size else 0
            colour = _COLOURS[max(0, rail) % len(_COLOURS)]
            yield f'<rect x="{x - 7:.1f}" y="{top + 58}" width="14" height="14" rx="2" fill="{colour}"/>'
        yield f'<rect x="{left + 8:.1f}" y="{top + 80}" width="{width - 16:.1f}" height="7" rx="3" fill="#76b900"/>'
    more = fabric.n_nodes - shown
    text = f"{shown} of {fabric.n_nodes:,} nodes drawn; " if more else ""
    yield (
        f'<text class="small" x="20" y="{top + 150}">{text}squares are GPUs, circles NICs (one colour a rail), '
        "the green bar is NVLink</text>"
    )


def _wires(
    fabric: Fabric, rows: list[_Row], node: int, nics: int, left: float, width: float, top: int
) -> Iterator[str]:
    leafs = _leafs(fabric, node)
    for nic in range(nics):
        x = left + (nic + 0.5) * width / nics
        colour = _COLOURS[nic % len(_COLOURS)]
        if rows and nic in leafs:
            yield (
                f'<line x1="{x:.1f}" y1="{top + 22}" x2="{rows[0].x(leafs[nic]):.1f}" y2="{rows[0].y + 26}" '
                f'stroke="{colour}" stroke-width="1.6" opacity="0.8"/>'
            )
        yield f'<circle cx="{x:.1f}" cy="{top + 24}" r="5" fill="{colour}"/>'


def _leafs(fabric: Fabric, node: int) -> dict[int, int]:
    """Number of the leaf that each NIC of a node hangs on, as its link says."""
    found = {}
    for link in fabric.find_links(f"node{node}/nic*/up").tolist():
        tail, head = fabric.links.ends(link)
        nic = "".join(char for char in tail.rpartition("/")[2] if char.isdigit())
        leaf = "".join(char for char in head.rpartition("/")[2] if char.isdigit())
        if nic and leaf:
            found[int(nic)] = int(leaf)
    return found
