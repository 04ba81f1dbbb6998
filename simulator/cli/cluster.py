"""Show a cluster: tiers, oversubscription, bisection, busbw"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, show, whole_file


def command(
    name: Annotated[str, typer.Argument(help="Topology: bundled name or path.")],
    gpus: Annotated[int | None, typer.Option(help="GPUs; 32 nodes if not given.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it: rails, layers, the oversubscribed one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the layers of a cluster's network, its bisection, ports, and all-reduce busbw by group.

    Example: trainsim cluster llama3-roce-24k --gpus 24576
    """
    from simulator.study.cluster import describe, fabric_of

    check_writable(svg)
    about = describe(name, gpus)
    if svg is not None:
        from simulator.report.fabric_svg import draw

        fabric, gpu = fabric_of(name, gpus)
        with whole_file(svg) as stream:
            stream.write(draw(fabric, gpu.name).encode())
    if as_json:
        print_json(about)
        return
    _print(about)


def _print(about: dict[str, Any]) -> None:
    from rich.table import Table

    from simulator.units import show_bandwidth

    print(f"{about['name']}: {about['gpus']:,} {about['gpu']} on {about['nodes']:,} nodes, {about['family']}")
    bisection = about["bisection_bytes_per_s"]
    if bisection:
        print(
            f"bisection {show_bandwidth(bisection)} one way, {show_bandwidth(bisection * 2 / about['gpus'])} a GPU"
        )
    layers = Table(box=None, pad_edge=False, header_style="bold")
    layers.add_column("layer")
    for column in ("switches", "ports down", "ports up", "oversubscription"):
        layers.add_column(column, justify="right")
    for layer in about["layers"]:
        over = layer["oversubscription"]
        shown = "top" if over is None else f"{over:.4g} : 1"
        cells = (layer["switches"], layer["ports_down"], layer["ports_up"])
        style = "yellow" if over and over > 1.01 else ""
        layers.add_row(layer["name"], *(f"{cell:,.4g}" for cell in cells), shown, style=style)
    if about["layers"]:
        show(layers)
        print(f"{about['switch_ports']:,.0f} switch ports, {about['optics']:,.0f} optical modules")
    speeds = Table(
        box=None, pad_edge=False, header_style="bold", title="all-reduce busbw, GB/s", title_justify="left"
    )
    speeds.add_column("group")
    for size in about["sizes"]:
        speeds.add_column(size, justify="right")
    for row in about["busbw"]:
        speeds.add_row(row["group"], *(f"{value / 1e9:.1f}" for value in row["bytes_per_s"]))
    show(speeds)
